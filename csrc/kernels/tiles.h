// The sizes of register tiles, and how large the buffer of a tile may be: shared by the plans and the kernels.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernels.h"

namespace fedmef {

struct TileSize {
  int height, width;
};

// AVX-512 and NEON have 32 vector registers and hold 16 sums, others have 16 and hold 12. The last ones are for planes
// that are smaller than a full tile. A tile that reaches beyond the last row computes only the rows that are there.
inline const std::vector<TileSize>& tile_sizes(bool many_registers) {
  static const std::vector<TileSize> many = {{4, 4}, {1, 16}, {2, 2}, {1, 1}};
  static const std::vector<TileSize> few = {{3, 4}, {1, 12}, {2, 2}, {1, 1}};
  return many_registers ? many : few;
}

// Bytes of the buffer of a tile. It need not fit the L1 cache whole: a larger one has longer segments.
constexpr size_t BUFFER_BYTES = 48 * 1024;

}  // namespace fedmef
