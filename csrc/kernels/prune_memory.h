// The scratch memory of pruning: a record for each chunk, then the candidates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fedmef {

constexpr size_t PRUNE_CHUNK = 1 << 14;  // elements that a thread takes at once, a multiple of 64

struct PruneChunk {
  uint32_t first, count;  // its candidates
  uint32_t above, equal;  // of these: larger than the threshold, and exactly as large
  uint32_t start, ties;   // where its values begin in the result; how many of the equal ones are kept
};

struct PruneMemory {
  size_t chunks, capacity;  // candidates that may be tried; one chunk more has room

  static constexpr PruneMemory of(size_t size, size_t keep) {
    const size_t surplus = (keep / 4 > size / 32 ? keep / 4 : size / 32) + 4096;
    const size_t capacity = keep + surplus < size ? keep + surplus : size;
    return {(size + PRUNE_CHUNK - 1) / PRUNE_CHUNK, capacity};
  }
  constexpr size_t candidates_at() const { return (chunks * sizeof(PruneChunk) + 63) / 64 * 64; }
  constexpr size_t bytes() const { return candidates_at() + (capacity + PRUNE_CHUNK + 64) * sizeof(float); }
};

}  // namespace fedmef
