// Sums over long rows of floats: in a fixed order, in pieces, so that rounding errors stay small.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/masks.h"

namespace fedmef::FEDMEF_ISA {

// Two sums over one row.
struct VectorPair {
  Vector first = {}, second = {};
  FEDMEF_INLINE VectorPair operator+(const VectorPair& other) const {
    return {first + other.first, second + other.second};
  }
};

FEDMEF_INLINE Vector only(Some some, Vector v) { return some.only(v); }
FEDMEF_INLINE VectorPair only(Some some, const VectorPair& pair) {
  return {some.only(pair.first), some.only(pair.second)};
}

// The sum, lane by lane, of term(place, access) over the vectors of `count` floats.
template <class Sum = Vector, class Term>
FEDMEF_INLINE Sum lane_sums(size_t count, const Term& term) {
  constexpr size_t STEP = 4 * LANES, PIECE = 64 * STEP;
  Sum result = {};
  size_t at = 0;
  for (const size_t whole = count - count % STEP; at < whole;) {
    const size_t end = std::min(whole, at + PIECE);
    Sum a = {}, b = {}, c = {}, d = {};
    for (; at < end; at += STEP) {
      a = a + term(at, Whole{});
      b = b + term(at + LANES, Whole{});
      c = c + term(at + 2 * LANES, Whole{});
      d = d + term(at + 3 * LANES, Whole{});
    }
    result = result + ((a + b) + (c + d));
  }
  for (; at + LANES <= count; at += LANES) result = result + term(at, Whole{});
  if (at < count) result = result + only(Some{int(count - at)}, term(at, Some{int(count - at)}));
  return result;
}

// Sums of lanes that are images stay apart; those of one image's neighbouring values become one, in every lane.
FEDMEF_INLINE Vector image_sums(int lanes, Vector v) { return lanes == 1 ? broadcast(sum(v)) : v; }

}  // namespace fedmef::FEDMEF_ISA
