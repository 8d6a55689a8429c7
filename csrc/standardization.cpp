#include "standardization.h"

#include <algorithm>
#include <cmath>

namespace fedmef {

namespace {

// The sum of term(i) in [begin, end), in double: four sums at once, in a fixed order.
template <class Term>
double sum_of(uint32_t begin, uint32_t end, const Term& term) {
  double sums[4] = {0, 0, 0, 0};
  uint32_t i = begin;
  for (; i + 4 <= end; i += 4)
    for (uint32_t lane = 0; lane < 4; ++lane) sums[lane] += term(i + lane);
  for (; i < end; ++i) sums[0] += term(i);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class Term>
double filter_sum(const ConvolutionPlan& plan, int filter, const Term& term) {
  double sum = 0;
  each_segment(plan, filter, [&](uint32_t begin, uint32_t end) { sum += sum_of(begin, end, term); });
  return sum;
}

// The mean over the filters that are chosen, 0 if there is none.
template <class Chosen>
float mean_where(const std::vector<float>& values, const Chosen& chosen) {
  double sum = 0;
  size_t count = 0;
  for (size_t filter = 0; filter < values.size(); ++filter) {
    if (!chosen(filter)) continue;
    sum += values[filter];
    ++count;
  }
  return count ? float(sum / double(count)) : 0.0f;
}

}  // namespace

std::vector<uint32_t> filter_lengths(const ConvolutionPlan& plan) {
  std::vector<uint32_t> lengths(size_t(plan.filters()), 0);
  for (int filter = 0; filter < plan.filters(); ++filter)
    each_segment(plan, filter, [&](uint32_t begin, uint32_t end) { lengths[size_t(filter)] += end - begin; });
  return lengths;
}

void measure_filters(Threads& threads, const ConvolutionPlan& plan, const Normalization& normalization,
                     const float* values, FilterStatistics& statistics) {
  const size_t filters = size_t(plan.filters());
  const std::vector<uint32_t>& lengths = statistics.lengths;
  std::vector<float> energies(filters);
  statistics.mean.resize(filters);
  statistics.inverse_norm.resize(filters);
  statistics.scale.resize(filters);
  threads.run(plan.filters(), [&](int filter, int) {
    const auto value = [&](uint32_t i) { return double(values[i]); };
    const float mean = float(filter_sum(plan, filter, value) / std::max(1u, lengths[size_t(filter)]));
    const auto square = [&](uint32_t i) {
      const float centered = values[i] - mean;
      return double(centered) * centered;
    };
    const double energy = filter_sum(plan, filter, square);
    statistics.mean[size_t(filter)] = mean;
    energies[size_t(filter)] = float(energy);
    statistics.inverse_norm[size_t(filter)] = float(1 / std::sqrt(energy + normalization.epsilon));
  });
  const float usual =
      mean_where(statistics.inverse_norm, [&](size_t filter) { return energies[filter] > normalization.epsilon; });
  for (size_t filter = 0; filter < filters; ++filter) {
    const double share = std::min(1.0, energies[filter] / normalization.epsilon);
    const double own = statistics.inverse_norm[filter];
    const double inverse = lengths[filter] >= 2 ? usual + (own - usual) * share : 0.0;
    const double target = normalization.gamma *
                          (normalization.paper ? std::sqrt(double(lengths[filter]) / normalization.input_channels) : 1);
    statistics.inverse_norm[filter] = float(inverse);
    statistics.scale[filter] = float(inverse * target);
  }
}

void effective_values(Threads& threads, const ConvolutionPlan& plan, const FilterStatistics* statistics,
                      const float* gain, const float* values, float* effective) {
  threads.run(plan.filters(), [&](int filter, int) {
    const float mean = statistics ? statistics->mean[size_t(filter)] : 0.0f;
    const float scale = (statistics ? statistics->scale[size_t(filter)] : 1.0f) * (gain ? gain[filter] : 1.0f);
    each_segment(plan, filter, [&](uint32_t begin, uint32_t end) {
      for (uint32_t i = begin; i < end; ++i) effective[i] = (values[i] - mean) * scale;
    });
  });
}

void effective_gradient(Threads& threads, const ConvolutionPlan& plan, const FilterStatistics* statistics,
                        const float* gain, const float* values, float* gradient, float* gain_gradient) {
  threads.run(plan.filters(), [&](int filter, int) {
    const float mean = statistics ? statistics->mean[size_t(filter)] : 0.0f;
    const float scale = statistics ? statistics->scale[size_t(filter)] : 1.0f;
    const float factor = gain ? gain[filter] : 1.0f;
    const auto product = [&](uint32_t i) { return double(values[i] - mean) * gradient[i]; };
    const double along = filter_sum(plan, filter, product);
    if (gain) gain_gradient[filter] = float(along * scale);
    if (!statistics) {
      each_segment(plan, filter, [&](uint32_t begin, uint32_t end) {
        for (uint32_t i = begin; i < end; ++i) gradient[i] *= factor;
      });
      return;
    }
    const double length = std::max(1u, statistics->lengths[size_t(filter)]);
    const float average = float(filter_sum(plan, filter, [&](uint32_t i) { return double(gradient[i]); }) / length);
    const double inverse = statistics->inverse_norm[size_t(filter)];
    const float slope = float(along * inverse * inverse), whole = scale * factor;
    each_segment(plan, filter, [&](uint32_t begin, uint32_t end) {
      for (uint32_t i = begin; i < end; ++i) gradient[i] = (gradient[i] - average - (values[i] - mean) * slope) * whole;
    });
  });
}

std::vector<float> growth_scales(const FilterStatistics& statistics) {
  const auto living = [&](size_t filter) { return statistics.lengths[filter] >= 2; };
  const float usual = mean_where(statistics.scale, living);
  std::vector<float> scales(statistics.scale);
  for (size_t filter = 0; filter < scales.size(); ++filter)
    if (!living(filter)) scales[filter] = usual;
  return scales;
}

}  // namespace fedmef
