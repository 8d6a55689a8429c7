// Exact top-k by magnitude of a whole activation, as a bitmap and packed values.
//
// Magnitudes are compared as integers, the bits of a float without its sign: NaN is the largest. A sample guesses a
// threshold that is slightly too low, and a bound that is slightly too high. One sweep packs the candidates, which are
// what reaches the guess. The exact threshold is found among those between guess and bound, and a sweep over the
// candidates drops the few that are below it. When the guess was wrong, the threshold is found among all elements.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/half.h"
#include "kernels/pack.h"
#include "kernels/parts.h"
#include "kernels/prune_memory.h"
#include "threads.h"

namespace fedmef::FEDMEF_ISA {

namespace {

constexpr int32_t LARGEST = 0x7fffffff;
constexpr size_t CHUNK = PRUNE_CHUNK, WORD = 64;
constexpr size_t LINE = 16, FEWEST_LINES = 256, MOST_LINES = 2048;  // of a sample: an eighth, within these
constexpr size_t SMALL = 4 * LINE * FEWEST_LINES;                   // where a sample does not pay
constexpr int BINS = 4096, SAMPLE_SHIFT = 19;                       // of a sample, a bin is a sixteenth of an octave

FEDMEF_INLINE int32_t magnitude(float value) { return int32_t(float_bits(value)) & LARGEST; }
FEDMEF_INLINE IntegerVector magnitudes(Vector v) { return (IntegerVector)v & LARGEST; }

FEDMEF_INLINE uint64_t read_word(const uint8_t* bits, size_t element) {
  uint64_t word;
  std::memcpy(&word, bits + element / 8, sizeof word);
  return word;
}
FEDMEF_INLINE void write_word(uint8_t* bits, size_t element, uint64_t word) {
  std::memcpy(bits + element / 8, &word, sizeof word);
}

// The lowest bits of `source`, at the places of the set bits of `mask`.
FEDMEF_INLINE uint64_t deposit(uint64_t source, uint64_t mask) {
#if defined(__BMI2__)
  return _pdep_u64(source, mask);
#else
  uint64_t result = 0;
  for (; mask; mask &= mask - 1, source >>= 1) result |= (source & 1) ? mask & -mask : 0;
  return result;
#endif
}

// Packs the elements of a chunk whose magnitude is above `below`; returns their number. `to` has a vector of slack.
size_t pack_chunk(const float* x, size_t count, int32_t below, uint8_t* bits, float* to) {
  float* next = to;
  const size_t rest = count % WORD, whole = count - rest;
  for (size_t at = 0; at < whole; at += WORD) {
    uint64_t word = 0;
    FEDMEF_UNROLL for (size_t i = 0; i < WORD; i += LANES) {
      const Vector v = load(x + at + i);
      const uint32_t set = mask_bits(magnitudes(v) > below);
      word |= uint64_t(set) << i;
      if (PACKS_VECTORS) next += pack(v, set, next);
    }
    write_word(bits, at, word);
    if (!PACKS_VECTORS)
      for (; word; word &= word - 1) *next++ = x[at + size_t(__builtin_ctzll(word))];
  }
  if (rest) {
    uint64_t word = 0;
    for (size_t i = 0; i < rest; ++i) {
      if (magnitude(x[whole + i]) <= below) continue;
      word |= uint64_t(1) << i;
      *next++ = x[whole + i];
    }
    write_word(bits, whole, word);
  }
  return size_t(next - to);
}

// One chunk in which only the first `ties` elements that equal the threshold are kept.
size_t pack_chunk_with_ties(const float* x, size_t count, int32_t threshold, uint32_t ties, uint8_t* bits, float* to) {
  float* next = to;
  for (size_t at = 0; at < count; at += WORD) {
    uint64_t word = 0;
    for (size_t i = at; i < std::min(at + WORD, count); ++i) {
      const int32_t size = magnitude(x[i]);
      if (size < threshold || (size == threshold && ties == 0)) continue;
      ties -= size == threshold;
      word |= uint64_t(1) << (i - at);
      *next++ = x[i];
    }
    write_word(bits, at, word);
  }
  return size_t(next - to);
}

struct Threshold {
  int32_t value = 1;
  size_t above = 0;  // elements that are larger
  size_t equal = 0;  // elements that are as large
  bool found = false;
};

// Counts, among `count` floats, magnitudes in [low, high] by bins of 2^shift, and those above `high`.
size_t count_bins(const float* x, size_t count, int32_t low, int32_t high, int shift, uint32_t* bins) {
  constexpr size_t PART = 1024;
  float inside[PART + LANES];
  IntegerVector above = {};
  size_t tail_above = 0;
  const auto tally = [&](size_t kept) {
    for (size_t i = 0; i < kept; ++i) ++bins[(magnitude(inside[i]) - low) >> shift];
  };
  size_t at = 0;
  for (; at + LANES <= count;) {
    const size_t end = std::min(count - count % LANES, at + PART);
    float* next = inside;
    for (; at < end; at += LANES) {
      const Vector v = load(x + at);
      const IntegerVector size = magnitudes(v), larger = size > high;
      above -= larger;
      next += pack(v, mask_bits((size >= low) & ~larger), next);
    }
    tally(size_t(next - inside));
  }
  float* next = inside;
  for (; at < count; ++at) {
    const int32_t size = magnitude(x[at]);
    tail_above += size > high;
    if (size >= low && size <= high) *next++ = x[at];
  }
  tally(size_t(next - inside));
  for (int lane = 0; lane < LANES; ++lane) tail_above += uint32_t(above[lane]);
  return tail_above;
}

// The magnitude of rank `rank` (1 is the largest) if it lies in [low, high].
Threshold select(Threads& threads, const float* x, size_t count, size_t rank, int32_t low, int32_t high) {
  const int parts = int((count + CHUNK - 1) / CHUNK);
  while (true) {
    int shift = 0;
    while ((high - low) >> shift >= BINS) ++shift;
    for (int thread = 0; thread < threads.count(); ++thread)
      std::memset(threads.scratch(thread), 0, BINS * sizeof(uint32_t));
    std::atomic<size_t> larger{0};
    threads.run(parts, [&](int part, int thread) {
      uint32_t* bins = static_cast<uint32_t*>(threads.scratch(thread));
      const size_t begin = size_t(part) * CHUNK;
      larger += count_bins(x + begin, std::min(CHUNK, count - begin), low, high, shift, bins);
    });
    uint32_t* bins = static_cast<uint32_t*>(threads.scratch(0));
    for (int thread = 1; thread < threads.count(); ++thread) {
      const uint32_t* others = static_cast<const uint32_t*>(threads.scratch(thread));
      for (int bin = 0; bin < BINS; ++bin) bins[bin] += others[bin];
    }
    size_t above = larger;
    if (above >= rank) return {};
    int bin = (high - low) >> shift;
    while (bin >= 0 && above + bins[bin] < rank) above += bins[bin--];
    if (bin < 0) return {1, above, 0, false};
    const int32_t begin = low + (bin << shift);
    if (shift == 0) return {begin, above, bins[bin], true};
    high = int32_t(std::min(int64_t(high), int64_t(begin) + (int64_t(1) << shift) - 1));
    low = begin;
  }
}

struct Guess {
  int32_t low = 1, high = LARGEST;

