// A whole plane with its padding, for convolutions that need few planes at once: depthwise ones, and dense stems.
//
// It is the buffer of a tile (tile_buffer.h) that is as large as the grid, so offsets count from pixel to pixel in it.
#pragma once

#include "kernels/expand.h"
#include "kernels/tile_buffer.h"

namespace fedmef::FEDMEF_ISA {

// Copies one plane: `number` counts [blocks][channels]. `expanded` has room for a plane and `converted` for a plane and
// a vector, if the source is pruned.
inline void fill_plane(Vector* to, const Source& source, size_t number, const Direction& direction, const Tile& whole,
                       float* expanded, float* converted) {
  const size_t plane = direction.input.plane() * LANES;
  const float* from = expanded;
  if (source.pruned == nullptr)
    from = source.dense + number * plane;
  else
    expand_bits(*source.pruned, number * plane, source.pruned->starts[number], plane, expanded, converted);
  for (size_t i = 0; i < direction.phases.size(); ++i)
    copy_phase(to + whole.bases[i], from, direction, whole, direction.phases[i], Place{0, 0},
               Rows{0, direction.input.height});
}

}  // namespace fedmef::FEDMEF_ISA
