// The weight gradient of a dense convolution of few channels, such as a stem. With every weight active, a few outputs
// and a few taps share their loads, and sums are added across lanes once at the end instead of once a tile.
#include "kernels/dense_gradient.h"

#include <algorithm>
#include <vector>

#include "kernels/planes.h"
#include "threads.h"

namespace fedmef::FEDMEF_ISA {

namespace {

constexpr int PARTS = 4;                      // of the batch, each with sums of its own: added in order
constexpr int OUTPUTS = 4;                    // that share their loads
constexpr int TAPS = MANY_REGISTERS ? 5 : 2;  // likewise
constexpr int ROWS = 4;                       // of the output's gradient that stay in the L1 cache

template <int OUTS, int COUNT>
FEDMEF_INLINE void gradient_rows(const Vector* buffer, const Tile& whole, const uint32_t* offsets, const float* dy,
                                 size_t plane, int first, int last, int width, Vector* sums, int weights) {
  Vector own[OUTS * COUNT];
  FEDMEF_UNROLL for (int o = 0; o < OUTS; ++o) {
    FEDMEF_UNROLL for (int k = 0; k < COUNT; ++k) own[o * COUNT + k] = sums[o * weights + k];
  }
  const Vector* pixels[COUNT];
  FEDMEF_UNROLL for (int k = 0; k < COUNT; ++k) pixels[k] = buffer + offsets[k];
  for (int row = first; row < last; ++row) {
    const float* gradient = dy + size_t(row) * width * LANES;
    for (int column = 0; column < width; ++column, gradient += LANES) {
      Vector x[COUNT];
      FEDMEF_UNROLL for (int k = 0; k < COUNT; ++k) x[k] = pixels[k][row * whole.pitch + column];
      FEDMEF_UNROLL for (int o = 0; o < OUTS; ++o) {
        const Vector g = load(gradient + o * plane);
        FEDMEF_UNROLL for (int k = 0; k < COUNT; ++k) own[o * COUNT + k] += g * x[k];
      }
    }
  }
  FEDMEF_UNROLL for (int o = 0; o < OUTS; ++o) {
    FEDMEF_UNROLL for (int k = 0; k < COUNT; ++k) sums[o * weights + k] = own[o * COUNT + k];
  }
}

}  // namespace

void dense_gradient(Threads& threads, const ConvolutionPlan& plan, Layout layout, Source source, const float* dy,
                    float* d_values) {
  const Direction& direction = plan.forward;
  const PaddedPlanes planes(direction);
  const Tile& whole = planes.tile;
  const std::vector<int> taps = tap_offsets(plan, whole);
  std::vector<uint32_t> offsets;
  for (int channel = 0; channel < plan.input.channels; ++channel)
    for (const int tap : taps) offsets.push_back(uint32_t(channel * whole.channel + tap));
  const int weights = int(offsets.size()), height = plan.output.height, width = plan.output.width;
  const size_t plane = direction.input.plane(), out_plane = plan.output.plane() * LANES;
  const size_t buffer_size = size_t(whole.channel) * plan.input.channels;
  const int parts = std::min(PARTS, layout.blocks());
  threads.reserve((buffer_size + 2 * plane + 2) * sizeof(Vector));
  const int padded = (plan.filters() + OUTPUTS - 1) / OUTPUTS * OUTPUTS;
  std::vector<float> partial(size_t(parts) * plan.active);
  std::vector<Vector> sums(size_t(parts) * padded * weights);
  threads.run(parts, [&](int part, int thread) {
    Vector* buffer = static_cast<Vector*>(threads.scratch(thread));
    float* expanded = reinterpret_cast<float*>(buffer + buffer_size);
    Vector* own = sums.data() + size_t(part) * padded * weights;
    for (int channel = 0; channel < plan.input.channels; ++channel)
      planes.clear(buffer + size_t(channel) * whole.channel);
    for (int block = layout.blocks() * part / parts; block < layout.blocks() * (part + 1) / parts; ++block) {
      for (int channel = 0; channel < plan.input.channels; ++channel)
        planes.fill(buffer + size_t(channel) * whole.channel,
                    dense_plane(source, size_t(block) * plan.input.channels + channel, plane * LANES, expanded,
                                expanded + plane * LANES));
      for (int filter = 0; filter < plan.filters(); filter += OUTPUTS) {
        const float* gradient = dy + (size_t(block) * plan.filters() + filter) * out_plane;
        const auto with_outputs = [&]<int OUTS>() {
          for (int row = 0; row < height; row += ROWS)
            for (int weight = 0; weight < weights; weight += TAPS)
              with_constant<TAPS>(std::min(TAPS, weights - weight), [&]<int COUNT>() {
                gradient_rows<OUTS, COUNT>(buffer, whole, offsets.data() + weight, gradient, out_plane, row,
                                           std::min(height, row + ROWS), width, own + size_t(filter) * weights + weight,
                                           weights);
              });
        };
        with_constant<OUTPUTS>(std::min(OUTPUTS, plan.filters() - filter), with_outputs);
      }
    }
    for (size_t i = 0; i < plan.active; ++i) partial[size_t(part) * plan.active + i] = sum(own[i]);
  });
  // One block of channels: the stream's order is that of the filters.
  for (size_t i = 0; i < plan.active; ++i) {
    float total = partial[i];
    for (int part = 1; part < parts; ++part) total += partial[size_t(part) * plan.active + i];
    d_values[i] = total;
  }
}

}  // namespace fedmef::FEDMEF_ISA
