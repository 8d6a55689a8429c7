#include "standardization.h"

#include <algorithm>
#include <cmath>

namespace fedmef {

namespace {

// work(first, last) for ranges of filters, each by one thread.
template <class Work>
void share_filters(Threads& threads, const ConvolutionPlan& plan, const Work& work) {
  const int chunks = std::min(threads.count(), plan.filters());
  threads.run(chunks, [&](int chunk, int) {
    work(begin_of(chunk, chunks, plan.filters()), begin_of(chunk + 1, chunks, plan.filters()));
  });
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

void measure_filters(const Kernels& kernels, Threads& threads, const ConvolutionPlan& plan,
                     const Normalization& normalization, const float* values, FilterStatistics& statistics) {
  const size_t filters = size_t(plan.filters());
  const std::vector<uint32_t>& lengths = statistics.lengths;
  std::vector<double> squares(filters), sums(filters);
  share_filters(threads, plan, [&](int first, int last) {
    kernels.filter_sums(plan, first, last, values, values, squares.data(), sums.data());
  });
  statistics.mean.resize(filters);
  statistics.inverse_norm.resize(filters);
  statistics.scale.resize(filters);
  std::vector<double>& energies = squares;
  for (size_t filter = 0; filter < filters; ++filter) {
    const double length = std::max(1u, lengths[filter]), mean = double(float(sums[filter] / length));
    // Σ (θ - mean)², of a mean that was rounded
    energies[filter] = std::max(0.0, squares[filter] - mean * (2 * sums[filter] - length * mean));
    statistics.mean[filter] = float(mean);
    statistics.inverse_norm[filter] = float(1 / std::sqrt(energies[filter] + normalization.epsilon));
  }
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

void effective_values(const Kernels& kernels, Threads& threads, const ConvolutionPlan& plan,
                      const FilterStatistics* statistics, const float* gain, const float* values, float* effective) {
  std::vector<float> factors(size_t(plan.filters()), 1.0f);
  for (size_t filter = 0; filter < factors.size(); ++filter)
    factors[filter] = (statistics ? statistics->scale[filter] : 1.0f) * (gain ? gain[filter] : 1.0f);
  share_filters(threads, plan, [&](int first, int last) {
    kernels.scale_filters(plan, first, last, values, statistics ? statistics->mean.data() : nullptr, factors.data(),
                          effective);
  });
}

void effective_gradient(const Kernels& kernels, Threads& threads, const ConvolutionPlan& plan,
                        const FilterStatistics* statistics, const float* gain, const float* values, float* gradient,
                        float* gain_gradient) {
  const size_t filters = size_t(plan.filters());
  std::vector<double> along(filters), sums(filters);  // Σ (θ - mean) · gradient and Σ gradient
  share_filters(threads, plan, [&](int first, int last) {
    kernels.filter_sums(plan, first, last, gradient, values, along.data(), sums.data());
  });
  std::vector<float> slope(filters), average(filters), factor(filters, 1.0f);
  for (size_t filter = 0; filter < filters; ++filter) {
    if (gain) factor[filter] = gain[filter];
    if (!statistics) {
      if (gain) gain_gradient[filter] = float(along[filter]);
      continue;
    }
    along[filter] -= double(statistics->mean[filter]) * sums[filter];
    if (gain) gain_gradient[filter] = float(along[filter] * statistics->scale[filter]);
    const double inverse = statistics->inverse_norm[filter];
    slope[filter] = float(along[filter] * inverse * inverse);
    average[filter] = float(sums[filter] / std::max(1u, statistics->lengths[filter]));
    factor[filter] *= statistics->scale[filter];
  }
  share_filters(threads, plan, [&](int first, int last) {
    if (statistics)
      kernels.project_filters(plan, first, last, values, statistics->mean.data(), slope.data(), average.data(),
                              factor.data(), gradient);
    else
      kernels.scale_filters(plan, first, last, gradient, nullptr, factor.data(), gradient);
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
