// One vector of the instruction set that this translation unit is compiled for.
//
// FEDMEF_ISA names it (and its namespace), FEDMEF_LANES is how many floats a register holds. GCC's and Clang's vector
// extensions do the rest: the same source serves AVX-512, AVX2, NEON and the portable baseline.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#if !defined(FEDMEF_ISA) || !defined(FEDMEF_LANES)
#error "FEDMEF_ISA and FEDMEF_LANES must be defined"
#endif

#define FEDMEF_INLINE inline __attribute__((always_inline))
#define FEDMEF_NOT_INLINE __attribute__((noinline))  // keeps the caller's variables out of its registers
#define FEDMEF_UNROLL _Pragma("GCC unroll 32")

namespace fedmef::FEDMEF_ISA {

constexpr int LANES = FEDMEF_LANES;
constexpr bool MANY_REGISTERS = FEDMEF_MANY_REGISTERS;

using Vector = float __attribute__((vector_size(LANES * 4)));
using IntegerVector = int32_t __attribute__((vector_size(LANES * 4)));
using Vector4 = float __attribute__((vector_size(16)));
using Vector8 = float __attribute__((vector_size(32)));

FEDMEF_INLINE Vector load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

FEDMEF_INLINE void store(float* to, Vector vector) { std::memcpy(to, &vector, sizeof vector); }

// The same for an aligned address, but not into the caches. finish_streaming() comes before another thread reads it.
FEDMEF_INLINE void store_past_caches(float* to, Vector vector) {
#if FEDMEF_LANES == 16 && defined(__AVX512F__)
  _mm512_stream_ps(to, (__m512)vector);
#elif FEDMEF_LANES == 8 && defined(__AVX__)
  _mm256_stream_ps(to, (__m256)vector);
#else
  store(to, vector);
#endif
}

// Whether a result is better written there, given its floats, the pixels of a row and the step from one that is written
// to the next. A large one does not stay in a cache until it is read, and an ordinary store would first read each line
// from memory. Only whole lines are worth it.
inline bool goes_past_caches(const float* result, size_t count, int width, int step) {
  constexpr size_t LEAST = 12 * 1024 * 1024, LINE = 64;
  return LANES > 4 && count * sizeof(float) >= LEAST && (step == 1 || sizeof(Vector) == LINE) &&
         size_t(width) * sizeof(Vector) % LINE == 0 && reinterpret_cast<uintptr_t>(result) % LINE == 0;
}

FEDMEF_INLINE void finish_streaming() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

FEDMEF_INLINE Vector broadcast(float value) { return Vector{} + value; }

// Calls work<count>(), for a count from 1 to MOST: loops over registers need their length at compile time.
template <int MOST, class Work>
FEDMEF_INLINE void with_constant(int count, const Work& work) {
  if constexpr (MOST > 1) {
    if (count < MOST) return with_constant<MOST - 1>(count, work);
  }
  work.template operator()<MOST>();
}

// The sum over four groups of lanes: a first half of a horizontal sum.
FEDMEF_INLINE Vector4 quarter_sums(Vector v) {
#if FEDMEF_LANES == 16
  const Vector8 half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                       __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#elif FEDMEF_LANES == 8
  return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
  return v;
#endif
}

// {sum of a, sum of b, sum of c, sum of d}
FEDMEF_INLINE Vector4 sums(Vector4 a, Vector4 b, Vector4 c, Vector4 d) {
  const Vector4 x = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Vector4 y = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(x, y, 0, 1, 4, 5) + __builtin_shufflevector(x, y, 2, 3, 6, 7);
}

// One sum is added up in the same order as each of several: which of them are added up together changes no bit.
FEDMEF_INLINE float sum(Vector v) {
  const Vector4 s = quarter_sums(v);
  return (s[0] + s[2]) + (s[1] + s[3]);
}

// The sums of eight vectors.
FEDMEF_INLINE Vector8 sums(const Vector (&v)[8]) {
#if FEDMEF_LANES == 16
  // Each step adds two halves (quarters, eighths) of two vectors at once: a blend and a shuffle instead of two
  // shuffles.
  const auto halves = [](Vector a, Vector b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23);
  };
  const auto quarters = [](Vector a, Vector b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 20, 21, 22, 23, 8, 9, 10, 11, 28, 29, 30, 31) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
  };
  const auto eighths = [](Vector a, Vector b) {
    return __builtin_shufflevector(a, b, 0, 1, 18, 19, 4, 5, 22, 23, 8, 9, 26, 27, 12, 13, 30, 31) +
           __builtin_shufflevector(a, b, 2, 3, 16, 17, 6, 7, 20, 21, 10, 11, 24, 25, 14, 15, 28, 29);
  };
  const Vector pairs =
      eighths(quarters(halves(v[0], v[4]), halves(v[2], v[6])), quarters(halves(v[1], v[5]), halves(v[3], v[7])));
  const Vector total =
      pairs + __builtin_shufflevector(pairs, pairs, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  return __builtin_shufflevector(total, total, 0, 2, 4, 6, 8, 10, 12, 14);
#else
  const Vector4 low = sums(quarter_sums(v[0]), quarter_sums(v[1]), quarter_sums(v[2]), quarter_sums(v[3]));
  const Vector4 high = sums(quarter_sums(v[4]), quarter_sums(v[5]), quarter_sums(v[6]), quarter_sums(v[7]));
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#endif
}

}  // namespace fedmef::FEDMEF_ISA
