#include "stream.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kernels/tiles.h"

namespace fedmef {

namespace {

constexpr size_t LARGEST_OFFSET = 65535;
constexpr size_t SLACK = 1;  // so that a layer without active weights has offsets too

int floor_divide(int a, int b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
int remainder(int a, int b) { return a - floor_divide(a, b) * b; }
int ceil_divide(int a, int b) { return (a + b - 1) / b; }

// Where a tap of the kernel finds its factor, along one axis: in which phase, how many strides away.
struct Shift {
  int remainder, strides;
};

Shift forward_shift(const Window& window, int axis, int tap) {
  const int distance = tap * window.dilation[axis] - window.padding[axis];
  return {remainder(distance, window.stride[axis]), floor_divide(distance, window.stride[axis])};
}

// The output's remainder that a tap contributes to, and where it finds its factor in the gradient.
Shift backward_shift(const Window& window, int axis, int tap) {
  const int distance = tap * window.dilation[axis] - window.padding[axis];
  const int rest = remainder(distance, window.stride[axis]);
  return {rest, (rest - distance) / window.stride[axis]};
}

// The shifts of all taps with one remainder along one axis, as first and extent; false if there is none.
template <class GetShift>
bool range_of(const Window& window, int axis, int wanted, const GetShift& shift_of, int& first, int& extent) {
  bool found = false;
  int last = 0;
  for (int tap = 0; tap < window.kernel[axis]; ++tap) {
    const Shift shift = shift_of(window, axis, tap);
    if (wanted >= 0 && shift.remainder != wanted) continue;
    first = found ? std::min(first, shift.strides) : shift.strides;
    last = found ? std::max(last, shift.strides) : shift.strides;
    found = true;
  }
  extent = last - first;
  return found;
}

// A convolution of single pixels sees a plane as one long row.
bool is_pointwise(const Window& window) {
  return window.kernel[0] == 1 && window.kernel[1] == 1 && window.stride[0] == 1 && window.stride[1] == 1 &&
         window.padding[0] == 0 && window.padding[1] == 0;
}

Shape as_row(Shape shape) { return {shape.channels, 1, shape.height * shape.width}; }

Direction forward_direction(Shape input, Shape output, const Window& window) {
  Direction direction;
  direction.input = input;
  direction.output = output;
  direction.grid[0] = output.height;
  direction.grid[1] = output.width;
  for (int axis = 0; axis < 2; ++axis) direction.stride[axis] = window.stride[axis];
  for (int row = 0; row < window.stride[0]; ++row) {
    for (int column = 0; column < window.stride[1]; ++column) {
      Phase phase{{row, column}, {0, 0}, {0, 0}};
      if (range_of(window, 0, row, forward_shift, phase.first[0], phase.extent[0]) &&
          range_of(window, 1, column, forward_shift, phase.first[1], phase.extent[1]))
        direction.phases.push_back(phase);
    }
  }
  return direction;
}

Direction backward_direction(Shape input, Shape output, const Window& window) {
  Direction direction;
  direction.input = output;
  direction.output = input;
  direction.grid[0] = ceil_divide(input.height, window.stride[0]);
  direction.grid[1] = ceil_divide(input.width, window.stride[1]);
  Phase phase{{0, 0}, {0, 0}, {0, 0}};
  for (int axis = 0; axis < 2; ++axis) {
    direction.step[axis] = window.stride[axis];
    range_of(window, axis, -1, backward_shift, phase.first[axis], phase.extent[axis]);
  }
  direction.phases.push_back(phase);
  return direction;
}

Tile make_tile(const Direction& direction, int height, int width) {
  Tile tile;
  tile.height = height;
  tile.width = width;
  tile.pitch = width;
  for (const Phase& phase : direction.phases) tile.pitch = std::max(tile.pitch, width + phase.extent[1]);
  tile.channel = 0;
  for (const Phase& phase : direction.phases) {
    tile.bases.push_back(tile.channel);
    tile.channel += (height + phase.extent[0]) * tile.pitch;
  }
  return tile;
}

// The tile that wastes least: a tile costs its pixels, and two loads for each weight.
Tile choose_tile(const Direction& direction, int lanes, bool many_registers) {
  Tile best;
  double least = 0;
  for (const TileSize& size : tile_sizes(many_registers)) {
    Tile tile = make_tile(direction, size.height, size.width);
    if (size_t(tile.channel) * size_t(lanes) * sizeof(float) > LARGEST_OFFSET) continue;
    // A tile beyond the last row is cut; one beyond the last column is not.
    const double across = ceil_divide(direction.grid[1], size.width),
                 down = ceil_divide(direction.grid[0], size.height);
    const double cost = across * (size.width * direction.grid[0] + 2.0 * down);
    if (best.bases.empty() || cost < least) {
      best = tile;
      least = cost;
    }
  }
  if (best.bases.empty()) throw std::invalid_argument("the window of a convolution is too wide for these kernels");
  return best;
}

int tap_offset(const Direction& direction, const Tile& tile, const Shift& row, const Shift& column) {
  const bool one = direction.phases.size() == 1;
  for (size_t i = 0; i < direction.phases.size(); ++i) {
    const Phase& phase = direction.phases[i];
    if (one || (phase.remainder[0] == row.remainder && phase.remainder[1] == column.remainder))
      return tile.bases[i] + (row.strides - phase.first[0]) * tile.pitch + column.strides - phase.first[1];
  }
  throw std::logic_error("a tap without a phase");
}

// Of every tap: its offset in the buffer of one channel and, backward, the remainder that it contributes to.
struct Tap {
  int forward, backward, part;
};

std::vector<Tap> find_taps(const ConvolutionPlan& plan, const Tile& forward, const Tile& backward) {
  std::vector<Tap> taps;
  const Window& window = plan.window;
  for (int row = 0; row < window.kernel[0]; ++row) {
    for (int column = 0; column < window.kernel[1]; ++column) {
      const Shift back_row = backward_shift(window, 0, row), back_column = backward_shift(window, 1, column);
      taps.push_back(
          {tap_offset(plan.forward, forward, forward_shift(window, 0, row), forward_shift(window, 1, column)),
           tap_offset(plan.backward, backward, back_row, back_column),
           back_row.remainder * window.stride[1] + back_column.remainder});
    }
  }
  return taps;
}

// visit(filter, channel of its group, tap) for every active weight, in canonical order.
template <class Visit>
void each_active(const ConvolutionPlan& plan, const uint8_t* mask, const Visit& visit) {
  const int channels = plan.input.channels / plan.groups, taps = plan.window.kernel[0] * plan.window.kernel[1];
  size_t position = 0;
  for (int filter = 0; filter < plan.filters(); ++filter)
    for (int channel = 0; channel < channels; ++channel)
      for (int tap = 0; tap < taps; ++tap, ++position)
        if (mask == nullptr || (mask[position / 8] >> (position % 8) & 1)) visit(filter, channel, tap);
}

// Blocks of about equal size whose buffer stays within the budget.
void choose_blocks(Stream& stream, const Tile& tile, int lanes) {
  const size_t channel_bytes = size_t(tile.channel) * size_t(lanes) * sizeof(float);
  const size_t most = std::max<size_t>(1, BUFFER_BYTES / channel_bytes);
  stream.blocks = ceil_divide(stream.inputs, int(std::min<size_t>(most, size_t(stream.inputs))));
  stream.block = ceil_divide(stream.inputs, stream.blocks);
  stream.blocks = ceil_divide(stream.inputs, stream.block);
}

size_t segment_of(const Stream& stream, int group, int input, int output) {
  return (size_t(group) * stream.blocks + size_t(input / stream.block)) * stream.outputs + size_t(output);
}

void finish_counts(Stream& stream) {
  for (size_t i = 1; i < stream.segments.size(); ++i) stream.segments[i] += stream.segments[i - 1];
}

}  // namespace

ConvolutionPlan plan_convolution(const Kernels& kernels, Shape input, Shape output, Window window, int groups,
                                 const uint8_t* mask) {
  ConvolutionPlan plan;
  const bool pointwise = is_pointwise(window);
  plan.input = pointwise ? as_row(input) : input;
  plan.output = pointwise ? as_row(output) : output;
  plan.window = window;
  plan.groups = groups;
  plan.forward = forward_direction(plan.input, plan.output, window);
  plan.backward = backward_direction(plan.input, plan.output, window);
  plan.forward_tile = choose_tile(plan.forward, kernels.lanes, kernels.many_registers);
  plan.backward_tile = choose_tile(plan.backward, kernels.lanes, kernels.many_registers);

  const int channels = input.channels / groups, filters = output.channels / groups;
  const int parts = window.stride[0] * window.stride[1];
  Stream &forward = plan.forward_stream, &backward = plan.backward_stream;
  forward.groups = backward.groups = groups;
  forward.inputs = channels;
  forward.outputs = filters;
  backward.inputs = filters;
  backward.outputs = channels * parts;
  choose_blocks(forward, plan.forward_tile, kernels.lanes);
  choose_blocks(backward, plan.backward_tile, kernels.lanes);

  const std::vector<Tap> taps = find_taps(plan, plan.forward_tile, plan.backward_tile);
  forward.segments.assign(size_t(groups) * forward.blocks * forward.outputs + 1, 0);
  backward.segments.assign(size_t(groups) * backward.blocks * backward.outputs + 1, 0);
  each_active(plan, mask, [&](int filter, int channel, int tap) {
    const int group = filter / filters, own = filter % filters;
    ++forward.segments[segment_of(forward, group, channel, own) + 1];
    ++backward.segments[segment_of(backward, group, own, channel * parts + taps[size_t(tap)].part) + 1];
    ++plan.active;
  });
  finish_counts(forward);
  finish_counts(backward);

  forward.offsets.assign(plan.active + SLACK, 0);
  backward.offsets.assign(plan.active + SLACK, 0);
  plan.transpose.resize(plan.active);
  std::vector<uint32_t> next(forward.segments), next_backward(backward.segments);
  const int pixel = kernels.lanes * int(sizeof(float));
  each_active(plan, mask, [&](int filter, int channel, int tap) {
    const int group = filter / filters, own = filter % filters;
    const Tap& where = taps[size_t(tap)];
    const uint32_t place = next[segment_of(forward, group, channel, own)]++;
    const uint32_t back = next_backward[segment_of(backward, group, own, channel * parts + where.part)]++;
    forward.offsets[place] = uint16_t((channel % forward.block * plan.forward_tile.channel + where.forward) * pixel);
    backward.offsets[back] = uint16_t((own % backward.block * plan.backward_tile.channel + where.backward) * pixel);
    plan.transpose[back] = place;
  });
  return plan;
}

void plan_small_batches(ConvolutionPlan& plan, const uint8_t* mask) {
  if (!plan.small_backward_offsets.empty()) return;
  plan.small_forward_tile = whole_plane(plan.forward);
  plan.small_backward_tile = whole_plane(plan.backward);
  const std::vector<Tap> taps = find_taps(plan, plan.small_forward_tile, plan.small_backward_tile);
  const Stream &forward = plan.forward_stream, &backward = plan.backward_stream;
  const int filters = forward.outputs, parts = plan.window.stride[0] * plan.window.stride[1];
  std::vector<uint32_t> forward_offsets(plan.active + SLACK), backward_offsets(plan.active + SLACK);
  std::vector<uint32_t> next(forward.segments), next_backward(backward.segments);
  each_active(plan, mask, [&](int filter, int channel, int tap) {
    const int group = filter / filters, own = filter % filters;
    const Tap& where = taps[size_t(tap)];
    forward_offsets[next[segment_of(forward, group, channel, own)]++] =
        uint32_t(channel % forward.block * plan.small_forward_tile.channel + where.forward);
    backward_offsets[next_backward[segment_of(backward, group, own, channel * parts + where.part)]++] =
        uint32_t(own % backward.block * plan.small_backward_tile.channel + where.backward);
  });
  plan.small_forward_offsets = std::move(forward_offsets);
  plan.small_backward_offsets = std::move(backward_offsets);
}

Tile whole_plane(const Direction& direction) { return make_tile(direction, direction.grid[0], direction.grid[1]); }

std::vector<int> tap_offsets(const ConvolutionPlan& plan, const Tile& forward_tile) {
  std::vector<int> offsets;
  for (const Tap& tap : find_taps(plan, forward_tile, make_tile(plan.backward, 1, 1))) offsets.push_back(tap.forward);
  return offsets;
}

std::vector<uint32_t> stream_places(const ConvolutionPlan& plan) {
  std::vector<uint32_t> places;
  places.reserve(plan.active);
  for (int filter = 0; filter < plan.filters(); ++filter)
    each_segment(plan, filter, [&](uint32_t begin, uint32_t end) {
      for (uint32_t place = begin; place < end; ++place) places.push_back(place);
    });
  return places;
}

void to_stream(const ConvolutionPlan& plan, const float* canonical, float* stream) {
  for (int filter = 0; filter < plan.filters(); ++filter)
    each_segment(plan, filter, [&](uint32_t begin, uint32_t end) {
      std::copy_n(canonical, end - begin, stream + begin);
      canonical += end - begin;
    });
}

void from_stream(const ConvolutionPlan& plan, const float* stream, float* canonical) {
  for (int filter = 0; filter < plan.filters(); ++filter)
    each_segment(plan, filter,
                 [&](uint32_t begin, uint32_t end) { canonical = std::copy(stream + begin, stream + end, canonical); });
}

void transpose_values(const ConvolutionPlan& plan, const float* forward, float* backward) {
  for (size_t i = 0; i < plan.active; ++i) backward[i] = forward[plan.transpose[i]];
}

}  // namespace fedmef
