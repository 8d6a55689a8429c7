// The tiles of a grid in their order, and what is fetched into the cache while one of them is computed.
#pragma once

#include <algorithm>

#include "kernels/tile_buffer.h"
#include "threads.h"

namespace fedmef::FEDMEF_ISA {

// Row by row. Where tiles overlap (3x3 with stride 1), and the input and the output of a whole row of them about fit
// the L2, each tile fetches its share of the input rows that the next row of tiles needs and this one does not: hardly
// a line is asked for twice. Elsewhere it is the next buffer's input.
class Tiles {
 public:
  Tiles(const Direction& direction, const Tile& tile, const Stream& stream, Layout layout, int outputs_at_once)
      : direction_(direction),
        tile_(tile),
        stream_(stream),
        layout_(layout),
        across_((direction.grid[1] + tile.width - 1) / tile.width),
        down_((direction.grid[0] + tile.height - 1) / tile.height),
        rows_(direction.stride[0] * (tile.height + direction.phases[0].extent[0])) {
    const size_t read = size_t(rows_) * direction.input.width * direction.input.channels;
    const size_t written = size_t(tile.height) * direction.step[0] * direction.output.width * direction.output.channels;
    whole_rows_ = direction.phases[0].extent[0] > 0 && stream.groups == 1 && outputs_at_once >= stream.outputs &&
                  (read + written) * sizeof(Vector) <= ROW_OF_TILES_BYTES;
  }

  int count() const { return across_ * down_; }

  Place place(int tile) const { return {tile / across_ * tile_.height, tile % across_ * tile_.width}; }

  // While the buffer of block `b` serves `outputs` outputs that end at `end`; `x` is the group's first input channel.
  Prefetcher ahead(int block, int tile, const float* x, int b, int end, int outputs) const {
    if (whole_rows_) return rows(block, tile, x, b, outputs);
    const size_t plane = direction_.input.plane() * LANES;
    if (b + 1 < stream_.blocks) {
      const int channel = (b + 1) * stream_.block;
      return Prefetcher(direction_, tile_, x + channel * plane, plane,
                        std::min(stream_.block, stream_.inputs - channel), place(tile), outputs);
    }
    if (end < stream_.outputs || tile + 1 == count()) return {};
    return Prefetcher(direction_, tile_, x, plane, stream_.block, place(tile + 1), outputs);
  }

 private:
  // Some more than an L2 of 512 kB: what was written is not needed again. At 650 kB it was slower than tile by tile.
  static constexpr size_t ROW_OF_TILES_BYTES = 600 * 1024;

  Prefetcher rows(int block, int tile, const float* x, int b, int outputs) const {
    const size_t pitch = size_t(direction_.input.width) * LANES, plane = pitch * size_t(direction_.input.height);
    int first = 0, last = rows_;
    if (tile + across_ < count()) {
      last += (place(tile + across_).row + direction_.phases[0].first[0]) * direction_.stride[0];
      first = last - direction_.stride[0] * tile_.height;
    } else if (block + 1 < layout_.blocks()) {
      x += size_t(direction_.input.channels) * plane;
    } else {
      return {};
    }
    last = std::clamp(last, 0, direction_.input.height);
    first = std::clamp(first, 0, last);
    const int share = tile % across_ * stream_.blocks + b, shares = across_ * stream_.blocks;
    const int channel = begin_of(share, shares, stream_.inputs),
              channels = begin_of(share + 1, shares, stream_.inputs) - channel;
    return Prefetcher(x + size_t(channel) * plane + size_t(first) * pitch, plane, pitch, channels, last - first, pitch,
                      outputs);
  }

  const Direction& direction_;
  const Tile& tile_;
  const Stream& stream_;
  Layout layout_;
  int across_, down_, rows_;
  bool whole_rows_;
};

}  // namespace fedmef::FEDMEF_ISA
