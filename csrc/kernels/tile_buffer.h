// What a tile of output pixels needs of a block of input channels, copied to a contiguous buffer with zero padding.
//
//     memory, stride 1, 3x3:            buffer of one channel (pitch = width + 2):
//
//         . . . . . . . .               0 a b c d e      the tile's own pixels are b c d e (2 rows),
//         . a b c d e . .       →       0 f g h i j      with one more row and column around them
//         . f g h i j . .
//
// A tile that is the whole plane shares its padding. Rows begin with a column of zeros, which is also the right side of
// the row before, and channels begin with a row of zeros. Only the last channel is followed by some. Of 2x2 pixels:
//
//         0 0 0   0 a b   0 c d   0 0 0   0 e f   0 g h   0 0 0   0       two channels
//
// Where padding is copied with its pixels, rows and channels must come in ascending order.
// With stride 2 the input is four phases (even and odd rows and columns), each of which lies like this.
#pragma once

#include <algorithm>

#include "kernels/vector.h"
#include "stream.h"

namespace fedmef::FEDMEF_ISA {

struct Place {
  int row, column;  // of the tile's first pixel, in the grid
};

// Rows of compile-time length, of which the first and last pixel may be padding. `from` is the row's first pixel,
// padding or not; rows outside of [top, bottom) are padding.
template <int ROWS, int PITCH, bool LEFT, bool RIGHT>
FEDMEF_INLINE void copy_rows(Vector* to, const float* from, size_t from_pitch, int top, int bottom) {
  FEDMEF_UNROLL for (int row = 0; row < ROWS; ++row) {
    if (row >= top && row < bottom) {
      FEDMEF_UNROLL for (int i = 0; i < PITCH; ++i) to[row * PITCH + i] =
          (LEFT && i == 0) || (RIGHT && i == PITCH - 1)
              ? Vector{}
              : load(from + ptrdiff_t(row * from_pitch) + ptrdiff_t(i) * LANES);
    } else {
      FEDMEF_UNROLL for (int i = 0; i < PITCH; ++i) to[row * PITCH + i] = Vector{};
    }
  }
}

template <int ROWS, int PITCH, bool LEFT, bool RIGHT>
inline void copy_channels(Vector* to, const float* from, size_t plane, int channels, size_t from_pitch, int top,
                          int bottom) {
  if (top == 0 && bottom == ROWS) {
    for (int channel = 0; channel < channels; ++channel, from += plane, to += ROWS * PITCH)
      copy_rows<ROWS, PITCH, LEFT, RIGHT>(to, from, from_pitch, 0, ROWS);
  } else {
    for (int channel = 0; channel < channels; ++channel, from += plane, to += ROWS * PITCH)
      copy_rows<ROWS, PITCH, LEFT, RIGHT>(to, from, from_pitch, top, bottom);
  }
}

// The rows of a plane that are in memory: [first, last). What a tile needs beyond them is 0.
struct Rows {
  int first, last;
};

// Every second pixel of a row; the first may be padding.
template <int COLUMNS>
FEDMEF_INLINE void copy_every_second(Vector* to, const float* from, bool padded) {
  to[0] = padded ? Vector{} : load(from);
  FEDMEF_UNROLL for (int i = 1; i < COLUMNS; ++i) to[i] = load(from + ptrdiff_t(2 * i) * LANES);
}

// The pixels [first, last) of `count` that are inside of a plane of `size`, where pixel i is number start + i * step.
struct Inside {
  int first, last;

