// One vector of the instruction set that this translation unit is compiled for.
//
// FEDMEF_ISA names it (and its namespace), FEDMEF_LANES is how many floats a register holds. GCC's and Clang's vector
// extensions do the rest: the same source serves AVX-512, AVX2, NEON and the portable baseline.
#pragma once

#include <cstdint>
#include <cstring>

#if !defined(FEDMEF_ISA) || !defined(FEDMEF_LANES)
#error "FEDMEF_ISA and FEDMEF_LANES must be defined"
#endif

#define FEDMEF_INLINE inline __attribute__((always_inline))
#define FEDMEF_UNROLL _Pragma("GCC unroll 16")

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

FEDMEF_INLINE float sum(Vector v) {
  const Vector4 s = quarter_sums(v);
  return (s[0] + s[1]) + (s[2] + s[3]);
}

}  // namespace fedmef::FEDMEF_ISA
