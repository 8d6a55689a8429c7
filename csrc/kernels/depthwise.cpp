// Convolutions in which every channel has a filter of its own. There is nothing to share between outputs: a plane is
// copied once with its padding, and rows of pixels go through registers.
#include "kernels/depthwise.h"

#include <algorithm>
#include <vector>

#include "kernels/planes.h"
#include "threads.h"

namespace fedmef::FEDMEF_ISA {

namespace {

constexpr int RUN = MANY_REGISTERS ? 16 : 8;  // pixels at once
constexpr int TAPS = 9;                       // weights whose sums are in registers at once
constexpr int CHUNK = 32;                     // planes that a thread takes at once

// Offsets in pixels of a whole plane, of the active weights of a stream.
std::vector<uint32_t> plane_offsets(const Direction& direction, const Tile& tile, const Tile& whole,
                                    const Stream& stream) {
  std::vector<uint32_t> offsets(stream.segments.back());
  for (size_t i = 0; i < offsets.size(); ++i) {
    const int pixel = int(stream.offsets[i] / sizeof(Vector));
    size_t phase = direction.phases.size() - 1;
    while (tile.bases[phase] > pixel) --phase;
    const int within = pixel - tile.bases[phase];
    offsets[i] = uint32_t(whole.bases[phase] + within / tile.pitch * whole.pitch + within % tile.pitch);
  }
  return offsets;
}

// One output row: `step` floats from pixel to pixel.
template <int COUNT>
FEDMEF_INLINE void convolve_run(const Vector* row, const uint32_t* offsets, const float* values, int count, Vector bias,
                                float* to, size_t step, bool accumulate) {
  Vector sums[COUNT];
  FEDMEF_UNROLL for (int i = 0; i < COUNT; ++i) sums[i] = accumulate ? load(to + i * step) : bias;
  for (int weight = 0; weight < count; ++weight) {
    const Vector* pixels = row + offsets[weight];
    const float value = values[weight];
    FEDMEF_UNROLL for (int i = 0; i < COUNT; ++i) sums[i] += value * pixels[i];
  }
  FEDMEF_UNROLL for (int i = 0; i < COUNT; ++i) store(to + i * step, sums[i]);
}

void convolve_planes(Threads& threads, const Direction& direction, const Tile& tile, const Stream& stream,
                     Layout layout, const float* values, const float* bias, const float* x, float* y, bool accumulate) {
  const Tile whole = whole_plane(direction);
  const std::vector<uint32_t> offsets = plane_offsets(direction, tile, whole, stream);
  const int down = direction.step[0], across = direction.step[1];
  const int height = direction.output.height, width = direction.output.width;
  threads.reserve(size_t(whole.channel) * sizeof(Vector));
  threads.run(layout.blocks() * stream.groups, [&](int item, int thread) {
    const int block = item / stream.groups, channel = item % stream.groups;
    Vector* buffer = static_cast<Vector*>(threads.scratch(thread));
    fill_plane(buffer, {x, nullptr}, size_t(item), direction, whole, nullptr, nullptr);
    float* plane = y + size_t(item) * direction.output.plane() * LANES;
    Vector start{};
    if (bias != nullptr)
      for (int lane = 0; lane < layout.filled(block); ++lane) start[lane] = bias[channel];
    for (int part = 0; part < stream.outputs; ++part) {
      const uint32_t begin = stream.segments[size_t(channel) * stream.outputs + part];
      const int count = int(stream.segments[size_t(channel) * stream.outputs + part + 1] - begin);
      const int first_row = part / across, first_column = part % across;
      const int columns = first_column < width ? (width - first_column + across - 1) / across : 0;
      for (int row = 0, out = first_row; out < height; ++row, out += down) {
        for (int column = 0; column < columns; column += RUN) {
          float* to = plane + (size_t(out) * width + first_column + size_t(column) * across) * LANES;
          with_constant<RUN>(std::min(RUN, columns - column), [&]<int COUNT>() {
            convolve_run<COUNT>(buffer + row * whole.pitch + column, offsets.data() + begin, values + begin, count,
                                start, to, size_t(across) * LANES, accumulate);
          });
        }
      }
    }
  });
}

// Sums over all pixels of a plane, for a few weights.
template <int COUNT>
FEDMEF_INLINE void gradient_plane(const Vector* buffer, const Tile& whole, const uint32_t* offsets, const float* dy,
                                  int height, int width, float* d_values) {
  Vector sums[COUNT];
  FEDMEF_UNROLL for (int i = 0; i < COUNT; ++i) sums[i] = Vector{};
  const Vector* pixels[COUNT];
  FEDMEF_UNROLL for (int i = 0; i < COUNT; ++i) pixels[i] = buffer + offsets[i];
  for (int row = 0; row < height; ++row) {
    for (int column = 0; column < width; ++column) {
      const Vector gradient = load(dy + (size_t(row) * width + column) * LANES);
      FEDMEF_UNROLL for (int i = 0; i < COUNT; ++i) sums[i] += gradient * pixels[i][row * whole.pitch + column];
    }
  }
  FEDMEF_UNROLL for (int i = 0; i < COUNT; ++i) d_values[i] += sum(sums[i]);
}

}  // namespace

void depthwise_convolve(Threads& threads, const ConvolutionPlan& plan, Layout layout, const float* values,
                        const float* bias, const float* x, float* y, bool accumulate) {
  convolve_planes(threads, plan.forward, plan.forward_tile, plan.forward_stream, layout, values, bias, x, y,
                  accumulate);
}

void depthwise_input_gradient(Threads& threads, const ConvolutionPlan& plan, Layout layout, const float* values,
                              const float* dy, float* dx, bool accumulate) {
  convolve_planes(threads, plan.backward, plan.backward_tile, plan.backward_stream, layout, values, nullptr, dy, dx,
                  accumulate);
}

void depthwise_weight_gradient(Threads& threads, const ConvolutionPlan& plan, Layout layout, Source source,
                               const float* dy, float* d_values) {
  const Direction& direction = plan.forward;
  const Stream& stream = plan.forward_stream;
  const Tile whole = whole_plane(direction);
  const std::vector<uint32_t> offsets = plane_offsets(direction, plan.forward_tile, whole, stream);
  const size_t plane = direction.input.plane(), out_plane = direction.output.plane() * LANES;
  threads.reserve((size_t(whole.channel) + 2 * plane + 2) * sizeof(Vector));
  std::fill_n(d_values, plan.active, 0.0f);
  threads.run(stream.groups, [&](int channel, int thread) {
    Vector* buffer = static_cast<Vector*>(threads.scratch(thread));
    float* expanded = reinterpret_cast<float*>(buffer + whole.channel);
    const uint32_t begin = stream.segments[size_t(channel)];
    const int count = int(stream.segments[size_t(channel) + 1] - begin);
    for (int block = 0; block < layout.blocks(); ++block) {
      const size_t number = size_t(block) * stream.groups + channel;
      fill_plane(buffer, source, number, direction, whole, expanded, expanded + plane * LANES);
      for (int weight = 0; weight < count; weight += TAPS)
        with_constant<TAPS>(std::min(TAPS, count - weight), [&]<int COUNT>() {
          gradient_plane<COUNT>(buffer, whole, offsets.data() + begin + weight, dy + number * out_plane,
                                direction.output.height, direction.output.width, d_values + begin + weight);
        });
    }
  });
}

}  // namespace fedmef::FEDMEF_ISA
