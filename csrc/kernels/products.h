// Weight gradients of several weights at once: sums over pixels and images of the output's gradient times the input.
#pragma once

#include <cstring>

#include "kernels/vector.h"

namespace fedmef::FEDMEF_ISA {

// As many weights as there are registers for, next to those of the gradient, share their horizontal sums.
constexpr int AT_ONCE = MANY_REGISTERS ? 8 : 4;

// Adds what PIXELS vectors of the gradient contribute to `count` weights. begin(weight) is where a weight finds the
// vector of the input that vector 0 meets, distance(i) how many floats further on the one of vector i is.
template <int PIXELS, class Begin, class Distance>
FEDMEF_INLINE void add_products(const Vector* gradient, int count, const Begin& begin, const Distance& distance,
                                float* d_values) {
  const auto add = [&]<int COUNT>(int first) {
    const float* factors[COUNT];
    FEDMEF_UNROLL for (int k = 0; k < COUNT; ++k) factors[k] = begin(first + k);
    Vector products[AT_ONCE] = {};
    FEDMEF_UNROLL for (int i = 0; i < PIXELS; ++i) {
      FEDMEF_UNROLL for (int k = 0; k < COUNT; ++k) products[k] += gradient[i] * load(factors[k] + distance(i));
    }
    const auto result = sums(products);
    if constexpr (COUNT == AT_ONCE) {
      auto total = result;
      std::memcpy(&total, d_values + first, sizeof total);
      total += result;
      std::memcpy(d_values + first, &total, sizeof total);
    } else {
      FEDMEF_UNROLL for (int k = 0; k < COUNT; ++k) d_values[first + k] += result[k];
    }
  };
  int first = 0;
  for (; first + AT_ONCE <= count; first += AT_ONCE) add.template operator()<AT_ONCE>(first);
  if (first < count)
    with_constant<AT_ONCE - 1>(count - first, [&]<int COUNT>() { add.template operator()<COUNT>(first); });
}

}  // namespace fedmef::FEDMEF_ISA
