// The sparse convolution, and its gradient for the input, which is the same of the transposed stream.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/clamp.h"
#include "kernels/depthwise.h"
#include "kernels/offsets.h"
#include "kernels/parts.h"
#include "kernels/small_batch.h"
#include "kernels/tile_buffer.h"
#include "kernels/tile_order.h"
#include "threads.h"

namespace fedmef::FEDMEF_ISA {

namespace {

constexpr size_t PARTIAL_BYTES = 384 * 1024;  // of the sums that wait for the next block of channels: part of the L2

constexpr int ITEMS_OF_A_THREAD = 4;  // at least, where there are enough tiles: nobody waits long for the last one

constexpr int VECTORS_IN_LINE = std::max<int>(1, 64 / sizeof(Vector));  // of the cache

// Where the tile of one output channel lies in memory, and how much of it is inside of the plane.
struct Target {
  float* pixels;
  size_t row, column;  // floats from row to row and from column to column
  int rows, columns;
};

// A vector of the bits of a ReLU is whole bytes, so that every byte has one owner.
constexpr bool RECTIFIES = LANES % 8 == 0;
using Bits = std::conditional_t<LANES == 16, uint16_t, uint8_t>;
using Then = Rectification::Kind;

// Stores a vector of a result `y`, whose element i has bit i.
template <Then THEN, bool STREAMED = false>
FEDMEF_INLINE void finish(const float* y, const Rectification& then, float* to, Vector v) {
  if constexpr (THEN == Then::relu) {
    const Clamp clamp = {broadcast(then.upper), then.at_zero};
    if (then.bits != nullptr) {
      const Bits inside = Bits(mask_bits(clamp.inside(v)));
      std::memcpy(then.bits + (to - y) / 8, &inside, sizeof inside);
    }
    v = clamp(v);
  } else if constexpr (THEN == Then::relu_backward) {
    Bits inside;
    std::memcpy(&inside, then.bits + (to - y) / 8, sizeof inside);
    v = where(bits_mask(inside), v);
  }
  if constexpr (STREAMED)
    store_past_caches(to, v);
  else
    store(to, v);
}

struct Task {
  const Direction& direction;
  const Tile& tile;
  const Stream& stream;
  const float *values, *bias, *x;
  float* y;
  bool accumulate;
  Layout layout;
  Rectification then;
  bool dense;  // every weight is active, and every output channel meets the same offsets
};

// All active weights of one output channel in one block, on one tile of pixels held in registers.
// HEIGHT may be less than the tile's, at the last row. PITCH is the buffer's in pixels, 0 when only known at run time.
// FIRST and LAST say which block it is: sums begin at the bias or at what is there, and end in the result.
template <int HEIGHT, int WIDTH, int PITCH, bool FIRST, bool LAST, Then THEN>
FEDMEF_INLINE void convolve_segment(const Task& task, const float* buffer, size_t runtime_pitch, OffsetsAhead& offsets,
                                    const float* values, int count, Vector bias, Vector* partial, const Target& target,
                                    bool streamed) {
  constexpr int PIXELS = HEIGHT * WIDTH;
  const size_t pitch = PITCH > 0 ? PITCH * sizeof(Vector) : runtime_pitch;
  Vector sums[PIXELS];
  if constexpr (!FIRST) {
    FEDMEF_UNROLL for (int i = 0; i < PIXELS; ++i) sums[i] = partial[i];
  } else if (!task.accumulate) {
    FEDMEF_UNROLL for (int i = 0; i < PIXELS; ++i) sums[i] = bias;
  } else {
    FEDMEF_UNROLL for (int r = 0; r < HEIGHT; ++r) {
      FEDMEF_UNROLL for (int c = 0; c < WIDTH; ++c) sums[r * WIDTH + c] =
          r < target.rows && c < target.columns ? load(target.pixels + r * target.row + c * target.column) : Vector{};
    }
  }
  offsets.each(count, [&](int i, uint16_t offset) {
    const char* pixel = reinterpret_cast<const char*>(buffer) + offset;
    const float value = values[i];
    FEDMEF_UNROLL for (int r = 0; r < HEIGHT; ++r) {
      FEDMEF_UNROLL for (int c = 0; c < WIDTH; ++c) sums[r * WIDTH + c] +=
          value * *reinterpret_cast<const Vector*>(pixel + r * pitch + c * sizeof(Vector));
    }
  });
  if constexpr (!LAST) {
    FEDMEF_UNROLL for (int i = 0; i < PIXELS; ++i) partial[i] = sums[i];
  } else if (target.rows == HEIGHT && target.columns == WIDTH) {
    const auto finish_all = [&]<bool STREAMED>() {
      FEDMEF_UNROLL for (int r = 0; r < HEIGHT; ++r) {
        FEDMEF_UNROLL for (int c = 0; c < WIDTH; ++c) finish<THEN, STREAMED>(
            task.y, task.then, target.pixels + r * target.row + c * target.column, sums[r * WIDTH + c]);
      }
    };
    if (streamed)
      finish_all.template operator()<true>();
    else
      finish_all.template operator()<false>();
  } else {
    Vector kept[PIXELS];  // a copy: `sums` stays in registers
    FEDMEF_UNROLL for (int i = 0; i < PIXELS; ++i) kept[i] = sums[i];
    for (int r = 0; r < target.rows; ++r)
      for (int c = 0; c < target.columns; ++c)
        finish<THEN>(task.y, task.then, target.pixels + r * target.row + c * target.column, kept[r * WIDTH + c]);
  }
}

// Outputs of a dense layer that share what is loaded of the buffer.
constexpr int SHARING = MANY_REGISTERS ? 6 : 4;

// All weights of SHARING output channels of a dense layer whose input is one block. Every channel meets the same
// offsets, so a column of the tile is loaded once for all of them.
template <int HEIGHT, int WIDTH, int PITCH, Then THEN>
FEDMEF_INLINE void convolve_dense(const Task& task, const float* buffer, size_t runtime_pitch, const uint16_t* offsets,
                                  const float* values, int count, const Vector* bias, const Target* targets) {
  const size_t pitch = PITCH > 0 ? PITCH * sizeof(Vector) : runtime_pitch;
  for (int column = 0; column < targets[0].columns; ++column) {
    const auto place = [&](int k, int r) {
      return targets[k].pixels + r * targets[k].row + column * targets[k].column;
    };
    Vector sums[SHARING][HEIGHT];
    FEDMEF_UNROLL for (int k = 0; k < SHARING; ++k) {
      FEDMEF_UNROLL for (int r = 0; r < HEIGHT; ++r) sums[k][r] = task.accumulate ? load(place(k, r)) : bias[k];
    }
    const char* pixels = reinterpret_cast<const char*>(buffer) + column * sizeof(Vector);
    for (int i = 0; i < count; ++i) {
      Vector factors[HEIGHT];
      FEDMEF_UNROLL for (int r = 0; r < HEIGHT; ++r) factors[r] =
          *reinterpret_cast<const Vector*>(pixels + offsets[i] + r * pitch);
      FEDMEF_UNROLL for (int k = 0; k < SHARING; ++k) {
        const float value = values[k * count + i];
        FEDMEF_UNROLL for (int r = 0; r < HEIGHT; ++r) sums[k][r] += value * factors[r];
      }
    }
    FEDMEF_UNROLL for (int k = 0; k < SHARING; ++k) {
      FEDMEF_UNROLL for (int r = 0; r < HEIGHT; ++r) finish<THEN>(task.y, task.then, place(k, r), sums[k][r]);
    }
  }
}

// The channels that are the outputs [0, stream.outputs) of a group, a tile at a time.
class Targets {
 public:
  Targets(const Task& task, int block, Place place) {
    const Direction& direction = task.direction;
    const int height = direction.output.height, width = direction.output.width;
    const int down = direction.step[0], across = direction.step[1];
    parts_ = down * across;
    plane_ = direction.output.plane() * LANES;
    float* image = task.y + size_t(block) * direction.output.channels * plane_;
    for (int part = 0; part < std::min(parts_, KNOWN); ++part)
      known_[part] = part_at(image, part, place, task.tile, height, width, down, across);
    if (parts_ > KNOWN) {
      for (int part = 0; part < parts_; ++part)
        others_.push_back(part_at(image, part, place, task.tile, height, width, down, across));
    }
  }

