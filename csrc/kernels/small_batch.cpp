// Convolutions of batches that do not fill the lanes: plain planes, vectors of neighbouring pixels.
//
// A plane is copied with its padding around it, rows `pitch` apart, and then read as one long row: the factors of a tap
// are a constant distance away, whatever the pixel. What is computed between the end of a row and the beginning of the
// next is left out when the result is written.
//
//     buffer:   0 0 0 0 0 0 | 0 a b c d 0 | 0 e f g h 0 | ...        sums:   A B C D . . E F G H . . ...
#include "kernels/small_batch.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/expand.h"
#include "kernels/products.h"
#include "stream.h"
#include "threads.h"

namespace fedmef::FEDMEF_ISA {

namespace {

constexpr int MOST = MANY_REGISTERS ? 16 : 8;  // vectors of pixels at once

struct Flat {
  const Direction& direction;
  const Tile& tile;
  // Floats of one output's sums, whole vectors.
  size_t length() const {
    const size_t pixels = size_t(direction.grid[0] - 1) * size_t(tile.pitch) + size_t(direction.grid[1]);
    return (pixels + LANES - 1) / LANES * LANES;
  }
  // Floats of the buffer of `channels` planes, with what vectors read beyond the last.
  size_t buffer(int channels) const { return size_t(channels) * size_t(tile.channel) + length() + MOST * LANES; }
};

// One plane with its padding; every stride's phase after the other.
void copy_plane(float* to, const float* plane, const Direction& direction, const Tile& tile) {
  const int height = direction.input.height, width = direction.input.width, step = direction.stride[1];
  for (size_t i = 0; i < direction.phases.size(); ++i) {
    const Phase& phase = direction.phases[i];
    const int columns = tile.width + phase.extent[1], start = phase.first[1] * step + phase.remainder[1];
    const int from = std::min(columns, start < 0 ? (-start + step - 1) / step : 0);
    const int until = std::max(from, std::min(columns, start < width ? (width - start + step - 1) / step : 0));
    float* row = to + tile.bases[i];
    for (int r = 0; r < tile.height + phase.extent[0]; ++r, row += tile.pitch) {
      const int y = (r + phase.first[0]) * direction.stride[0] + phase.remainder[0];
      std::fill_n(row, tile.pitch, 0.0f);
      if (y < 0 || y >= height) continue;
      const float* source = plane + ptrdiff_t(y) * width + start;
      if (step == 1)
        std::copy(source + from, source + until, row + from);
      else
        for (int c = from; c < until; ++c) row[c] = source[ptrdiff_t(c) * step];
    }
  }
}

// The rows of a strided or plain plane from an output's sums.
void write_plane(float* plane, const float* sums, const Direction& direction, const Tile& tile, int part, float bias,
                 bool accumulate) {
  const int across = direction.step[1], row = part / across, column = part % across;
  for (int r = 0; r < direction.grid[0]; ++r) {
    const int y = r * direction.step[0] + row;
    if (y >= direction.output.height) break;
    float* to = plane + size_t(y) * direction.output.width;
    const float* from = sums + size_t(r) * tile.pitch;
    for (int c = 0, x = column; x < direction.output.width; ++c, x += across)
      to[x] = (accumulate ? to[x] : bias) + from[c];
  }
}

struct Task {
  const Direction& direction;
  const Tile& tile;
  const Stream& stream;
};

// work(offsets), which have 16 or 32 bits.
template <class Work>
void with_offsets(const Stream& stream, const Work& work) {
  if (stream.wide.empty())
    work(stream.offsets.data());
  else
    work(stream.wide.data());
}

template <int COUNT, class Offset>
FEDMEF_INLINE void convolve_run(const float* buffer, const Offset* offsets, const float* values, int count, float* to,
                                bool first) {
  Vector sums[COUNT];
  FEDMEF_UNROLL for (int i = 0; i < COUNT; ++i) sums[i] = first ? Vector{} : load(to + i * LANES);
  for (int i = 0; i < count; ++i) {
    const float* pixels = buffer + offsets[i];
    const float value = values[i];
    FEDMEF_UNROLL for (int v = 0; v < COUNT; ++v) sums[v] += value * load(pixels + v * LANES);
  }
  FEDMEF_UNROLL for (int i = 0; i < COUNT; ++i) store(to + i * LANES, sums[i]);
}

template <class Offset>
void convolve_images(Threads& threads, const Task& task, const Offset* offsets, int images, const float* values,
                     const float* bias, const float* x, float* y, bool accumulate) {
  const Stream& stream = task.stream;
  const Direction& direction = task.direction;
  const Flat flat{direction, task.tile};
  const size_t length = flat.length(), buffer_size = (flat.buffer(stream.block) + 15) / 16 * 16;
  const size_t plane = direction.input.plane(), out_plane = direction.output.plane();
  const int parts = direction.step[0] * direction.step[1], vectors = int(length / LANES);
  threads.reserve((buffer_size + length * size_t(stream.outputs)) * sizeof(float));
  threads.run(images, [&](int image, int thread) {
    float* buffer = static_cast<float*>(threads.scratch(thread));
    float* sums = buffer + buffer_size;
    std::fill_n(buffer, buffer_size, 0.0f);
    for (int group = 0; group < stream.groups; ++group) {
      const float* from = x + (size_t(image) * direction.input.channels + size_t(group) * stream.inputs) * plane;
      for (int b = 0; b < stream.blocks; ++b) {
        const int channel = b * stream.block, channels = std::min(stream.block, stream.inputs - channel);
        for (int c = 0; c < channels; ++c)
          copy_plane(buffer + size_t(c) * task.tile.channel, from + (channel + c) * plane, direction, task.tile);
        const uint32_t* segments = stream.segments.data() + (size_t(group) * stream.blocks + b) * stream.outputs;
        for (int vector = 0; vector < vectors; vector += MOST) {
          with_constant<MOST>(std::min(MOST, vectors - vector), [&]<int COUNT>() {
            for (int output = 0; output < stream.outputs; ++output) {
              const uint32_t start = segments[output];
              convolve_run<COUNT>(buffer + vector * LANES, offsets + start, values + start,
                                  int(segments[output + 1] - start), sums + output * length + vector * LANES, b == 0);
            }
          });
        }
      }
      for (int output = 0; output < stream.outputs; ++output) {
        const int channel = (group * stream.outputs + output) / parts;
        write_plane(y + (size_t(image) * direction.output.channels + channel) * out_plane, sums + output * length,
                    direction, task.tile, output % parts, bias == nullptr ? 0.0f : bias[channel], accumulate);
      }
    }
  });
}

template <int COUNT, class Offset>
FEDMEF_INLINE void gradient_run(const float* buffer, const Offset* offsets, int count, const float* dy,
                                Products& products) {
  Vector gradient[COUNT];
  FEDMEF_UNROLL for (int v = 0; v < COUNT; ++v) gradient[v] = load(dy + v * LANES);
  for (; count > 0; count -= Products::MOST_AT_ONCE, offsets += Products::MOST_AT_ONCE) {
    const int some = std::min(count, Products::MOST_AT_ONCE);
    Vector* to = products.room_for(some);
    for (int i = 0; i < some; ++i)
      to[i] = product<COUNT>(gradient, buffer + offsets[i], [](int v) { return size_t(v) * LANES; });
  }
}

struct GradientTask {
  const ConvolutionPlan& plan;
  int images;
  Source source;
  const float* dy;
};

// work<COUNT>(group, first output, last output, block, buffer from the vector on, gradients) for outputs [first, last);
// output i's gradients there are at gradients(i).
template <class Work>
void each_run(const GradientTask& task, int first, int last, float* memory, const Work& work) {
  const ConvolutionPlan& plan = task.plan;
  const Direction& direction = plan.forward;
  const Stream& stream = plan.forward_stream;
  const Tile& tile = plan.small_forward_tile;
  const Flat flat{direction, tile};
  const size_t length = flat.length(), buffer_size = (flat.buffer(stream.block) + 15) / 16 * 16;
  const size_t plane = direction.input.plane(), out_plane = direction.output.plane();
  const int vectors = int(length / LANES);
  float *buffer = memory, *gradients = memory + buffer_size, *expanded = gradients + length * size_t(stream.outputs);
  float* converted = expanded + plane;
  std::fill_n(buffer, buffer_size, 0.0f);
  std::fill_n(gradients, length * size_t(stream.outputs), 0.0f);  // between the rows they stay 0
  for (int image = 0; image < task.images; ++image) {
    for (int group = first / stream.outputs; group * stream.outputs < last; ++group) {
      const int own_first = std::max(0, first - group * stream.outputs);
      const int own_last = std::min(stream.outputs, last - group * stream.outputs);
      for (int output = own_first; output < own_last; ++output) {
        const float* from =
            task.dy + (size_t(image) * direction.output.channels + group * stream.outputs + output) * out_plane;
        for (int r = 0; r < direction.grid[0]; ++r)
          std::copy_n(from + size_t(r) * direction.grid[1], direction.grid[1],
                      gradients + output * length + size_t(r) * tile.pitch);
      }
      for (int b = 0; b < stream.blocks; ++b) {
        const int channel = b * stream.block, channels = std::min(stream.block, stream.inputs - channel);
        for (int c = 0; c < channels; ++c) {
          const size_t number = size_t(image) * direction.input.channels + size_t(group) * stream.inputs + channel + c;
          const float* from = task.source.dense == nullptr ? expanded : task.source.dense + number * plane;
          if (task.source.dense == nullptr)
            expand_bits(*task.source.pruned, number * plane, task.source.pruned->starts[number], plane, expanded,
                        converted);
          copy_plane(buffer + size_t(c) * tile.channel, from, direction, tile);
        }
        for (int vector = 0; vector < vectors; vector += MOST) {
          with_constant<MOST>(std::min(MOST, vectors - vector), [&]<int COUNT>() {
            work.template operator()<COUNT>(group, own_first, own_last, b, buffer + vector * LANES,
                                            [&](int output) { return gradients + output * length + vector * LANES; });
          });
        }
      }
    }
  }
}

size_t scratch_floats(const ConvolutionPlan& plan) {
  const Flat flat{plan.forward, plan.small_forward_tile};
  const Stream& stream = plan.forward_stream;
  return (flat.buffer(stream.block) + 15) / 16 * 16 + flat.length() * size_t(stream.outputs) +
         2 * plan.forward.input.plane() + 64;
}

}  // namespace

void small_convolve(Threads& threads, const ConvolutionPlan& plan, Layout layout, const float* values,
                    const float* bias, const float* x, float* y, bool accumulate) {
  const Task task{plan.forward, plan.small_forward_tile, plan.forward_stream};
  with_offsets(task.stream, [&](const auto* offsets) {
    convolve_images(threads, task, offsets, layout.images, values, bias, x, y, accumulate);
  });
}

void small_input_gradient(Threads& threads, const ConvolutionPlan& plan, Layout layout, const float* values,
                          const float* dy, float* dx, bool accumulate) {
  const Task task{plan.backward, plan.small_backward_tile, plan.backward_stream};
  with_offsets(task.stream, [&](const auto* offsets) {
    convolve_images(threads, task, offsets, layout.images, values, nullptr, dy, dx, accumulate);
  });
}

void small_weight_gradient(Threads& threads, const ConvolutionPlan& plan, Layout layout, Source source, const float* dy,
                           float* d_values) {
  const Stream& stream = plan.forward_stream;
  const int chunks = std::min(threads.count(), plan.filters());
  threads.reserve(scratch_floats(plan) * sizeof(float));
  std::fill_n(d_values, plan.active, 0.0f);
  threads.run(chunks, [&](int chunk, int thread) {
    const int first = begin_of(chunk, chunks, plan.filters()), last = begin_of(chunk + 1, chunks, plan.filters());
    with_offsets(stream, [&](const auto* offsets) {
      each_run({plan, layout.images, source, dy}, first, last, static_cast<float*>(threads.scratch(thread)),
               [&]<int COUNT>(int group, int begin, int end, int b, const float* buffer, const auto& gradient) {
                 const uint32_t* segments =
                     stream.segments.data() + (size_t(group) * stream.blocks + b) * stream.outputs;
                 Products products(d_values + segments[begin]);
                 for (int output = begin; output < end; ++output)
                   gradient_run<COUNT>(buffer, offsets + segments[output], int(segments[output + 1] - segments[output]),
                                       gradient(output), products);
                 products.finish();
               });
    });
  });
}

void small_dense_weight_gradient(Threads& threads, const ConvolutionPlan& plan, Layout layout, Source source,
                                 const float* dy, int first, int last, float* gradient) {
  const Stream& stream = plan.forward_stream;
  const std::vector<int> taps = tap_offsets(plan, plan.small_forward_tile);
  std::vector<uint32_t> offsets;
  for (int channel = 0; channel < stream.block; ++channel)
    for (const int tap : taps) offsets.push_back(uint32_t(channel * plan.small_forward_tile.channel + tap));
  const int chunks = std::min(threads.count(), last - first);
  threads.reserve(scratch_floats(plan) * sizeof(float));
  std::fill_n(gradient, size_t(last - first) * plan.filter_size(), 0.0f);
  threads.run(chunks, [&](int chunk, int thread) {
    const int from = first + begin_of(chunk, chunks, last - first),
              to = first + begin_of(chunk + 1, chunks, last - first);
    each_run({plan, layout.images, source, dy}, from, to, static_cast<float*>(threads.scratch(thread)),
             [&]<int COUNT>(int group, int begin, int end, int b, const float* buffer, const auto& gradients) {
               const int channel = b * stream.block, channels = std::min(stream.block, stream.inputs - channel);
               for (int output = begin; output < end; ++output) {
                 const int filter = group * stream.outputs + output - first;
                 Products products(gradient + filter * plan.filter_size() + channel * taps.size());
                 gradient_run<COUNT>(buffer, offsets.data(), channels * int(taps.size()), gradients(output), products);
                 products.finish();
               }
             });
  });
}

}  // namespace fedmef::FEDMEF_ISA
