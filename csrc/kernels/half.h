// fp16 and bf16: rounded to nearest even, and at the edge of the type's range instead of infinite.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/kernels.h"
#include "kernels/vector.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace fedmef::FEDMEF_ISA {

constexpr float FP16_LIMIT = 65504.0f;
constexpr float BF16_LIMIT = 0x1.fep127f;

FEDMEF_INLINE uint32_t float_bits(float value) { return __builtin_bit_cast(uint32_t, value); }
FEDMEF_INLINE float bits_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// NaN stays NaN.
FEDMEF_INLINE float clamp_to(float limit, float value) {
  value = value > limit ? limit : value;
  return value < -limit ? -limit : value;
}

FEDMEF_INLINE uint16_t to_bf16(float value) {
  const uint32_t bits = float_bits(clamp_to(BF16_LIMIT, value));
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

FEDMEF_INLINE float from_bf16(uint16_t half) { return bits_float(uint32_t(half) << 16); }

FEDMEF_INLINE uint16_t to_fp16(float value) {
  const uint32_t bits = float_bits(clamp_to(FP16_LIMIT, value));
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);
  if (magnitude < 0x38800000) {  // below 2^-14 numbers are multiples of 2^-24: adding 0.5 rounds to one
    const uint32_t multiple = float_bits(bits_float(magnitude) + 0.5f) - float_bits(0.5f);
    return uint16_t(sign | multiple);
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return uint16_t(sign | ((rounded - 0x38000000) >> 13));
}

FEDMEF_INLINE float from_fp16(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return bits_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // Shifted into place the exponent is 112 too small; a product corrects that for subnormal numbers too.
  return bits_float(sign | float_bits(bits_float(magnitude << 13) * 0x1p112f));
}

FEDMEF_INLINE void narrow(CacheType type, const float* from, size_t count, uint16_t* to) {
  size_t i = 0;
  if (type == CacheType::bf16) {
    for (; i < count; ++i) to[i] = to_bf16(from[i]);
    return;
  }
#if defined(__F16C__)
  const __m256 limit = _mm256_set1_ps(FP16_LIMIT), below = _mm256_set1_ps(-FP16_LIMIT);
  for (; i + 8 <= count; i += 8) {  // NaN is the second operand, which wins
    const __m256 value = _mm256_max_ps(below, _mm256_min_ps(limit, _mm256_loadu_ps(from + i)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  for (; i < count; ++i) to[i] = to_fp16(from[i]);
}

FEDMEF_INLINE void widen(CacheType type, const uint16_t* from, size_t count, float* to) {
  size_t i = 0;
  if (type == CacheType::bf16) {
    for (; i < count; ++i) to[i] = from_bf16(from[i]);
    return;
  }
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
#endif
  for (; i < count; ++i) to[i] = from_fp16(from[i]);
}

}  // namespace fedmef::FEDMEF_ISA
