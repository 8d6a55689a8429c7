// Batch normalisation's arrays.
#pragma once

#include <vector>

#include "checked.h"
#include "descent.h"
#include "kernels/kernels.h"

namespace fedmef {

struct BatchNormLayer {
  int channels = 1;
  BatchNormConstants constants{};
  bool affine = true;
  Parameter gain, bias;
  std::vector<float> running_mean, running_variance;
  int64_t batches = 0;

  const float* gains() const { return affine ? gain.values.data() : nullptr; }
  const float* biases() const { return affine ? bias.values.data() : nullptr; }
  size_t bytes() const {
    return gain.bytes() + bias.bytes() + (running_mean.size() + running_variance.size()) * sizeof(float);
  }
};

}  // namespace fedmef
