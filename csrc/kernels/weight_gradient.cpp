// The gradient for the active weights of a sparse convolution, and the dense one that growth scores need.
//
// A tile of the output's gradient and the buffer of its input meet for each active weight: the sum over pixels and
// images of their product. The bands of a batch are at most PARTS parts, each with sums of its own that are added in
// order: the same bits for any number of threads.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/bands.h"
#include "kernels/dense_gradient.h"
#include "kernels/depthwise.h"
#include "kernels/offsets.h"
#include "kernels/parts.h"
#include "kernels/products.h"
#include "kernels/small_batch.h"
#include "kernels/tile_buffer.h"
#include "threads.h"

namespace fedmef::FEDMEF_ISA {

namespace {

constexpr int PARTS = 4;
constexpr size_t GRADIENT_BYTES = 256 * 1024;  // of the output's gradients that a tile copies at once: part of the L2

// What one tile contributes to the weights of one segment, whose offsets are next.
template <int HEIGHT, int WIDTH, int PITCH>
FEDMEF_INLINE void gradient_segment(const float* buffer, size_t runtime_pitch, OffsetsAhead& offsets, int count,
                                    const Vector* tile, Products& products) {
  const size_t pitch = PITCH > 0 ? PITCH * LANES : runtime_pitch / sizeof(float);
  const auto distance = [&](int i) { return size_t(i / WIDTH) * pitch + size_t(i % WIDTH) * LANES; };
  Vector gradient[HEIGHT * WIDTH];
  FEDMEF_UNROLL for (int i = 0; i < HEIGHT * WIDTH; ++i) gradient[i] = tile[i];
  for (; count > 0; count -= Products::MOST_AT_ONCE) {
    const int some = std::min(count, Products::MOST_AT_ONCE);
    Vector* to = products.room_for(some);
    offsets.each(some, [&](int i, uint16_t offset) {
      to[i] = product<HEIGHT * WIDTH>(gradient, buffer + offset / sizeof(float), distance);
    });
  }
}

// The same for several outputs: everything that one buffer is good for. `segments` says where theirs begin.
template <int HEIGHT, int WIDTH, int PITCH>
FEDMEF_NOT_INLINE void gradient_buffer(const float* buffer, size_t pitch, const uint16_t* stream,
                                       const uint32_t* segments, int outputs, const Vector* tiles, size_t tile_size,
                                       Prefetcher next, float* d_values) {
  OffsetsAhead offsets(stream + segments[0]);
  Products products(d_values + segments[0]);
  for (int output = 0; output < outputs; ++output, tiles += tile_size) {
    next.advance();
    gradient_segment<HEIGHT, WIDTH, PITCH>(buffer, pitch, offsets, int(segments[output + 1] - segments[output]), tiles,
                                           products);
  }
  products.finish();
}

struct Task {
  const ConvolutionPlan& plan;
  Layout layout;
  Source source;
  const float* dy;
};

// The output's gradients of one tile, a channel after the other, 0 beyond the plane.
template <int HEIGHT, int WIDTH>
void copy_gradients(Vector* to, const float* dy, size_t plane, int width, int outputs, int rows, int columns) {
  for (int output = 0; output < outputs; ++output, dy += plane, to += HEIGHT * WIDTH) {
    if (rows == HEIGHT && columns == WIDTH) {
      FEDMEF_UNROLL for (int r = 0; r < HEIGHT; ++r) {
        FEDMEF_UNROLL for (int c = 0; c < WIDTH; ++c) to[r * WIDTH + c] = load(dy + (size_t(r) * width + c) * LANES);
      }
    } else {
      for (int r = 0; r < HEIGHT; ++r)
        for (int c = 0; c < WIDTH; ++c)
          to[r * WIDTH + c] = r < rows && c < columns ? load(dy + (size_t(r) * width + c) * LANES) : Vector{};
    }
  }
}

// work<rows>(group, first output, outputs, block of channels, prefetcher) for everything in a band; the rows are those
// of a tile that are inside of the plane.
template <int HEIGHT, int WIDTH, int EXTENT, class Work>
void each_buffer(const Task& task, const Band& band, const float* rows, float* buffer, Vector* tiles, int at_once,
                 int first_output, int last_output, const Work& work) {
  const ConvolutionPlan& plan = task.plan;
  const Direction& direction = plan.forward;
  const Stream& stream = plan.forward_stream;
  const size_t gradient_plane = direction.output.plane() * LANES;
  const bool expanded = task.source.pruned != nullptr;
  const size_t plane = expanded ? size_t(band.input_last - band.input_first) * direction.input.width * LANES
                                : direction.input.plane() * LANES;
  const float* image = expanded ? rows : task.source.dense + size_t(band.block) * direction.input.channels * plane;
  const Rows there = expanded ? Rows{band.input_first, band.input_last} : Rows{0, direction.input.height};
  for (int row = band.first; row < band.last; row += HEIGHT) {
    for (int column = 0; column < direction.grid[1]; column += WIDTH) {
      const Place place{row, column};
      const int inside_rows = std::min(HEIGHT, direction.grid[0] - row);
      const int inside_columns = std::min(WIDTH, direction.grid[1] - column);
      for (int group = first_output / stream.outputs; group * stream.outputs < last_output; ++group) {
        const int own_first = std::max(0, first_output - group * stream.outputs);
        const int own_last = std::min(stream.outputs, last_output - group * stream.outputs);
        const float* x = image + size_t(group) * stream.inputs * plane;
        for (int begin = own_first; begin < own_last; begin += at_once) {
          const int outputs = std::min(at_once, own_last - begin);
          const float* dy =
              task.dy +
              (size_t(band.block) * direction.output.channels + group * stream.outputs + begin) * gradient_plane +
              (size_t(row) * direction.output.width + column) * LANES;
          copy_gradients<HEIGHT, WIDTH>(tiles, dy, gradient_plane, direction.output.width, outputs, inside_rows,
                                        inside_columns);
          for (int b = 0; b < stream.blocks; ++b) {
            const int channel = b * stream.block, channels = std::min(stream.block, stream.inputs - channel);
            fill_buffer<HEIGHT, WIDTH, EXTENT>(buffer, x + channel * plane, plane, channels, direction,
                                               plan.forward_tile, place, there);
            Prefetcher next;
            if (b + 1 == stream.blocks && column + WIDTH < direction.grid[1])  // the gradients of the tile to the right
              next =
                  Prefetcher(dy + WIDTH * LANES, gradient_plane, size_t(direction.output.width) * LANES, outputs,
                             inside_rows, size_t(std::min(WIDTH, direction.grid[1] - column - WIDTH)) * LANES, outputs);
            else if (!expanded && b + 1 < stream.blocks)
              next = Prefetcher(direction, plan.forward_tile, x + (channel + stream.block) * plane, plane,
                                std::min(stream.block, stream.inputs - channel - stream.block), place, outputs);
            with_constant<HEIGHT>(inside_rows,
                                  [&]<int ROWS>() { work.template operator()<ROWS>(group, begin, outputs, b, next); });
          }
        }
      }
    }
  }
}

size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

int outputs_at_once(int outputs, size_t tile_bytes) {
  const int most = int(std::max<size_t>(1, GRADIENT_BYTES / tile_bytes)), turns = (outputs + most - 1) / most;
  return (outputs + turns - 1) / turns;
}

// How the scratch memory of a thread is used: the buffer, tiles of gradients, expanded rows, one row of values.
template <int HEIGHT, int WIDTH>
struct Memory {
  Memory(const Task& task, const Bands& bands) {
    const ConvolutionPlan& plan = task.plan;
    at_once = outputs_at_once(plan.forward_stream.outputs, HEIGHT * WIDTH * sizeof(Vector));
    tiles = padded(plan.forward_tile.pixels(plan.forward_stream.block) * sizeof(Vector));
    rows = tiles + padded(size_t(at_once) * HEIGHT * WIDTH * sizeof(Vector));
    const size_t row = task.source.pruned == nullptr ? 0 : size_t(plan.input.width) * sizeof(Vector);
    values = rows + padded(bands.most_rows() * row * size_t(plan.input.channels));
    bytes = values + padded(row + sizeof(Vector));
  }