  Inside(int start, int step, int count, int size)
      : first(std::min(count, start < 0 ? (-start + step - 1) / step : 0)),
        last(std::max(first, std::min(count, start < size ? (size - start + step - 1) / step : 0))) {}
};

// One phase of all channels of a block, for any stride, padding and extent. With a stride of 2, rows of WIDTH or
// WIDTH + 1 pixels have code of their own; WIDTH = 0: none.
template <int WIDTH>
inline void copy_phase(Vector* to, const float* planes, size_t plane, int channels, const Direction& direction,
                       const Tile& tile, const Phase& phase, Place place, Rows there) {
  const int rows = tile.height + phase.extent[0], columns = tile.width + phase.extent[1];
  const int width = direction.input.width, step = direction.stride[1];
  const int x = (place.column + phase.first[1]) * step + phase.remainder[1];
  const int y = (place.row + phase.first[0]) * direction.stride[0] + phase.remainder[0];
  const Inside across(x, step, columns, width), down(y, direction.stride[0], rows, there.last);
  const float* from = planes + (ptrdiff_t(y - there.first) * width + x) * LANES;
  const ptrdiff_t pitch = ptrdiff_t(direction.stride[0]) * width * LANES;
  const auto each_row = [&](const auto& copy) {
    for (int channel = 0; channel < channels; ++channel, from += plane, to += tile.channel) {
      for (int row = 0; row < rows; ++row) {
        if (row >= down.first && row < down.last)
          copy(to + row * tile.pitch, from + row * pitch);
        else
          std::fill_n(to + row * tile.pitch, columns, Vector{});
      }
    }
  };
  if constexpr (WIDTH > 0) {
    const bool padded = across.first == 1, usual = step == 2 && across.first <= 1 && across.last == columns;
    if (usual && columns == WIDTH)
      return each_row([&](Vector* row, const float* pixels) { copy_every_second<WIDTH>(row, pixels, padded); });
    if (usual && columns == WIDTH + 1)
      return each_row([&](Vector* row, const float* pixels) { copy_every_second<WIDTH + 1>(row, pixels, padded); });
  }
  each_row([&](Vector* row, const float* pixels) {
    std::fill_n(row, across.first, Vector{});
    for (int i = across.first; i < across.last; ++i) row[i] = load(pixels + ptrdiff_t(i) * step * LANES);
    std::fill_n(row + across.last, columns - across.last, Vector{});
  });
}

// `planes` is the first channel of the block; channels are `plane` floats apart.
template <int HEIGHT, int WIDTH, int EXTENT>
inline void fill_buffer(float* buffer, const float* planes, size_t plane, int channels, const Direction& direction,
                        const Tile& tile, Place place, Rows there) {
  Vector* to = reinterpret_cast<Vector*>(buffer);
  if constexpr (EXTENT >= 0) {
    constexpr int ROWS = HEIGHT + EXTENT, PITCH = WIDTH + EXTENT;
    const bool plain = direction.phases.size() == 1 && direction.stride[0] == 1 && direction.stride[1] == 1;
    const Phase& phase = direction.phases[0];
    const int y = place.row + phase.first[0] + phase.remainder[0],
              x = place.column + phase.first[1] + phase.remainder[1];
    const int right = x + PITCH - direction.input.width;
    if (plain && x >= -1 && right <= 1) {
      const float* from = planes + (ptrdiff_t(y - there.first) * direction.input.width + x) * LANES;
      const size_t pitch = size_t(direction.input.width) * LANES;
      const int top = std::max(0, -y), bottom = std::min(ROWS, there.last - y);
      std::fill_n(to + tile.channel * channels, tile.shared, Vector{});
      if (x < 0 && right > 0)
        return copy_channels<ROWS, PITCH, true, true>(to, from, plane, channels, pitch, top, bottom);
      if (x < 0) return copy_channels<ROWS, PITCH, true, false>(to, from, plane, channels, pitch, top, bottom);
      if (right > 0) return copy_channels<ROWS, PITCH, false, true>(to, from, plane, channels, pitch, top, bottom);
      return copy_channels<ROWS, PITCH, false, false>(to, from, plane, channels, pitch, top, bottom);
    }
  }
  for (size_t i = 0; i < direction.phases.size(); ++i)
    copy_phase<EXTENT >= 0 ? WIDTH : 0>(to + tile.bases[i], planes, plane, channels, direction, tile,
                                        direction.phases[i], place, there);
}

// Calls work<height, width, extent>() for a tile. The extent is how much wider than the tile the buffer's rows are, -1
// when that is left to run time: only the usual ones (1x1, and 3x3 with stride 1 and 2) have code of their own.
template <class Work>
void with_tile(const Direction& direction, const Tile& tile, const Work& work) {
  constexpr int FULL = MANY_REGISTERS ? 4 : 3, ROW = 4 * FULL;
  const int extent = tile.pitch - tile.width;
  const bool usual = direction.phases.size() > 1 || direction.phases[0].extent[0] == extent || tile.shared > 0;
  if (tile.height == FULL && tile.width == 4) {
    if (usual && extent == 0) return work.template operator()<FULL, 4, 0>();
    if (usual && extent == 1) return work.template operator()<FULL, 4, 1>();
    if (usual && extent == 2) return work.template operator()<FULL, 4, 2>();
    return work.template operator()<FULL, 4, -1>();
  }
  if (tile.height == 1 && tile.width == ROW) {
    if (usual && extent == 0) return work.template operator()<1, ROW, 0>();
    return work.template operator()<1, ROW, -1>();
  }
  if (tile.height == 2) return work.template operator()<2, 2, -1>();
  return work.template operator()<1, 1, -1>();
}

// Brings what the next buffer is copied from into the cache, a few rows at a time while the current one is used.
class Prefetcher {
 public:
  Prefetcher() = default;
  Prefetcher(const Direction& direction, const Tile& tile, const float* planes, size_t plane, int channels, Place place,
             int outputs)
      : plane_(plane * sizeof(float)), pitch_(size_t(direction.input.width) * LANES * sizeof(float)) {
    const Phase& phase = direction.phases[0];
    rows_ = std::min(direction.input.height, direction.stride[0] * (tile.height + phase.extent[0]));
    const int y = std::clamp((place.row + phase.first[0]) * direction.stride[0], 0, direction.input.height - rows_);
    const int x = std::clamp((place.column + phase.first[1]) * direction.stride[1], 0, direction.input.width - 1);
    const int columns = std::min(direction.input.width - x, direction.stride[1] * tile.pitch);
    bytes_ = size_t(columns) * LANES * sizeof(float);
    from_ = reinterpret_cast<const char*>(planes) + size_t(y) * pitch_ + size_t(x) * LANES * sizeof(float);
    total_ = rows_ * channels;
    share_ = (total_ + outputs - 1) / std::max(outputs, 1);
  }

  // Plain rows: `rows` of each of `channels` planes, `pitch` and `plane` floats apart.
  Prefetcher(const float* from, size_t plane, size_t pitch, int channels, int rows, size_t floats, int outputs)
      : from_(reinterpret_cast<const char*>(from)),
        plane_(plane * sizeof(float)),
        pitch_(pitch * sizeof(float)),
        bytes_(floats * sizeof(float)),
        rows_(rows),
        total_(rows * channels),
        share_((total_ + outputs - 1) / outputs) {}

  // One output's share.
  FEDMEF_INLINE void advance() {
    for (const int end = std::min(total_, done_ + share_); done_ < end; ++done_) {
      const char* row = from_ + size_t(channel_) * plane_ + size_t(row_) * pitch_;
      for (size_t byte = 0; byte < bytes_; byte += 64) __builtin_prefetch(row + byte, 0, 2);
      if (++row_ == rows_) {
        row_ = 0;
        ++channel_;
      }
    }
  }

 private:
  const char* from_ = nullptr;
  size_t plane_ = 0, pitch_ = 0, bytes_ = 0;
  int rows_ = 0, total_ = 0, share_ = 0, done_ = 0, row_ = 0, channel_ = 0;
};

}  // namespace fedmef::FEDMEF_ISA
