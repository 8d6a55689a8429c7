// Checks at the border to Python: what does not fit is refused before anything runs.
#pragma once

#include <cstddef>
#include <stdexcept>

namespace fedmef {

inline void require(bool fits, const char* why) {
  if (!fits) throw std::invalid_argument(why);
}

// Products and sums of sizes that came from outside.
inline size_t times(size_t one, size_t other) {
  size_t product = 0;
  require(!__builtin_mul_overflow(one, other, &product), "a size is beyond what this machine can count");
  return product;
}

inline size_t plus(size_t one, size_t other) {
  size_t sum = 0;
  require(!__builtin_add_overflow(one, other, &sum), "a size is beyond what this machine can count");
  return sum;
}

inline size_t rounded_up(size_t size, size_t multiple) { return plus(size, multiple - 1) / multiple * multiple; }

}  // namespace fedmef