  // Whole bins: where many elements are equal, the threshold is in the bin but not where the guess is.
  Guess wider() const {
    constexpr int32_t inside = (1 << SAMPLE_SHIFT) - 1;
    return {std::max(low & ~inside, 1), high | inside};
  }
};

// Magnitudes that slightly more and slightly fewer than `keep` elements reach, as a sample of cache lines tells.
Guess guess_threshold(const float* x, size_t size, size_t keep) {
  uint32_t bins[BINS] = {};
  const size_t lines = size / LINE, wanted = std::clamp(lines / 8, FEWEST_LINES, MOST_LINES);
  const size_t step = (lines / wanted) | 1;  // odd, so that it meets every row and column
  size_t sampled = 0;
  for (size_t line = 0; line < lines; line += step, sampled += LINE)
    for (size_t i = 0; i < LINE; ++i) ++bins[magnitude(x[line * LINE + i]) >> SAMPLE_SHIFT];
  const double share = double(keep) / double(size);
  // Neighbours are alike: a line counts as a quarter of its elements.
  const double error = 3 * std::sqrt(share * (1 - share) * 4 / double(sampled));
  const auto at_rank = [&](double rank, int32_t otherwise) {
    double above = 0;
    for (int bin = BINS - 1; bin >= 0 && rank > 0; --bin) {
      if (above + bins[bin] >= rank) {
        const double into = double(bins[bin] - (rank - above)) / bins[bin];
        return std::max(1, int32_t((bin + into) * (1 << SAMPLE_SHIFT)));
      }
      above += bins[bin];
    }
    return otherwise;
  };
  Guess guess;
  guess.low = at_rank((share + error) * double(sampled), 1);
  guess.high = std::max(guess.low, at_rank((share - error) * double(sampled), LARGEST));
  return guess;
}

class Pruner {
 public:
  Pruner(Threads& threads, const float* x, size_t planes, size_t plane, size_t keep, const PrunedActivation& to,
         void* scratch)
      : threads_(threads), x_(x), planes_(planes), plane_(plane), size_(planes * plane), keep_(keep), to_(to) {
    memory_ = PruneMemory::of(size_, keep);
    chunks_ = static_cast<PruneChunk*>(scratch);
    candidates_ = reinterpret_cast<float*>(static_cast<char*>(scratch) + memory_.candidates_at());
  }

