// Weight gradients: sums over pixels and images of the output's gradient times the input.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/vector.h"

namespace fedmef::FEDMEF_ISA {

// What PIXELS vectors of the gradient contribute to one weight, lane by lane. Its vectors of the input are at
// distance(i) floats from `factors`.
template <int PIXELS, class Distance>
FEDMEF_INLINE Vector product(const Vector* gradient, const float* factors, const Distance& distance) {
  constexpr int CHAINS = std::min(PIXELS, MANY_REGISTERS ? 4 : 2);  // of additions that wait for each other
  Vector sums[CHAINS];
  FEDMEF_UNROLL for (int i = 0; i < CHAINS; ++i) sums[i] = gradient[i] * load(factors + distance(i));
  FEDMEF_UNROLL for (int i = CHAINS; i < PIXELS; ++i) sums[i % CHAINS] += gradient[i] * load(factors + distance(i));
  FEDMEF_UNROLL for (int i = 1; i < CHAINS; ++i) sums[0] += sums[i];
  return sums[0];
}

// The products of weights that follow each other wait until there are enough of them: eight vectors are added up over
// their lanes in hardly more time than one.
class Products {
 public:
  static constexpr int MOST_AT_ONCE = 64;  // weights in one call of room_for()

  FEDMEF_INLINE explicit Products(float* d_values) : d_values_(d_values) {}

  // Room for the products of the next `count` weights, all of which must be filled in before the next call.
  FEDMEF_INLINE Vector* room_for(int count) {
    if (waiting_ >= ENOUGH) add_up();
    Vector* room = products_ + waiting_;
    waiting_ += count;
    return room;
  }

  // Everything that waits.
  FEDMEF_INLINE void finish() {
    add_up();
    for (int i = 0; i < waiting_; ++i) *d_values_++ += sum(products_[i]);
    waiting_ = 0;
  }

 private:
  static constexpr int ENOUGH = 32, TOGETHER = 8;

  FEDMEF_NOT_INLINE void add_up() {
    int done = 0;
    for (; done + TOGETHER <= waiting_; done += TOGETHER, d_values_ += TOGETHER) {
      Vector eight[TOGETHER];
      FEDMEF_UNROLL for (int i = 0; i < TOGETHER; ++i) eight[i] = products_[done + i];
      Vector8 total;
      std::memcpy(&total, d_values_, sizeof total);
      total += sums(eight);
      std::memcpy(d_values_, &total, sizeof total);
    }
    waiting_ -= done;
    for (int i = 0; i < waiting_; ++i) products_[i] = products_[done + i];
  }

  Vector products_[ENOUGH + MOST_AT_ONCE];
  int waiting_ = 0;
  float* d_values_;
};

}  // namespace fedmef::FEDMEF_ISA
