// NSConv's filter-wise standardisation of active weights: fedmef.nn.normalization in the order of the stream.
//
//     standardised = (θ - mean) * scale,   scale = target / sqrt(energy + ε),   energy = Σ (θ - mean)²
//
// A filter with fewer than two active weights is dead: its scale is 0. Below an energy of ε the inverse norm goes over
// linearly to the mean of the layer's other filters.
#pragma once

#include <vector>

#include "stream.h"
#include "threads.h"

namespace fedmef {

struct Normalization {
  double gamma = 1, epsilon = 1e-6;
  bool paper = false;  // target = γ sqrt(n / input_channels) instead of γ
  int input_channels = 1;
};

// Of every filter.
struct FilterStatistics {
  std::vector<uint32_t> lengths;  // active weights
  std::vector<float> mean, inverse_norm, scale;
};

std::vector<uint32_t> filter_lengths(const ConvolutionPlan& plan);

// Mean, inverse norm and scale; the lengths must be there.
void measure_filters(const Kernels& kernels, Threads& threads, const ConvolutionPlan& plan,
                     const Normalization& normalization, const float* values, FilterStatistics& statistics);

// What convolves: standardised unless `statistics` is null, times the gain unless that is null.
void effective_values(const Kernels& kernels, Threads& threads, const ConvolutionPlan& plan,
                      const FilterStatistics* statistics, const float* gain, const float* values, float* effective);

// In place: from the gradient of what convolves to that of the values. `gain_gradient` goes with `gain`.
void effective_gradient(const Kernels& kernels, Threads& threads, const ConvolutionPlan& plan,
                        const FilterStatistics* statistics, const float* gain, const float* values, float* gradient,
                        float* gain_gradient);

// What the gradient of a pruned weight is multiplied with; a dead filter gets the mean of the others.
std::vector<float> growth_scales(const FilterStatistics& statistics);

}  // namespace fedmef
