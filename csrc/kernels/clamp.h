// What a ReLU (or ReLU6) does to a vector, and where its gradient passes.
#pragma once

#include "kernels/masks.h"

namespace fedmef::FEDMEF_ISA {

struct Clamp {
  Vector upper;
  bool at_zero;

  // NaN passes, as in PyTorch.
  FEDMEF_INLINE Vector operator()(Vector x) const {
    const Vector positive = x < 0 ? Vector{} : x;
    return positive > upper ? upper : positive;
  }
  FEDMEF_INLINE IntegerVector inside(Vector x) const {
    return at_zero ? ((x >= 0) & (x < upper)) : ((x > 0) & (x < upper));
  }
};

}  // namespace fedmef::FEDMEF_ISA
