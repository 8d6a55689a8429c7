// Sums and products over the active weights of filters, for NSConv's standardisation: walks along the stream.
#include <algorithm>
#include <vector>

#include "kernels/masks.h"
#include "kernels/parts.h"
#include "stream.h"

namespace fedmef::FEDMEF_ISA {

namespace {

// Half as many lanes as a vector, in double: sums over a filter lose nothing that matters.
constexpr int DOUBLES = LANES / 2;
using Half = float __attribute__((vector_size(DOUBLES * 4)));
using DoubleVector = double __attribute__((vector_size(DOUBLES * 8)));

struct Pair {
  DoubleVector low, high;

  explicit FEDMEF_INLINE Pair(Vector v) {
    Half half[2];
    std::memcpy(&half, &v, sizeof v);
    low = __builtin_convertvector(half[0], DoubleVector);
    high = __builtin_convertvector(half[1], DoubleVector);
  }
};

// Of one filter, not yet added up over the lanes.
struct Sums {
  DoubleVector products = {}, values = {};

  FEDMEF_INLINE void add(Vector value, Vector factor) {
    const Pair one(value), other(factor);
    products += one.low * other.low + one.high * other.high;
    values += one.low + one.high;
  }
};

double total(DoubleVector v) {
  double sum = 0;
  for (int lane = 0; lane < DOUBLES; ++lane) sum += v[lane];
  return sum;
}

}  // namespace

void filter_sums(const ConvolutionPlan& plan, int first, int last, const float* values, const float* factors,
                 double* products, double* sums) {
  std::vector<Sums> found(size_t(last - first));
  each_segment_between(plan, first, last, [&](int filter, uint32_t begin, uint32_t end) {
    Sums own = found[size_t(filter - first)];
    each_vector(end - begin, [&](size_t i, auto access) {
      own.add(access.load(values + begin + i), access.load(factors + begin + i));
    });
    found[size_t(filter - first)] = own;
  });
  for (int filter = first; filter < last; ++filter) {
    products[filter] = total(found[size_t(filter - first)].products);
    sums[filter] = total(found[size_t(filter - first)].values);
  }
}

void scale_filters(const ConvolutionPlan& plan, int first, int last, const float* values, const float* shift,
                   const float* factor, float* to) {
  each_segment_between(plan, first, last, [&](int filter, uint32_t begin, uint32_t end) {
    const float by = shift ? shift[filter] : 0.0f, times = factor[filter];
    each_vector(end - begin, [&](size_t i, auto access) {
      access.store(to + begin + i, (access.load(values + begin + i) - by) * times);
    });
  });
}

void project_filters(const ConvolutionPlan& plan, int first, int last, const float* values, const float* mean,
                     const float* slope, const float* average, const float* factor, float* gradient) {
  each_segment_between(plan, first, last, [&](int filter, uint32_t begin, uint32_t end) {
    const float center = mean[filter], along = slope[filter], usual = average[filter], times = factor[filter];
    each_vector(end - begin, [&](size_t i, auto access) {
      float* place = gradient + begin + i;
      const Vector centered = access.load(values + begin + i) - center;
      access.store(place, (access.load(place) - usual - centered * along) * times);
    });
  });
}

}  // namespace fedmef::FEDMEF_ISA
