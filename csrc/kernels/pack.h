// Chosen lanes of a vector, next to each other: what expand.h undoes.
#pragma once

#include <array>
#include <cstddef>

#include "kernels/masks.h"

namespace fedmef::FEDMEF_ISA {

#if FEDMEF_LANES == 8 && defined(__AVX2__)
// Of every byte of bits, the lanes that are set, one after the other.
constexpr std::array<std::array<uint8_t, 8>, 256> PACKED = [] {
  std::array<std::array<uint8_t, 8>, 256> table = {};
  for (size_t bits = 0; bits < 256; ++bits)
    for (size_t lane = 0, next = 0; lane < 8; ++lane)
      if (bits >> lane & 1) table[bits][next++] = uint8_t(lane);
  return table;
}();
#endif

// Whether that is an instruction or two; otherwise a loop over the set bits of a longer word is faster.
constexpr bool PACKS_VECTORS = LANES >= 8;

// Writes the lanes whose bit is set, and a whole vector; returns their number.
FEDMEF_INLINE uint32_t pack(Vector v, uint32_t bits, float* to) {
#if FEDMEF_LANES == 16 && defined(__AVX512F__)
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(__mmask16(bits), (__m512)v));
#elif FEDMEF_LANES == 8 && defined(__AVX2__)
  const __m128i lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(PACKED[bits].data()));
  _mm256_storeu_ps(to, _mm256_permutevar8x32_ps((__m256)v, _mm256_cvtepu8_epi32(lanes)));
#else
  uint32_t next = 0;
  FEDMEF_UNROLL for (int lane = 0; lane < LANES; ++lane) {
    to[next] = v[lane];
    next += bits >> lane & 1;
  }
#endif
  return uint32_t(__builtin_popcount(bits));
}

}  // namespace fedmef::FEDMEF_ISA