  size_t run() {
    threads_.reserve((CHUNK + 64) * sizeof(float));  // a chunk's values, or the bins of `select`
    if (size_ > SMALL) {
      const Guess guess = guess_threshold(x_, size_, keep_);
      if (pack_candidates(guess.low) && select_among_candidates(guess)) return finish(true);
      threshold_ = select(threads_, x_, size_, keep_, guess.wider().low, guess.wider().high);
    }
    if (!threshold_.found) threshold_ = select(threads_, x_, size_, keep_, 1, LARGEST);
    return finish(false);
  }

 private:
  size_t chunk_size(size_t chunk) const { return std::min(CHUNK, size_ - chunk * CHUNK); }
  uint8_t* chunk_bits(size_t chunk) const { return to_.bits + chunk * CHUNK / 8; }

  float* thread_buffer(int thread) { return static_cast<float*>(threads_.scratch(thread)); }

  // False when there are more than have room.
  bool pack_candidates(int32_t low) {
    std::atomic<size_t> used{0};
    threads_.run(int(memory_.chunks), [&](int chunk, int thread) {
      if (used.load() > memory_.capacity) return;
      const bool alone = threads_.count() == 1;
      float* buffer = alone ? candidates_ + used.load() : thread_buffer(thread);
      const size_t count = pack_chunk(x_ + chunk * CHUNK, chunk_size(chunk), low - 1, chunk_bits(chunk), buffer);
      const size_t first = used.fetch_add(count);
      chunks_[chunk] = {uint32_t(first), uint32_t(count), 0, 0, 0, 0};
      if (!alone && first + count <= memory_.capacity) std::memcpy(candidates_ + first, buffer, count * sizeof(float));
    });
    used_ = used;
    return used_ <= memory_.capacity;
  }

  bool select_among_candidates(Guess guess) {
    if (used_ <= keep_ && guess.low == 1) {
      threshold_ = {1, used_, 0, true};
      return true;
    }
    if (used_ < keep_) return false;
    threshold_ = select(threads_, candidates_, used_, keep_, guess.low, guess.high);
    if (!threshold_.found) threshold_ = select(threads_, candidates_, used_, keep_, guess.low, LARGEST);
    return threshold_.found;
  }

  // What each chunk keeps, then the bits and values themselves.
  size_t finish(bool from_candidates) {
    const auto source = [&](size_t chunk) {
      return from_candidates ? candidates_ + chunks_[chunk].first : x_ + chunk * CHUNK;
    };
    if (!from_candidates)
      for (size_t chunk = 0; chunk < memory_.chunks; ++chunk) chunks_[chunk].count = uint32_t(chunk_size(chunk));
    threads_.run(int(memory_.chunks), [&](int chunk, int) { count_chunk(chunks_[chunk], source(size_t(chunk))); });
    size_t above = 0, start = 0;
    for (const PruneChunk* chunk = chunks_; chunk < chunks_ + memory_.chunks; ++chunk) above += chunk->above;
    size_t ties = keep_ - above;
    for (PruneChunk* chunk = chunks_; chunk < chunks_ + memory_.chunks; ++chunk) {
      chunk->ties = uint32_t(std::min(ties, size_t(chunk->equal)));
      chunk->start = uint32_t(start);
      ties -= chunk->ties;
      start += chunk->above + chunk->ties;
    }
    threads_.run(int(memory_.chunks), [&](int chunk, int thread) {
      float* buffer = thread_buffer(thread);
      const size_t count = from_candidates ? drop_candidates(size_t(chunk), buffer) : pack_kept(size_t(chunk), buffer);
      write_values(chunks_[chunk].start, buffer, count);
      write_starts(size_t(chunk));
    });
    return start;
  }

