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
    row_ = size_t(direction.stride[0]) * width * LANES;
    column_ = size_t(across) * LANES;
    for (size_t i = 0; i < direction.phases.size(); ++i) {
      const Phase& phase = direction.phases[i];
      const Range rows = inside(phase, 0, tile.height, direction.stride[0], direction.input.height);
      const Range columns = inside(phase, 1, tile.width, across, width);
      if (rows.first == rows.last || columns.first == columns.last) continue;
      const ptrdiff_t y = (rows.first + phase.first[0]) * direction.stride[0] + phase.remainder[0];
      const ptrdiff_t x = (columns.first + phase.first[1]) * across + phase.remainder[1];
      parts_.push_back({tile.bases[i] + rows.first * tile.pitch + columns.first, (y * width + x) * LANES,
                        rows.last - rows.first, columns.last - columns.first});
    }
  }

  // Vectors of the buffer.
  size_t size() const { return size_t(tile.channel); }

  void clear(Vector* buffer) const { std::fill_n(buffer, size(), Vector{}); }

  // What is inside of a plane, at its place in a buffer that was cleared.
  void fill(Vector* buffer, const float* plane) const {
    for (const Part& part : parts_) {
      Vector* to = buffer + part.to;
      const float* from = plane + part.from;
      for (int row = 0; row < part.rows; ++row, to += tile.pitch, from += row_)
        for (int column = 0; column < part.columns; ++column) to[column] = load(from + size_t(column) * column_);
    }
  }

 private:
  struct Range {
    int first, last;
  };

  // The rows (or columns) of a phase that are inside of the plane.
  static Range inside(const Phase& phase, int axis, int length, int stride, int size) {
    const int start = phase.first[axis] * stride + phase.remainder[axis], all = length + phase.extent[axis];
    const int first = std::min(all, start < 0 ? (-start + stride - 1) / stride : 0);
    const int last = std::min(all, start < size ? (size - start + stride - 1) / stride : 0);
    return {first, std::max(first, last)};
  }

  struct Part {
    int to;          // in vectors
    ptrdiff_t from;  // in floats
    int rows, columns;
  };
  size_t row_, column_;
  std::vector<Part> parts_;
};

}  // namespace fedmef::FEDMEF_ISA