  FEDMEF_INLINE Target at(int output) const {
    if (parts_ == 1) return moved(known_[0], output);
    if (parts_ == 4) return moved(known_[output & 3], output >> 2);
    return moved(others_.empty() ? known_[output % parts_] : others_[size_t(output % parts_)], output / parts_);
  }

 private:
  static constexpr int KNOWN = 4;

  static Target part_at(float* image, int part, Place place, const Tile& tile, int height, int width, int down,
                        int across) {
    const int y = place.row * down + part / across, x = place.column * across + part % across;
    Target target;
    target.row = size_t(down) * width * LANES;
    target.column = size_t(across) * LANES;
    target.rows = y < height ? std::min(tile.height, (height - y + down - 1) / down) : 0;
    target.columns = x < width ? std::min(tile.width, (width - x + across - 1) / across) : 0;
    target.pixels = image + (ptrdiff_t(y) * width + x) * LANES;
    return target;
  }

  FEDMEF_INLINE Target moved(Target target, int channel) const {
    target.pixels += size_t(channel) * plane_;
    return target;
  }

  int parts_;
  size_t plane_;
  Target known_[KNOWN];
  std::vector<Target> others_;
};

// With a step between columns it is every second line, which is better than none.
FEDMEF_INLINE void fetch_for_writing(const Target& target) {
  for (int r = 0; r < target.rows; ++r)
    for (int c = 0; c < target.columns; c += VECTORS_IN_LINE)
      __builtin_prefetch(target.pixels + r * target.row + c * target.column, 1, 3);
}

// One block of channels for the outputs [begin, end) of a group: everything that one buffer is good for.
template <int HEIGHT, int WIDTH, int PITCH, bool FIRST, bool LAST, Then THEN>
FEDMEF_NOT_INLINE void convolve_buffer(const Task& task, const float* buffer, Vector* partial, const Targets& targets,
                                       Prefetcher next, int group, int b, int begin, int end, int filled) {
  const Stream& stream = task.stream;
  const size_t pitch = size_t(task.tile.pitch) * sizeof(Vector);
  const uint32_t* segments = stream.segments.data() + (size_t(group) * stream.blocks + b) * stream.outputs;
  int output = begin;
  if constexpr (FIRST && LAST) {
    // HEIGHT rows are inside of the plane here: an output's grid is the plane itself.
    for (; task.dense && output + SHARING <= end; output += SHARING) {
      const uint32_t start = segments[output];
      Vector biases[SHARING] = {};
      Target own[SHARING];
      for (int k = 0; k < SHARING; ++k) {
        const int global = group * stream.outputs + output + k;
        next.advance();
        own[k] = targets.at(global);
        if (output + SHARING + k < end) fetch_for_writing(targets.at(global + SHARING));
        if (task.bias != nullptr)
          for (int lane = 0; lane < filled; ++lane) biases[k][lane] = task.bias[global];
      }
      convolve_dense<HEIGHT, WIDTH, PITCH, THEN>(task, buffer, pitch, stream.offsets.data() + start,
                                                 task.values + start, int(segments[output + 1] - start), biases, own);
    }
  }
  // A dense layer's other outputs are stored as usual, and so are these.
  const bool streamed = !task.dense && goes_past_caches(task.y, task.layout.elements(task.direction.output),
                                                        task.direction.output.width, task.direction.step[1]);
  const bool fetches = (FIRST && task.accumulate) || (LAST && !streamed);
  OffsetsAhead offsets(stream.offsets.data() + segments[output]);
  for (; output < end; ++output) {
    const int global = group * stream.outputs + output;
    const uint32_t start = segments[output];
    next.advance();
    if (fetches && output + 2 < end) fetch_for_writing(targets.at(global + 2));
    Vector bias{};
    if (FIRST && task.bias != nullptr)  // only ever forward, where an output is a channel
      for (int lane = 0; lane < filled; ++lane) bias[lane] = task.bias[global];
    convolve_segment<HEIGHT, WIDTH, PITCH, FIRST, LAST, THEN>(
        task, buffer, pitch, offsets, task.values + start, int(segments[output + 1] - start), bias,
        partial + size_t(output - begin) * (HEIGHT * WIDTH), targets.at(global), streamed);
  }
}

// work<whether it is the first block, whether it is the last, what follows>(): sums in registers want no branches.
template <class Work>
FEDMEF_INLINE void with_ends(bool first, bool last, Then then, const Work& work) {
  const auto with_last = [&]<bool FIRST>() {
    if (!last) return work.template operator()<FIRST, false, Then::none>();
    if constexpr (RECTIFIES) {
      if (then == Then::relu) return work.template operator()<FIRST, true, Then::relu>();
      if (then == Then::relu_backward) return work.template operator()<FIRST, true, Then::relu_backward>();
    }
    work.template operator()<FIRST, true, Then::none>();
  };
  if (first)
    with_last.template operator()<true>();
  else
    with_last.template operator()<false>();
}

template <int HEIGHT, int WIDTH, int EXTENT>
void convolve_tile(const Task& task, const Tiles& tiles, int block, int tile, float* buffer, Vector* partial,
                   int outputs_at_once) {
  constexpr int PITCH = EXTENT < 0 ? 0 : WIDTH + EXTENT;
  const Stream& stream = task.stream;
  const Direction& direction = task.direction;
  const Place place = tiles.place(tile);
  const int rows = std::min(HEIGHT, direction.grid[0] - place.row);
  const size_t plane = direction.input.plane() * LANES;
  const Targets targets(task, block, place);
  const int filled = task.layout.filled(block);
  for (int group = 0; group < stream.groups; ++group) {
    const float* x = task.x + (size_t(block) * direction.input.channels + size_t(group) * stream.inputs) * plane;
    for (int begin = 0; begin < stream.outputs; begin += outputs_at_once) {
      const int end = std::min(stream.outputs, begin + outputs_at_once);
      for (int b = 0; b < stream.blocks; ++b) {
        const int channel = b * stream.block, channels = std::min(stream.block, stream.inputs - channel);
        fill_buffer<HEIGHT, WIDTH, EXTENT>(buffer, x + channel * plane, plane, channels, direction, task.tile, place,
                                           Rows{0, direction.input.height});
        const Prefetcher next = tiles.ahead(block, tile, x, b, end, end - begin);
        with_constant<HEIGHT>(rows, [&]<int ROWS>() {
          with_ends(b == 0, b + 1 == stream.blocks, task.then.kind, [&]<bool FIRST, bool LAST, Then THEN>() {
            convolve_buffer<ROWS, WIDTH, PITCH, FIRST, LAST, THEN>(task, buffer, partial, targets, next, group, b,
                                                                   begin, end, filled);
          });
        });
      }
    }
  }
}

template <int HEIGHT, int WIDTH, int EXTENT>
void convolve_all(Threads& threads, const Task& task) {
  constexpr size_t TILE_BYTES = HEIGHT * WIDTH * sizeof(Vector);
  const int most = int(std::max<size_t>(1, PARTIAL_BYTES / TILE_BYTES));
  const int turns = (task.stream.outputs + most - 1) / most;
  const int at_once = (task.stream.outputs + turns - 1) / turns;
  const size_t buffer_bytes = task.tile.pixels(task.stream.block) * sizeof(Vector);
  threads.reserve(buffer_bytes + TILE_BYTES * size_t(at_once));
  const Tiles tiles(task.direction, task.tile, task.stream, task.layout, at_once);
  // Threads take whole blocks of images or, where these are few, large pieces of them: what a tile fetches ahead is
  // for its own thread.
  const int blocks = task.layout.blocks(), shares = ITEMS_OF_A_THREAD * threads.count();
  const int pieces = std::clamp((shares + blocks - 1) / blocks, 1, tiles.count());
  threads.run(blocks * pieces, [&](int item, int thread) {
    char* scratch = static_cast<char*>(threads.scratch(thread));
    const int piece = item % pieces, last = begin_of(piece + 1, pieces, tiles.count());
    for (int tile = begin_of(piece, pieces, tiles.count()); tile < last; ++tile)
      convolve_tile<HEIGHT, WIDTH, EXTENT>(task, tiles, item / pieces, tile, reinterpret_cast<float*>(scratch),
                                           reinterpret_cast<Vector*>(scratch + buffer_bytes), at_once);
    finish_streaming();
  });
}

void convolve_tiles(Threads& threads, Task task) {
  const Rectification then = task.then;
  if (!RECTIFIES) task.then = {};
  with_tile(task.direction, task.tile,
            [&]<int HEIGHT, int WIDTH, int EXTENT>() { convolve_all<HEIGHT, WIDTH, EXTENT>(threads, task); });
  if (!RECTIFIES) rectify(threads, task.y, task.layout.elements(task.direction.output), then);
}

}  // namespace

void convolve(Threads& threads, const ConvolutionPlan& plan, Layout layout, const float* values, const float* bias,
              const float* x, float* y, bool accumulate, const Rectification& then) {
  if (layout.lanes > 1 && !is_depthwise(plan))
    return convolve_tiles(threads, {plan.forward, plan.forward_tile, plan.forward_stream, values, bias, x, y,
                                    accumulate, layout, then, plan.active == plan.size()});
  if (layout.lanes == 1)
    small_convolve(threads, plan, layout, values, bias, x, y, accumulate);
  else
    depthwise_convolve(threads, plan, layout, values, bias, x, y, accumulate);
  rectify(threads, y, layout.elements(plan.output), then);
}

void input_gradient(Threads& threads, const ConvolutionPlan& plan, Layout layout, const float* values, const float* dy,
                    float* dx, bool accumulate, const Rectification& then) {
  if (layout.lanes > 1 && !is_depthwise(plan))
    return convolve_tiles(threads, {plan.backward, plan.backward_tile, plan.backward_stream, values, nullptr, dy, dx,
                                    accumulate, layout, then, plan.active == plan.size() && plan.parts() == 1});
  if (layout.lanes == 1)
    small_input_gradient(threads, plan, layout, values, dy, dx, accumulate);
  else
    depthwise_input_gradient(threads, plan, layout, values, dy, dx, accumulate);
  rectify(threads, dx, layout.elements(plan.input), then);
}

}  // namespace fedmef::FEDMEF_ISA
