// Vectors of truth values, as bits and back, and vectors of which only the first elements are in memory.
#pragma once

#include "kernels/vector.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace fedmef::FEDMEF_ISA {

FEDMEF_INLINE IntegerVector lane_numbers() {
  IntegerVector numbers;
  for (int lane = 0; lane < LANES; ++lane) numbers[lane] = lane;
  return numbers;
}

// All ones in the first `count` lanes.
FEDMEF_INLINE IntegerVector first_lanes(int count) { return lane_numbers() < count; }

// One bit a lane of a mask of zeros and all ones.
FEDMEF_INLINE uint32_t mask_bits(IntegerVector mask) {
#if FEDMEF_LANES == 16 && defined(__AVX512DQ__)
  return _mm512_movepi32_mask((__m512i)mask);
#elif FEDMEF_LANES == 8 && defined(__AVX__)
  return uint32_t(_mm256_movemask_ps((__m256)mask));
#elif FEDMEF_LANES == 4 && defined(__SSE2__)
  return uint32_t(_mm_movemask_ps((__m128)mask));
#elif FEDMEF_LANES == 4 && defined(__aarch64__)
  const uint32x4_t places = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32((uint32x4_t)mask, places));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < LANES; ++lane) bits |= uint32_t(mask[lane] & 1) << lane;
  return bits;
#endif
}

// The lowest LANES bits as a mask of zeros and all ones.
FEDMEF_INLINE IntegerVector bits_mask(uint32_t bits) {
#if FEDMEF_LANES == 16 && defined(__AVX512DQ__)
  return (IntegerVector)_mm512_movm_epi32(__mmask16(bits));
#else
  const IntegerVector places = (IntegerVector{} + 1) << lane_numbers();
  return ((IntegerVector{} + int32_t(bits)) & places) != 0;
#endif
}

FEDMEF_INLINE Vector where(IntegerVector mask, Vector v) { return (Vector)((IntegerVector)v & mask); }

// A whole vector in memory, or only its first elements: loops treat both alike.
struct Whole {
  FEDMEF_INLINE Vector load(const float* from) const { return FEDMEF_ISA::load(from); }
  FEDMEF_INLINE void store(float* to, Vector v) const { FEDMEF_ISA::store(to, v); }
  FEDMEF_INLINE Vector only(Vector v) const { return v; }
};
struct Some {
  int count;
#if FEDMEF_LANES == 16 && defined(__AVX512F__)
  FEDMEF_INLINE Vector load(const float* from) const { return (Vector)_mm512_maskz_loadu_ps(bits(), from); }
  FEDMEF_INLINE void store(float* to, Vector v) const { _mm512_mask_storeu_ps(to, bits(), (__m512)v); }
  FEDMEF_INLINE __mmask16 bits() const { return __mmask16((1u << count) - 1); }
#elif FEDMEF_LANES == 8 && defined(__AVX2__)
  FEDMEF_INLINE Vector load(const float* from) const {
    return (Vector)_mm256_maskload_ps(from, (__m256i)first_lanes(count));
  }
  FEDMEF_INLINE void store(float* to, Vector v) const {
    _mm256_maskstore_ps(to, (__m256i)first_lanes(count), (__m256)v);
  }
#else
  FEDMEF_INLINE Vector load(const float* from) const {
    float values[LANES] = {};
    for (int i = 0; i < count; ++i) values[i] = from[i];
    return FEDMEF_ISA::load(values);
  }
  FEDMEF_INLINE void store(float* to, Vector v) const {
    for (int i = 0; i < count; ++i) to[i] = v[i];
  }
#endif
  FEDMEF_INLINE Vector only(Vector v) const { return where(first_lanes(count), v); }
};

// visit(place, access) for every vector of `count` floats; access is `Whole`, or `Some` of the last.
template <class Visit>
FEDMEF_INLINE void each_vector(size_t count, const Visit& visit) {
  size_t at = 0;
  for (; at + LANES <= count; at += LANES) visit(at, Whole{});
  if (at < count) visit(at, Some{int(count - at)});
}

}  // namespace fedmef::FEDMEF_ISA
