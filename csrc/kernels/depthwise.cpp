// Convolutions in which every channel has a filter of its own. There is nothing to share between outputs: a plane is
// copied once into its padding, and rows of pixels go through registers.
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

// Where a run of outputs is written: floats from row to row and from pixel to pixel.
struct Target {
  float* pixels;
  size_t row, column;
};

// A run of neighbouring outputs, of one row or of two.
template <int ROWS, int COLUMNS>
FEDMEF_INLINE void convolve_run(const Vector* pixels, int pitch, const uint32_t* offsets, const float* values,
                                int count, Vector bias, Target to, bool accumulate, bool streamed) {
  Vector sums[ROWS * COLUMNS];
  const auto at = [&](int i) { return to.pixels + (i / COLUMNS) * to.row + (i % COLUMNS) * to.column; };
  FEDMEF_UNROLL for (int i = 0; i < ROWS * COLUMNS; ++i) sums[i] = accumulate ? load(at(i)) : bias;
  for (int weight = 0; weight < count; ++weight) {
    const Vector* factors = pixels + offsets[weight];
    const float value = values[weight];
    FEDMEF_UNROLL for (int i = 0; i < ROWS * COLUMNS; ++i) sums[i] +=
        value * factors[(i / COLUMNS) * pitch + i % COLUMNS];
  }
  if (streamed) {
    FEDMEF_UNROLL for (int i = 0; i < ROWS * COLUMNS; ++i) store_past_caches(at(i), sums[i]);
  } else {
    FEDMEF_UNROLL for (int i = 0; i < ROWS * COLUMNS; ++i) store(at(i), sums[i]);
  }
}

void convolve_planes(Threads& threads, const Direction& direction, const Tile& tile, const Stream& stream,
                     Layout layout, const float* values, const float* bias, const float* x, float* y, bool accumulate) {
  const PaddedPlanes padded(direction);
  const std::vector<uint32_t> offsets = plane_offsets(direction, tile, padded.tile, stream);
  const int down = direction.step[0], across = direction.step[1], pitch = padded.tile.pitch;
  const int height = direction.output.height, width = direction.output.width;
  const size_t plane = direction.input.plane() * LANES, out_plane = direction.output.plane() * LANES;
  const int chunks = (stream.groups + CHUNK - 1) / CHUNK;
  const bool streamed = goes_past_caches(y, layout.elements(direction.output), width, across);
  threads.reserve(padded.size() * sizeof(Vector));
  threads.run(layout.blocks() * chunks, [&](int item, int thread) {
    const int block = item / chunks, first = item % chunks * CHUNK;
    Vector* buffer = static_cast<Vector*>(threads.scratch(thread));
    padded.clear(buffer);
    for (int channel = first; channel < std::min(first + CHUNK, stream.groups); ++channel) {
      const size_t number = size_t(block) * stream.groups + channel;
      Vector start{};
      if (bias != nullptr)
        for (int lane = 0; lane < layout.filled(block); ++lane) start[lane] = bias[channel];
      const auto convolve_part = [&](int part, int row, int last) {
        const uint32_t begin = stream.segments[size_t(channel) * stream.outputs + part];
        const int count = int(stream.segments[size_t(channel) * stream.outputs + part + 1] - begin);
        const int first_row = part / across, first_column = part % across;
        const int rows = std::min(last, first_row < height ? (height - first_row + down - 1) / down : 0);
        const int columns = first_column < width ? (width - first_column + across - 1) / across : 0;
        if (columns == 0) return;  // a plane that is narrower than the stride
        Target to = {y + number * out_plane + (size_t(first_row) * width + first_column) * LANES,
                     size_t(down) * width * LANES, size_t(across) * LANES};
        const auto run = [&]<int ROWS, int COLUMNS>(int row, int column) {
          convolve_run<ROWS, COLUMNS>(buffer + row * pitch + column, pitch, offsets.data() + begin, values + begin,
                                      count, start, {to.pixels + row * to.row + column * to.column, to.row, to.column},
                                      accumulate, streamed);
        };
        if (columns <= RUN / 2)  // too few for the registers: two rows at once
          for (; row + 2 <= rows; row += 2)
            with_constant<RUN / 2>(columns, [&]<int COLUMNS>() { run.template operator()<2, COLUMNS>(row, 0); });
        for (; row < rows; ++row)
          for (int column = 0; column < columns; column += RUN)
            with_constant<RUN>(std::min(RUN, columns - column),
                               [&]<int COLUMNS>() { run.template operator()<1, COLUMNS>(row, column); });
      };
      padded.fill_in_bands(buffer, x + number * plane, true, [&](int row, int last) {
        for (int part = 0; part < stream.outputs; ++part) convolve_part(part, row, last);
      });
    }
    finish_streaming();
  });
}

// Adds, lane by lane, what some rows of pixels contribute to a few weights.
template <int COUNT>
FEDMEF_INLINE void gradient_rows(const Vector* buffer, int pitch, const uint32_t* offsets, const float* dy, int first,
                                 int last, int width, Vector* totals) {
  Vector sums[COUNT];
  const Vector* pixels[COUNT];
  FEDMEF_UNROLL for (int i = 0; i < COUNT; ++i) {
    sums[i] = totals[i];
    pixels[i] = buffer + offsets[i];
  }
  for (int row = first; row < last; ++row) {
    for (int column = 0; column < width; ++column) {
      const Vector gradient = load(dy + (size_t(row) * width + column) * LANES);
      FEDMEF_UNROLL for (int i = 0; i < COUNT; ++i) sums[i] += gradient * pixels[i][row * pitch + column];
    }
  }
  FEDMEF_UNROLL for (int i = 0; i < COUNT; ++i) totals[i] = sums[i];
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
  const PaddedPlanes padded(direction);
  const std::vector<uint32_t> offsets = plane_offsets(direction, plan.forward_tile, padded.tile, stream);
  const size_t plane = direction.input.plane(), out_plane = direction.output.plane() * LANES;
  const int chunks = (stream.groups + CHUNK - 1) / CHUNK;
  threads.reserve((padded.size() + plan.filter_size() + 2 * plane + 2) * sizeof(Vector));
  threads.run(chunks, [&](int chunk, int thread) {
    Vector* buffer = static_cast<Vector*>(threads.scratch(thread));
    Vector* totals = buffer + padded.size();
    float* expanded = reinterpret_cast<float*>(totals + plan.filter_size());
    padded.clear(buffer);
    for (int channel = chunk * CHUNK; channel < std::min((chunk + 1) * CHUNK, stream.groups); ++channel) {
      const uint32_t begin = stream.segments[size_t(channel)];
      const int count = int(stream.segments[size_t(channel) + 1] - begin);
      std::fill_n(totals, count, Vector{});
      for (int block = 0; block < layout.blocks(); ++block) {
        const size_t number = size_t(block) * stream.groups + channel;
        const float* from = dense_plane(source, number, plane * LANES, expanded, expanded + plane * LANES);
        padded.fill_in_bands(buffer, from, source.pruned == nullptr, [&](int first, int last) {
          for (int weight = 0; weight < count; weight += TAPS)
            with_constant<TAPS>(std::min(TAPS, count - weight), [&]<int COUNT>() {
              gradient_rows<COUNT>(buffer, padded.tile.pitch, offsets.data() + begin + weight, dy + number * out_plane,
                                   first, last, direction.output.width, totals + weight);
            });
        });
      }
      for (int weight = 0; weight < count; ++weight) d_values[begin + weight] = sum(totals[weight]);
    }
  });
}

}  // namespace fedmef::FEDMEF_ISA