  void count_chunk(PruneChunk& chunk, const float* values) const {
    const int32_t threshold = threshold_.value;
    IntegerVector above = {}, equal = {};
    size_t i = 0;
    for (; i + LANES <= chunk.count; i += LANES) {
      const IntegerVector size = magnitudes(load(values + i));
      above -= size > threshold;
      equal -= size == threshold;
    }
    chunk.above = chunk.equal = 0;
    for (int lane = 0; lane < LANES; ++lane) {
      chunk.above += uint32_t(above[lane]);
      chunk.equal += uint32_t(equal[lane]);
    }
    for (; i < chunk.count; ++i) {
      chunk.above += magnitude(values[i]) > threshold;
      chunk.equal += magnitude(values[i]) == threshold;
    }
  }

  // Bits and values of `count` floats as the threshold and this chunk's ties say.
  size_t pack_exactly(const PruneChunk& chunk, const float* x, size_t count, uint8_t* bits, float* to) const {
    if (chunk.ties == 0) return pack_chunk(x, count, threshold_.value, bits, to);
    if (chunk.ties == chunk.equal) return pack_chunk(x, count, threshold_.value - 1, bits, to);
    return pack_chunk_with_ties(x, count, threshold_.value, chunk.ties, bits, to);
  }

  size_t pack_kept(size_t chunk, float* buffer) const {
    return pack_exactly(chunks_[chunk], x_ + chunk * CHUNK, chunk_size(chunk), chunk_bits(chunk), buffer);
  }

  // The same from the candidates: a bit for each says whether it stays, and these bits spread over the candidates' own.
  size_t drop_candidates(size_t number, float* buffer) const {
    const PruneChunk& chunk = chunks_[number];
    uint8_t staying[CHUNK / 8 + 16];
    std::memset(staying + (chunk.count + WORD - 1) / WORD * 8, 0, 16);  // read, but of no effect
    const size_t count = pack_exactly(chunk, candidates_ + chunk.first, chunk.count, staying, buffer);
    uint8_t* bits = chunk_bits(number);
    size_t seen = 0;
    for (size_t at = 0; at < chunk_size(number); at += WORD) {
      const uint64_t word = read_word(bits, at);
      const size_t shift = seen % WORD, before = seen - shift;
      const uint64_t low = read_word(staying, before) >> shift;
      const uint64_t high = read_word(staying, before + WORD) << 1 << (WORD - 1 - shift);
      write_word(bits, at, deposit(low | high, word));
      seen += size_t(__builtin_popcountll(word));
    }
    return count;
  }

  void write_values(size_t start, const float* values, size_t count) const {
    if (to_.type == CacheType::fp32)
      std::memcpy(static_cast<float*>(to_.values) + start, values, count * sizeof(float));
    else
      narrow(to_.type, values, count, static_cast<uint16_t*>(to_.values) + start);
  }

  // Of the planes that begin in this chunk.
  void write_starts(size_t chunk) const {
    const size_t begin = chunk * CHUNK, end = begin + chunk_size(chunk);
    size_t rank = chunks_[chunk].start, word = begin;
    for (size_t plane = (begin + plane_ - 1) / plane_; plane < planes_ && plane * plane_ < end; ++plane) {
      const size_t first = plane * plane_;
      for (; word + WORD <= first; word += WORD) rank += size_t(__builtin_popcountll(read_word(to_.bits, word)));
      const uint64_t before = read_word(to_.bits, word) & ((uint64_t(1) << (first - word)) - 1);
      to_.starts[plane] = uint32_t(rank + size_t(__builtin_popcountll(before)));
    }
  }

  Threads& threads_;
  const float* x_;
  size_t planes_, plane_, size_, keep_;
  PrunedActivation to_;
  PruneMemory memory_;
  PruneChunk* chunks_;
  float* candidates_;
  size_t used_ = 0;
  Threshold threshold_;
};

}  // namespace

size_t prune(Threads& threads, const float* x, size_t planes, size_t plane, size_t keep, PrunedActivation& to,
             void* scratch) {
  const size_t size = planes * plane;
  if (size == 0) return 0;
  if (keep == 0) {
    std::memset(to.bits, 0, (size + WORD - 1) / WORD * 8);
    std::memset(to.starts, 0, planes * sizeof(uint32_t));
    return 0;
  }
  return Pruner(threads, x, planes, plane, std::min(keep, size), to, scratch).run();
}

}  // namespace fedmef::FEDMEF_ISA
