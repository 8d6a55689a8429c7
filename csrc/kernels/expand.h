// A pruned activation made dense again, some elements at a time.
#pragma once

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/half.h"
#include "kernels/vector.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace fedmef::FEDMEF_ISA {

// How many of the bits [from, to) are set.
inline uint32_t count_bits(const uint8_t* bits, size_t from, size_t to) {
  uint32_t count = 0;
  for (; from < to && from % 8 != 0; ++from) count += bits[from / 8] >> (from % 8) & 1;
  for (; from + 64 <= to; from += 64) {
    uint64_t word;
    std::memcpy(&word, bits + from / 8, sizeof word);
    count += uint32_t(std::popcount(word));
  }
  for (; from < to; ++from) count += bits[from / 8] >> (from % 8) & 1;
  return count;
}

// Of every byte of bits, the place of each lane's value among those that are there.
constexpr std::array<std::array<uint8_t, 8>, 256> EXPANDED = [] {
  std::array<std::array<uint8_t, 8>, 256> table{};
  for (size_t bits = 0; bits < 256; ++bits)
    for (size_t lane = 0, place = 0; lane < 8; ++lane) {
      table[bits][lane] = uint8_t(place);
      place += bits >> lane & 1;
    }
  return table;
}();

// `count` floats, a multiple of LANES, from a bit whose number is a multiple of LANES. It may read LANES floats beyond
// the last value. Returns where the next value is.
inline const float* expand_vectors(const uint8_t* bits, size_t first, const float* values, size_t count, float* to) {
#if FEDMEF_LANES == 16 && defined(__AVX512F__)
  for (size_t i = 0; i < count; i += 16) {
    uint16_t there;
    std::memcpy(&there, bits + (first + i) / 8, sizeof there);
    _mm512_storeu_ps(to + i, _mm512_maskz_expand_ps(there, _mm512_loadu_ps(values)));
    values += std::popcount(there);
  }
#elif FEDMEF_LANES == 8 && defined(__AVX2__)
  const __m256i lane_bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  for (size_t i = 0; i < count; i += 8) {
    const uint8_t there = bits[(first + i) / 8];
    const __m256i places =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(EXPANDED[there].data())));
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(there), lane_bits), lane_bits);
    const __m256 spread = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values), places);
    _mm256_storeu_ps(to + i, _mm256_and_ps(spread, _mm256_castsi256_ps(set)));
    values += std::popcount(there);
  }
#else
  for (size_t i = 0; i < count; ++i) {
    const bool there = bits[(first + i) / 8] >> ((first + i) % 8) & 1;
    to[i] = there ? *values : 0.0f;
    values += there;
  }
#endif
  return values;
}

// `count` elements from bit number `first`, whose first value is number `value`; `converted` has room for as many
// floats and a vector. Returns how many values there were.
inline uint32_t expand_bits(const PrunedActivation& pruned, size_t first, uint32_t value, size_t count, float* to,
                            float* converted) {
  const float* values = static_cast<const float*>(pruned.values) + value;
  if (pruned.type != CacheType::fp32) {
    const uint32_t there = count_bits(pruned.bits, first, first + count);
    widen(pruned.type, static_cast<const uint16_t*>(pruned.values) + value, there, converted);
    values = converted;
  }
  const float* begin = values;
  size_t done = 0;
  if (first % LANES == 0 && first % 8 == 0) {
    done = count / LANES * LANES;
    values = expand_vectors(pruned.bits, first, values, done, to);
  }
  for (; done < count; ++done) {
    const bool there = pruned.bits[(first + done) / 8] >> ((first + done) % 8) & 1;
    to[done] = there ? *values : 0.0f;
    values += there;
  }
  return uint32_t(values - begin);
}

}  // namespace fedmef::FEDMEF_ISA
