// Operations on one element at a time: images, ReLU with one bit an element, sums and copies.
#include <algorithm>

#include "kernels/clamp.h"
#include "kernels/parts.h"
#include "threads.h"

namespace fedmef::FEDMEF_ISA {

namespace {

constexpr size_t CHUNK = 1 << 14;  // floats that a thread takes at once: a multiple of a word of bits
constexpr int WORD = 64;

// work(begin, end) for consecutive parts of `count` elements.
template <class Work>
void in_chunks(Threads& threads, size_t count, const Work& work) {
  threads.run(int((count + CHUNK - 1) / CHUNK), [&](int chunk, int) {
    const size_t begin = size_t(chunk) * CHUNK;
    work(begin, std::min(count, begin + CHUNK));
  });
}

void clamp_with_bits(float* x, uint8_t* bits, size_t begin, size_t end, Clamp clamp) {
  for (size_t at = begin; at < end; at += WORD) {
    uint64_t word = 0;
    if (at + WORD <= end) {
      FEDMEF_UNROLL for (int i = 0; i < WORD; i += LANES) {
        const Vector v = load(x + at + i);
        word |= uint64_t(mask_bits(clamp.inside(v))) << i;
        store(x + at + i, clamp(v));
      }
    } else {
      each_vector(end - at, [&](size_t i, auto access) {
        const Vector v = access.load(x + at + i);
        word |= uint64_t(mask_bits((IntegerVector)access.only((Vector)clamp.inside(v)))) << i;
        access.store(x + at + i, clamp(v));
      });
    }
    std::memcpy(bits + at / 8, &word, sizeof word);
  }
}

// One channel of one block of images.
void read_plane(const uint8_t* const* images, int filled, size_t plane, Vector scale, Vector shift, float* to) {
  constexpr size_t TILE = 64;
  uint8_t tile[TILE * LANES] = {};
  using Bytes = uint8_t __attribute__((vector_size(LANES)));
  shift = where(first_lanes(filled), shift);
  for (size_t begin = 0; begin < plane; begin += TILE) {
    const size_t pixels = std::min(TILE, plane - begin);
    for (int lane = 0; lane < filled; ++lane)
      for (size_t i = 0; i < pixels; ++i) tile[i * LANES + lane] = images[lane][begin + i];
    for (size_t i = 0; i < pixels; ++i) {
      Bytes bytes;
      std::memcpy(&bytes, tile + i * LANES, sizeof bytes);
      store(to + (begin + i) * LANES, __builtin_convertvector(bytes, Vector) * scale - shift);
    }
  }
}

}  // namespace

void read_images(Threads& threads, Layout layout, const uint8_t* images, Shape shape, const float* scale,
                 const float* shift, float* to) {
  const size_t plane = shape.plane();
  threads.run(layout.blocks() * shape.channels, [&](int item, int) {
    const int block = item / shape.channels, channel = item % shape.channels;
    const auto from = [&](int lane) {
      return images + (size_t(block * layout.lanes + lane) * shape.channels + channel) * plane;
    };
    float* out = to + size_t(item) * plane * layout.lanes;
    if (layout.lanes == 1) {
      const uint8_t* bytes = from(0);
      for (size_t i = 0; i < plane; ++i) out[i] = float(bytes[i]) * scale[channel] - shift[channel];
    } else {
      const uint8_t* lanes[LANES];
      for (int lane = 0; lane < layout.filled(block); ++lane) lanes[lane] = from(lane);
      read_plane(lanes, layout.filled(block), plane, broadcast(scale[channel]), broadcast(shift[channel]), out);
    }
  });
}

void relu(Threads& threads, float* x, uint8_t* bits, size_t count, float upper, bool at_zero) {
  in_chunks(threads, count, [&](size_t begin, size_t end) {
    if (bits && at_zero) return clamp_with_bits(x, bits, begin, end, {broadcast(upper), true});
    if (bits) return clamp_with_bits(x, bits, begin, end, {broadcast(upper), false});
    const Clamp clamp = {broadcast(upper), false};
    each_vector(end - begin,
                [&](size_t at, auto access) { access.store(x + begin + at, clamp(access.load(x + begin + at))); });
  });
}

void relu_backward(Threads& threads, float* gradient, const uint8_t* bits, size_t count) {
  in_chunks(threads, count, [&](size_t begin, size_t end) {
    for (size_t at = begin; at < end; at += WORD) {
      uint64_t word;
      std::memcpy(&word, bits + at / 8, sizeof word);
      if (at + WORD <= end) {
        FEDMEF_UNROLL for (int i = 0; i < WORD; i += LANES) {
          store(gradient + at + i, where(bits_mask(uint32_t(word >> i)), load(gradient + at + i)));
        }
      } else {
        each_vector(end - at, [&](size_t i, auto access) {
          float* place = gradient + at + i;
          access.store(place, where(bits_mask(uint32_t(word >> i)), access.load(place)));
        });
      }
    }
  });
}

void rectify(Threads& threads, float* x, size_t count, const Rectification& how) {
  if (how.kind == Rectification::Kind::relu) relu(threads, x, how.bits, count, how.upper, how.at_zero);
  if (how.kind == Rectification::Kind::relu_backward) relu_backward(threads, x, how.bits, count);
}

void add(Threads& threads, float* to, const float* from, size_t count) {
  in_chunks(threads, count, [&](size_t begin, size_t end) {
    each_vector(end - begin, [&](size_t at, auto access) {
      access.store(to + begin + at, access.load(to + begin + at) + access.load(from + begin + at));
    });
  });
}

void scale(Threads& threads, float* x, float factor, size_t count) {
  in_chunks(threads, count, [&](size_t begin, size_t end) {
    each_vector(end - begin,
                [&](size_t at, auto access) { access.store(x + begin + at, access.load(x + begin + at) * factor); });
  });
}

void copy(Threads& threads, float* to, size_t to_stride, const float* from, size_t from_stride, size_t size, int blocks,
          bool accumulate) {
  const size_t parts = (size + CHUNK - 1) / CHUNK;
  threads.run(int(blocks * parts), [&](int item, int) {
    const size_t block = size_t(item) / parts, begin = size_t(item) % parts * CHUNK;
    const size_t count = std::min(CHUNK, size - begin);
    float* target = to + block * to_stride + begin;
    const float* source = from + block * from_stride + begin;
    if (!accumulate) {
      std::memcpy(target, source, count * sizeof(float));
      return;
    }
    each_vector(count, [&](size_t at, auto access) {
      access.store(target + at, access.load(target + at) + access.load(source + at));
    });
  });
}

}  // namespace fedmef::FEDMEF_ISA
