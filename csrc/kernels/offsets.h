// The offsets of a stream's weights, read some weights before their turn.
//
// Where a weight finds its factors is known only when its offset is loaded, and a processor's loads wait for each other
// in about the order of their age: an offset that is loaded right before its factors keeps all of them waiting.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/vector.h"
#include "stream.h"

namespace fedmef::FEDMEF_ISA {

class OffsetsAhead {
  static_assert(OFFSETS_AHEAD == 8 && std::endian::native == std::endian::little);

 public:
  FEDMEF_INLINE explicit OffsetsAhead(const uint16_t* offsets)
      : now_(four(offsets)), next_(four(offsets + 4)), following_(offsets + OFFSETS_AHEAD) {}

  // visit(i, offset) for the next `count` weights, and moves on past them.
  template <class Visit>
  FEDMEF_INLINE void each(int count, const Visit& visit) {
    int done = 0;
    for (; done + 4 <= count; done += 4) {
      const uint64_t taken = now_;
      now_ = next_;
      next_ = four(following_);
      following_ += 4;
      FEDMEF_UNROLL for (int i = 0; i < 4; ++i) visit(done + i, uint16_t(taken >> (16 * i)));
    }
    if (done == count) return;
    uint64_t taken = now_;
    const int left = count - done;
    now_ = now_ >> (16 * left) | next_ << (64 - 16 * left);
    following_ += left;
    next_ = four(following_ - 4);
    for (; done < count; ++done, taken >>= 16) visit(done, uint16_t(taken));
  }

 private:
  // The first of them in the lowest bits.
  FEDMEF_INLINE static uint64_t four(const uint16_t* from) {
    uint64_t word;
    std::memcpy(&word, from, sizeof word);
    return word;
  }

  uint64_t now_, next_;  // the eight weights whose turn is next
  const uint16_t* following_;
};

}  // namespace fedmef::FEDMEF_ISA
