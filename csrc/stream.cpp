#include "stream.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kernels/tiles.h"
#include "release.h"

namespace fedmef {

namespace {

constexpr size_t LARGEST_OFFSET = 65535;

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

// A 3x3 convolution whose tile is the whole plane has padding on all sides. One column of it serves a row as its right
// side and the next row as its left one, and one row serves two channels: more of these fit the buffer.
void share_padding(const Direction& direction, Tile& tile) {
  const Phase& phase = direction.phases[0];
  if (direction.phases.size() > 1 || tile.height == 1 || tile.width == 1) return;  // taps must differ by their offsets
  for (int axis = 0; axis < 2; ++axis)
    if (direction.stride[axis] != 1 || direction.step[axis] != 1 || phase.remainder[axis] != 0 ||
        phase.first[axis] != -1 || phase.extent[axis] != 2)
      return;
  if (direction.input.height != tile.height || direction.input.width != tile.width ||
      direction.grid[0] != tile.height || direction.grid[1] != tile.width)
    return;
  tile.pitch = tile.width + 1;
  tile.channel = (tile.height + 1) * tile.pitch;
  tile.shared = tile.pitch + 1;
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
  share_padding(direction, best);
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

// visit(place in the forward stream, place in the backward stream, filter, channel of its group, tap) for every weight.
template <class Visit>
void each_place(const ConvolutionPlan& plan, const uint8_t* mask, const std::vector<Tap>& taps, const Visit& visit) {
  const Stream &forward = plan.forward_stream, &backward = plan.backward_stream;
  const int filters = forward.outputs, parts = plan.parts();
  std::vector<uint32_t> next(forward.segments), next_backward(backward.segments);
  each_active(plan, mask, [&](int filter, int channel, int tap) {
    const int group = filter / filters, own = filter % filters;
    const Tap& where = taps[size_t(tap)];
    const uint32_t place = next[segment_of(forward, group, channel, own)]++;
    const uint32_t back = next_backward[segment_of(backward, group, own, channel * parts + where.part)]++;
    visit(place, back, filter, channel, where);
  });
}

// A block of channels and a block of filters: where their weights begin in the forward stream.
uint32_t cell_begin(const ConvolutionPlan& plan, int group, int channels, int filters) {
  const Stream& forward = plan.forward_stream;
  const int first = std::min(filters * plan.backward_stream.block, forward.outputs);
  return forward.segments[(size_t(group) * forward.blocks + size_t(channels)) * forward.outputs + size_t(first)];
}

// visit(begin in the forward stream, begin and end in the backward stream) for every such pair of blocks.
template <class Visit>
void each_cell(const ConvolutionPlan& plan, const Visit& visit) {
  const Stream &forward = plan.forward_stream, &backward = plan.backward_stream;
  const int outputs = forward.block * plan.parts();  // of the backward stream, in a block of channels
  for (int group = 0; group < forward.groups; ++group) {
    for (int filters = 0; filters < backward.blocks; ++filters) {
      const uint32_t* segments =
          backward.segments.data() + (size_t(group) * backward.blocks + size_t(filters)) * backward.outputs;
      for (int channels = 0; channels < forward.blocks; ++channels)
        visit(cell_begin(plan, group, channels, filters), segments[channels * outputs],
              segments[std::min((channels + 1) * outputs, backward.outputs)]);
    }
  }
}

void fill_transpose(ConvolutionPlan& plan, const uint8_t* mask, const std::vector<Tap>& taps) {
  size_t largest = 0;
  each_cell(plan, [&](uint32_t, uint32_t begin, uint32_t end) { largest = std::max<size_t>(largest, end - begin); });
  const bool narrow = largest <= LARGEST_OFFSET;
  plan.transpose.assign(narrow ? plan.active : 0, 0);
  plan.wide_transpose.assign(narrow ? 0 : plan.active, 0);
  each_place(plan, mask, taps, [&](uint32_t place, uint32_t back, int filter, int channel, const Tap&) {
    const int group = filter / plan.forward_stream.outputs, own = filter % plan.forward_stream.outputs;
    const uint32_t distance =
        place - cell_begin(plan, group, channel / plan.forward_stream.block, own / plan.backward_stream.block);
    if (narrow)
      plan.transpose[back] = uint16_t(distance);
    else
      plan.wide_transpose[back] = distance;
  });
}

// Make room for offsets in buffers of this size, and say where: one of the two is null.
std::pair<uint16_t*, uint32_t*> offsets_for(Stream& stream, const Tile& tile, int pixel, size_t active) {
  release(stream.offsets);  // before the new ones take memory
  release(stream.wide);
  const bool narrow = size_t(tile.channel) * size_t(stream.block) * size_t(pixel) <= LARGEST_OFFSET;
  if (narrow)
    stream.offsets.assign(active + OFFSETS_AHEAD, 0);
  else
    stream.wide.assign(active + OFFSETS_AHEAD, 0);
  return {narrow ? stream.offsets.data() : nullptr, narrow ? nullptr : stream.wide.data()};
}

void fill_offsets(ConvolutionPlan& plan, const uint8_t* mask, const std::vector<Tap>& taps, const Tile& forward_tile,
                  const Tile& backward_tile, int pixel) {
  Stream &forward = plan.forward_stream, &backward = plan.backward_stream;
  const auto [narrow, wide] = offsets_for(forward, forward_tile, pixel, plan.active);
  const auto [back_narrow, back_wide] = offsets_for(backward, backward_tile, pixel, plan.active);
  const auto put = [](uint16_t* to_narrow, uint32_t* to_wide, size_t place, int offset) {
    if (to_narrow)
      to_narrow[place] = uint16_t(offset);
    else
      to_wide[place] = uint32_t(offset);
  };
  each_place(plan, mask, taps, [&](uint32_t place, uint32_t back, int filter, int channel, const Tap& tap) {
    const int own = filter % forward.outputs;
    put(narrow, wide, place, (channel % forward.block * forward_tile.channel + tap.forward) * pixel);
    put(back_narrow, back_wide, back, (own % backward.block * backward_tile.channel + tap.backward) * pixel);
  });
}

}  // namespace

ConvolutionPlan plan_convolution(const Kernels& kernels, Shape input, Shape output, Window window, int groups,
                                 const uint8_t* mask) {
  ConvolutionPlan plan;
  const bool pointwise = is_pointwise(window) && input.width % 4 != 0;
  plan.input = pointwise ? as_row(input) : input;
  plan.output = pointwise ? as_row(output) : output;
  plan.window = window;
  plan.groups = groups;
  plan.forward = forward_direction(plan.input, plan.output, window);
  plan.backward = backward_direction(plan.input, plan.output, window);
  plan.forward_tile = choose_tile(plan.forward, kernels.lanes, kernels.many_registers);
  plan.backward_tile = choose_tile(plan.backward, kernels.lanes, kernels.many_registers);

  const int channels = input.channels / groups, filters = output.channels / groups;
  const int parts = plan.parts();
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

  fill_transpose(plan, mask, taps);
  fill_offsets(plan, mask, taps, plan.forward_tile, plan.backward_tile, kernels.lanes * int(sizeof(float)));
  return plan;
}

void choose_offsets(const Kernels& kernels, ConvolutionPlan& plan, const uint8_t* mask, bool small) {
  if (plan.small == small) return;
  if (small && plan.small_forward_tile.bases.empty()) {
    plan.small_forward_tile = whole_plane(plan.forward);
    plan.small_backward_tile = whole_plane(plan.backward);
  }
  const Tile& forward = small ? plan.small_forward_tile : plan.forward_tile;
  const Tile& backward = small ? plan.small_backward_tile : plan.backward_tile;
  fill_offsets(plan, mask, find_taps(plan, forward, backward), forward, backward,
               small ? 1 : kernels.lanes * int(sizeof(float)));
  plan.small = small;
}

std::vector<uint8_t> mask_of(const Kernels& kernels, const ConvolutionPlan& plan) {
  const Stream& stream = plan.forward_stream;
  const Tile& tile = plan.small ? plan.small_forward_tile : plan.forward_tile;
  const int pixel = plan.small ? 1 : kernels.lanes * int(sizeof(float));
  const int taps = plan.window.kernel[0] * plan.window.kernel[1];
  std::vector<int> tap_at(size_t(tile.channel), 0);  // of every place in the buffer of one channel
  const std::vector<int> offsets = tap_offsets(plan, tile);
  for (int tap = 0; tap < taps; ++tap) tap_at[size_t(offsets[size_t(tap)])] = tap;
  std::vector<uint8_t> mask((plan.size() + 7) / 8);
  size_t place = 0;
  for (int group = 0; group < stream.groups; ++group) {
    for (int block = 0; block < stream.blocks; ++block) {
      for (int output = 0; output < stream.outputs; ++output) {
        const size_t segment = (size_t(group) * stream.blocks + size_t(block)) * stream.outputs + size_t(output);
        const size_t filter = size_t(group) * stream.outputs + size_t(output);
        for (; place < stream.segments[segment + 1]; ++place) {
          const int offset = int(stream.wide.empty() ? stream.offsets[place] : stream.wide[place]) / pixel;
          const size_t channel = size_t(block) * stream.block + size_t(offset / tile.channel);
          const size_t position = (filter * stream.inputs + channel) * taps + size_t(tap_at[offset % tile.channel]);
          mask[position / 8] |= uint8_t(1u << (position % 8));
        }
      }
    }
  }
  return mask;
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
  const auto gather = [&](const auto& distances) {
    each_cell(plan, [&](uint32_t from, uint32_t begin, uint32_t end) {
      for (uint32_t i = begin; i < end; ++i) backward[i] = forward[from + distances[i]];
    });
  };
  if (plan.wide_transpose.empty())
    gather(plan.transpose);
  else
    gather(plan.wide_transpose);
}

}  // namespace fedmef
