#include "descent.h"

namespace fedmef {

void Parameter::load(const float* from, size_t count) {
  values.assign(from, from + count);
  velocity.clear();
  recorded.clear();
}

// PyTorch's rule: velocity = momentum * velocity + gradient, from the first gradient on.
void Parameter::descend(const float* gradient, const Descent& descent) {
  if (!trained) return;
  if (descent.record) recorded.assign(gradient, gradient + values.size());
  const size_t count = values.size();
  float* value = values.data();
  if (descent.momentum == 0) {
    for (size_t i = 0; i < count; ++i) value[i] -= descent.rate * (gradient[i] + descent.weight_decay * value[i]);
    return;
  }
  const bool begins = velocity.empty();
  velocity.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const float total = gradient[i] + descent.weight_decay * value[i];
    velocity[i] = begins ? total : descent.momentum * velocity[i] + total;
    value[i] -= descent.rate * velocity[i];
  }
}

}  // namespace fedmef
