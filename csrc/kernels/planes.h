// A whole plane with its padding, for convolutions that need few planes at once: depthwise ones, and dense stems.
//
// It is the buffer of a tile (tile_buffer.h) that is as large as the grid, so offsets count from pixel to pixel in it.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/expand.h"
#include "kernels/tile_buffer.h"

namespace fedmef::FEDMEF_ISA {

// One plane of a source: `number` counts [blocks][channels] and `plane` its floats. `expanded` has room for a plane and
// `converted` for a plane and a vector, if the source is pruned.
inline const float* dense_plane(const Source& source, size_t number, size_t plane, float* expanded, float* converted) {
  if (source.pruned == nullptr) return source.dense + number * plane;
  expand_bits(*source.pruned, number * plane, source.pruned->starts[number], plane, expanded, converted);
  return expanded;
}

// Planes of one size, one after the other in the same buffer: their padding is written once.
class PaddedPlanes {
 public:
  const Tile tile;

  explicit PaddedPlanes(const Direction& direction) : tile(whole_plane(direction)) {
    const int width = direction.input.width, across = direction.stride[1];
    band_ = int(std::max<size_t>(1, BAND_BYTES / (size_t(tile.pitch) * sizeof(Vector) * direction.phases.size()))) * 2;
    row_ = size_t(direction.stride[0]) * width * LANES;
    column_ = size_t(across) * LANES;
    for (size_t i = 0; i < direction.phases.size(); ++i) {
      const Phase& phase = direction.phases[i];
      const Inside rows = inside(phase, 0, tile.height, direction.stride[0], direction.input.height);
      const Inside columns = inside(phase, 1, tile.width, across, width);
      if (rows.first == rows.last || columns.first == columns.last) continue;
      const ptrdiff_t y = (rows.first + phase.first[0]) * direction.stride[0] + phase.remainder[0];
      const ptrdiff_t x = (columns.first + phase.first[1]) * across + phase.remainder[1];
      parts_.push_back({tile.bases[i] + columns.first, (y * width + x) * LANES, rows.first, rows.last,
                        columns.last - columns.first});
      extent_ = std::max(extent_, phase.extent[0]);
    }
  }

  // Vectors of the buffer.
  size_t size() const { return size_t(tile.channel); }

  void clear(Vector* buffer) const { std::fill_n(buffer, size(), Vector{}); }

  // What is inside of a plane, at its place in a buffer that was cleared.
  void fill(Vector* buffer, const float* plane) const { fill(buffer, plane, 0, tile.height + extent_); }

  // The same band by band, so that rows are still in the L1 cache when they are used: work(first, last) for output rows
  // [first, last), for which everything is there. Where a stride hides from the processor what comes next, planes
  // `in_a_row` are fetched ahead.
  template <class Work>
  void fill_in_bands(Vector* buffer, const float* plane, bool in_a_row, const Work& work) const {
    const bool ahead = in_a_row && parts_.size() > 1;
    int filled = 0;
    for (int first = 0; first < tile.height; first += band_) {
      const int last = std::min(tile.height, first + band_);
      fill(buffer, plane, filled, last + extent_, ahead);
      filled = last + extent_;
      work(first, last);
    }
  }

 private:
  // The rows (or columns) of a phase that are inside of the plane.
  static Inside inside(const Phase& phase, int axis, int length, int stride, int size) {
    return Inside(phase.first[axis] * stride + phase.remainder[axis], stride, length + phase.extent[axis], size);
  }

  // The rows [first, last) of every phase, if they are inside of the plane.
  void fill(Vector* buffer, const float* plane, int first, int last, bool ahead = false) const {
    for (const Part& part : parts_) {
      const int begin = std::max(first, part.first), end = std::min(last, part.last);
      Vector* to = buffer + part.to + ptrdiff_t(begin) * tile.pitch;
      const float* from = plane + part.from + ptrdiff_t(begin - part.first) * ptrdiff_t(row_);
      for (int row = begin; row < end; ++row, to += tile.pitch, from += row_) {
        for (int column = 0; column < part.columns; ++column) to[column] = load(from + size_t(column) * column_);
        if (!ahead) continue;
        for (int column = 0; column < part.columns; ++column)
          __builtin_prefetch(from + size_t(column) * column_ + AHEAD);
      }
    }
  }

  // Of a phase, what is inside of the plane: rows [first, last).
  struct Part {
    int to;          // in vectors, of row 0
    ptrdiff_t from;  // in floats, of row `first`
    int first, last, columns;
  };
  static constexpr size_t BAND_BYTES = 16 * 1024, AHEAD = 16 * 1024 / sizeof(float);  // the latter in floats
  size_t row_, column_;
  int extent_ = 0, band_;
  std::vector<Part> parts_;
};

}  // namespace fedmef::FEDMEF_ISA