  int at_once;
  size_t tiles, rows, values, bytes;
};

// work<rows>(group, first output, outputs, block of channels, buffer, tiles, prefetcher) for everything in some bands.
template <int HEIGHT, int WIDTH, int EXTENT, class Work>
void each_band(const Task& task, const Bands& bands, int first, int last, int first_output, int last_output,
               const Memory<HEIGHT, WIDTH>& memory, void* scratch, const Work& work) {
  char* base = static_cast<char*>(scratch);
  float *buffer = static_cast<float*>(scratch), *rows = reinterpret_cast<float*>(base + memory.rows);
  Vector* tiles = reinterpret_cast<Vector*>(base + memory.tiles);
  std::optional<Expansion> expansion;
  if (task.source.pruned != nullptr)
    expansion.emplace(*task.source.pruned, task.plan.input, rows, reinterpret_cast<float*>(base + memory.values));
  for (int number = first; number < last; ++number) {
    const Band band = bands.at(number);
    if (expansion) expansion->expand(band, bands.at(number + 1));
    each_buffer<HEIGHT, WIDTH, EXTENT>(task, band, rows, buffer, tiles, memory.at_once, first_output, last_output,
                                       [&]<int ROWS>(int group, int begin, int outputs, int block, Prefetcher& next) {
                                         work.template operator()<ROWS>(group, begin, outputs, block, buffer, tiles,
                                                                        next);
                                       });
  }
}

template <int HEIGHT, int WIDTH, int EXTENT>
void active_weights(Threads& threads, const Task& task, float* d_values) {
  constexpr int PITCH = EXTENT < 0 ? 0 : WIDTH + EXTENT;
  const ConvolutionPlan& plan = task.plan;
  const Stream& stream = plan.forward_stream;
  const Bands bands(plan, task.layout);
  const Memory<HEIGHT, WIDTH> memory(task, bands);
  const int parts = std::min(PARTS, bands.count());
  const size_t pitch = size_t(plan.forward_tile.pitch) * sizeof(Vector);
  threads.reserve(memory.bytes);
  const auto one_part = [&](int part, int thread, float* d) {
    std::fill_n(d, plan.active, 0.0f);
    const int first = int(int64_t(bands.count()) * part / parts),
              last = int(int64_t(bands.count()) * (part + 1) / parts);
    each_band<HEIGHT, WIDTH, EXTENT>(
        task, bands, first, last, 0, plan.filters(), memory, threads.scratch(thread),
        [&]<int ROWS>(int group, int begin, int outputs, int block, const float* buffer, const Vector* tiles,
                      Prefetcher& next) {
          const uint32_t* segments =
              stream.segments.data() + (size_t(group) * stream.blocks + block) * stream.outputs + begin;
          gradient_buffer<ROWS, WIDTH, PITCH>(buffer, pitch, stream.offsets.data(), segments, outputs, tiles,
                                              HEIGHT * WIDTH, next, d);
        });
  };
  // Part 0 has its sums where they belong; one thread needs room for one other part, several for all of them.
  const bool alone = threads.count() == 1;
  const int others = alone ? std::min(1, parts - 1) : parts - 1;
  std::vector<float> partial(size_t(others) * plan.active);
  const auto sums_of = [&](int part) {
    return part == 0 ? d_values : partial.data() + (alone ? 0 : size_t(part - 1) * plan.active);
  };
  const auto add = [&](int part) {
    const float* sums = sums_of(part);
    for (size_t i = 0; i < plan.active; ++i) d_values[i] += sums[i];
  };
  if (!alone) threads.run(parts, [&](int part, int thread) { one_part(part, thread, sums_of(part)); });
  for (int part = 0; part < parts; ++part) {
    if (alone) one_part(part, 0, sums_of(part));
    if (part > 0) add(part);
  }
}

// All weights of the filters [first, last), as if none were pruned. Threads share the filters.
template <int HEIGHT, int WIDTH>
void all_weights(Threads& threads, const Task& task, int first, int last, float* gradient) {
  const ConvolutionPlan& plan = task.plan;
  const Stream& stream = plan.forward_stream;
  const Bands bands(plan, task.layout);
  const Memory<HEIGHT, WIDTH> memory(task, bands);
  const std::vector<int> taps = tap_offsets(plan, plan.forward_tile);
  std::vector<uint16_t> offsets;
  for (int channel = 0; channel < stream.block; ++channel)
    for (const int tap : taps)
      offsets.push_back(uint16_t((channel * plan.forward_tile.channel + tap) * int(sizeof(Vector))));
  offsets.resize(offsets.size() + OFFSETS_AHEAD);
  const int chunks = std::min(threads.count(), last - first);
  const size_t pitch = size_t(plan.forward_tile.pitch) * sizeof(Vector);
  threads.reserve(memory.bytes);
  std::fill_n(gradient, size_t(last - first) * plan.filter_size(), 0.0f);
  threads.run(chunks, [&](int chunk, int thread) {
    const int from = first + begin_of(chunk, chunks, last - first),
              to = first + begin_of(chunk + 1, chunks, last - first);
    each_band<HEIGHT, WIDTH, -1>(
        task, bands, 0, bands.count(), from, to, memory, threads.scratch(thread),
        [&]<int ROWS>(int group, int begin, int outputs, int block, const float* buffer, const Vector* tiles,
                      Prefetcher&) {
          const int channel = block * stream.block, channels = std::min(stream.block, stream.inputs - channel);
          for (int output = 0; output < outputs; ++output) {
            const int filter = group * stream.outputs + begin + output - first;
            OffsetsAhead all(offsets.data());
            Products products(gradient + size_t(filter) * plan.filter_size() + channel * taps.size());
            gradient_segment<ROWS, WIDTH, 0>(buffer, pitch, all, channels * int(taps.size()),
                                             tiles + size_t(output) * (HEIGHT * WIDTH), products);
            products.finish();
          }
        });
  });
}

}  // namespace

void weight_gradient(Threads& threads, const ConvolutionPlan& plan, Layout layout, Source source, const float* dy,
                     float* d_values) {
  if (layout.lanes == 1) return small_weight_gradient(threads, plan, layout, source, dy, d_values);
  if (is_depthwise(plan)) return depthwise_weight_gradient(threads, plan, layout, source, dy, d_values);
  if (is_dense(plan)) return dense_gradient(threads, plan, layout, source, dy, d_values);
  with_tile(plan.forward, plan.forward_tile, [&]<int HEIGHT, int WIDTH, int EXTENT>() {
    active_weights<HEIGHT, WIDTH, EXTENT>(threads, {plan, layout, source, dy}, d_values);
  });
}

void dense_weight_gradient(Threads& threads, const ConvolutionPlan& plan, Layout layout, Source source, const float* dy,
                           int first, int last, float* gradient) {
  if (layout.lanes == 1) return small_dense_weight_gradient(threads, plan, layout, source, dy, first, last, gradient);
  with_tile(plan.forward, plan.forward_tile, [&]<int HEIGHT, int WIDTH, int EXTENT>() {
    all_weights<HEIGHT, WIDTH>(threads, {plan, layout, source, dy}, first, last, gradient);
  });
}

}  // namespace fedmef::FEDMEF_ISA
