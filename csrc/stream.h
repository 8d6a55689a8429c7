// A sparse convolution's active weights in the order in which the kernels meet them.
//
// The mask of a layer is [out][in / groups][kh][kw], and its canonical order ascends in it. A kernel works on a tile
// of output pixels. It copies what the tile needs of a *block* of input channels into a buffer that stays in the L1
// cache, zero padding included, and then walks over the output channels: for each there is a *segment* of active
// weights, and a weight is only a value and the offset in the buffer at which the tile's first pixel finds its factor.
//
//     stream = for each group: for each block of input channels: for each output channel: its weights, ascending
//
// The forward stream is the order in which values, their gradients and SGD live. The backward stream is the same of
// the transposed convolution; its values are gathered from the forward ones before every step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace fedmef {

// Of a strided convolution, rows (and columns) of the input whose number has one remainder: an output pixel and its
// neighbour find their factors next to each other in one phase.
struct Phase {
  int remainder[2];  // of the row and column, by the stride
  int first[2];      // shift of the first row and column that the tile's first pixel needs, in strides
  int extent[2];     // rows and columns that a tile needs beyond its own size
};

// One direction of a convolution, as a correlation that reads `input` and writes `output`. The gradient for the input
// of a strided convolution is one correlation for each remainder of the output's rows and columns: `step` is the
// stride, and output channel k * step[0] * step[1] + remainder is a part of channel k.
struct Direction {
  Shape input, output;     // whole planes in memory
  int grid[2] = {1, 1};    // output pixels that a stream computes, down and across
  int stride[2] = {1, 1};  // of the input
  int step[2] = {1, 1};    // of the output
  std::vector<Phase> phases;
};

// How many offsets kernels read ahead; every stream has this many unused ones at its end.
constexpr int OFFSETS_AHEAD = 8;

struct Stream {
  int groups = 1;
  int inputs = 1, outputs = 1;     // channels of one group; outputs count every remainder
  int block = 1, blocks = 1;       // input channels of a block, blocks of a group
  std::vector<uint32_t> segments;  // [groups][blocks][outputs] + 1: where each segment begins
  // Where in the buffer a weight finds its factor: in bytes or, of batches that do not fill the lanes, in floats.
  // OFFSETS_AHEAD more than there are weights. `wide` where 16 bits are too few for a whole plane; the other one is
  // empty then.
  std::vector<uint16_t> offsets;
  std::vector<uint32_t> wide;
};

// How the buffer of a tile lies: a phase after the other, rows of `pitch` pixels, a channel after the other.
struct Tile {
  int height = 1, width = 1;  // output pixels
  int pitch = 1;              // pixels from row to row
  int channel = 1;            // pixels of one input channel
  int shared = 0;             // pixels of padding that a channel shares with the next one; the last one has its own
  std::vector<int> bases;     // pixels at which each phase begins

  size_t pixels(int channels) const { return size_t(channel) * size_t(channels) + size_t(shared); }
};

struct ConvolutionPlan {
  Shape input, output;
  Window window;
  int groups = 1;
  size_t active = 0;
  Direction forward, backward;
  Tile forward_tile, backward_tile;
  Stream forward_stream, backward_stream;
  // Of each place in the backward stream, its place in the forward stream. The weights between a block of channels and
  // a block of filters lie together in both: 16 bits count from the first of them, where they suffice.
  std::vector<uint16_t> transpose;
  std::vector<uint32_t> wide_transpose;
  // Whether the offsets are those of batches that do not fill the lanes, in buffers of whole planes.
  bool small = false;
  Tile small_forward_tile, small_backward_tile;

  int filters() const { return output.channels; }
  int parts() const { return window.stride[0] * window.stride[1]; }  // remainders of the input's rows and columns
  size_t filter_size() const { return size_t(input.channels / groups) * window.kernel[0] * window.kernel[1]; }
  size_t size() const { return filters() * filter_size(); }
};

// `mask` has one bit a weight, the first in the lowest bit; null: all are active. The shapes must agree.
ConvolutionPlan plan_convolution(const Kernels& kernels, Shape input, Shape output, Window window, int groups,
                                 const uint8_t* mask);

// Make the offsets those of batches that fill the lanes, or do not; does nothing when they are. The mask is the plan's.
// A plan is of no use any more when there is not enough memory for them.
void choose_offsets(const Kernels& kernels, ConvolutionPlan& plan, const uint8_t* mask, bool small);

// The mask that the plan was made of: the stream says it all, so nobody keeps it.
std::vector<uint8_t> mask_of(const Kernels& kernels, const ConvolutionPlan& plan);

// Between the canonical order and that of the forward stream.
void to_stream(const ConvolutionPlan& plan, const float* canonical, float* stream);
void from_stream(const ConvolutionPlan& plan, const float* stream, float* canonical);
// Of each canonical place, its place in the forward stream.
std::vector<uint32_t> stream_places(const ConvolutionPlan& plan);

// The tile that is all of the grid.
Tile whole_plane(const Direction& direction);

// Of every tap of the kernel, where it finds its factor in the buffer of one channel.
std::vector<int> tap_offsets(const ConvolutionPlan& plan, const Tile& forward_tile);

// The values of the backward stream.
void transpose_values(const ConvolutionPlan& plan, const float* forward, float* backward);

// visit(begin, end) for every run of a filter's weights in the forward stream, in canonical order of its weights.
template <class Visit>
void each_segment(const ConvolutionPlan& plan, int filter, const Visit& visit) {
  const Stream& stream = plan.forward_stream;
  const int group = filter / stream.outputs, output = filter % stream.outputs;
  for (int block = 0; block < stream.blocks; ++block) {
    const size_t segment = (size_t(group) * stream.blocks + block) * stream.outputs + output;
    if (stream.segments[segment] != stream.segments[segment + 1])
      visit(stream.segments[segment], stream.segments[segment + 1]);
  }
}

// visit(filter, begin, end) for the same runs of the filters [first, last), in the order of the stream. A filter's own
// are met in canonical order here too.
template <class Visit>
void each_segment_between(const ConvolutionPlan& plan, int first, int last, const Visit& visit) {
  const Stream& stream = plan.forward_stream;
  for (int group = first / stream.outputs; group * stream.outputs < last; ++group) {
    const int before = group * stream.outputs;
    const int from = std::max(first, before), to = std::min(last, before + stream.outputs);
    for (int block = 0; block < stream.blocks; ++block) {
      const uint32_t* segments =
          stream.segments.data() + (size_t(group) * stream.blocks + block) * stream.outputs - before;
      for (int filter = from; filter < to; ++filter) visit(filter, segments[filter], segments[filter + 1]);
    }
  }
}

}  // namespace fedmef
