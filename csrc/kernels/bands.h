// A batch cut into bands of output rows, and the rows of a pruned input that a band needs, dense.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/expand.h"
#include "stream.h"

namespace fedmef::FEDMEF_ISA {

constexpr size_t BAND_BYTES = 384 * 1024;  // of the rows of a pruned input that are expanded at once: part of the L2

struct Band {
  int block, first, last;       // output rows [first, last)
  int input_first, input_last;  // the input rows that they need, those outside of the plane left out
};

// All bands of a batch, one block of images after the other.
class Bands {
 public:
  Bands(const ConvolutionPlan& plan, Layout layout) : direction_(plan.forward) {
    const int tile = plan.forward_tile.height;
    const size_t row = size_t(plan.input.width) * plan.input.channels * LANES * sizeof(float);
    const size_t beyond = size_t(plan.window.kernel[0] - 1) * plan.window.dilation[0] + 1;
    const auto rows_of = [&](int height) { return size_t(height - 1) * plan.window.stride[0] + beyond; };
    height_ = tile;
    while (height_ < direction_.grid[0] && rows_of(height_ + tile) * row <= BAND_BYTES) height_ += tile;
    in_block_ = (direction_.grid[0] + height_ - 1) / height_;
    count_ = in_block_ * layout.blocks();
    most_rows_ = std::min(size_t(plan.input.height), rows_of(height_));
  }

  int count() const { return count_; }
  // The most input rows that a band needs.
  size_t most_rows() const { return most_rows_; }

  Band at(int number) const {
    Band band;
    band.block = number / in_block_;
    band.first = number % in_block_ * height_;
    band.last = std::min(direction_.grid[0], band.first + height_);
    int first = direction_.input.height, last = 0;
    for (const Phase& phase : direction_.phases) {
      const int step = direction_.stride[0], begin = band.first + phase.first[0];
      first = std::min(first, begin * step + phase.remainder[0]);
      last = std::max(last, (begin + band.last - band.first - 1 + phase.extent[0]) * step + phase.remainder[0] + 1);
    }
    band.input_first = std::clamp(first, 0, direction_.input.height);
    band.input_last = std::clamp(last, band.input_first, direction_.input.height);
    return band;
  }

 private:
  const Direction& direction_;
  int height_, in_block_, count_;
  size_t most_rows_;
};

// The rows of all channels of a pruned input, band after band. What is expanded lies as [channels][rows][width][LANES].
class Expansion {
 public:
  // `rows` has room for all rows of a band, `converted` for one row and a vector.
  Expansion(const PrunedActivation& pruned, Shape input, float* rows, float* converted)
      : pruned_(pruned), input_(input), rows_(rows), converted_(converted), next_(size_t(input.channels)) {}

  // `following` is the band that will be asked for next: where its values begin is remembered.
  void expand(const Band& band, const Band& following) {
    const size_t row = size_t(input_.width) * LANES;
    const bool known = band.block == block_ && band.input_first == first_;
    const bool continues = following.block == band.block && following.input_first <= band.input_last;
    float* to = rows_;
    for (int channel = 0; channel < input_.channels; ++channel) {
      const size_t plane = size_t(band.block) * input_.channels + size_t(channel), start = plane * input_.height * row;
      uint32_t value = known ? next_[size_t(channel)]
                             : pruned_.starts[plane] + count_bits(pruned_.bits, start, start + band.input_first * row);
      for (int y = band.input_first; y < band.input_last; ++y, to += row) {
        if (continues && y == following.input_first) next_[size_t(channel)] = value;
        value += expand_bits(pruned_, start + y * row, value, row, to, converted_);
      }
      if (continues && following.input_first == band.input_last) next_[size_t(channel)] = value;
    }
    block_ = continues ? band.block : -1;
    first_ = following.input_first;
  }

 private:
  const PrunedActivation& pruned_;
  Shape input_;
  float *rows_, *converted_;
  std::vector<uint32_t> next_;  // of every channel, the first value of row first_ of block block_
  int block_ = -1, first_ = -1;
};

}  // namespace fedmef::FEDMEF_ISA
