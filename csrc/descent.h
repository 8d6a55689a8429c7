// Stochastic gradient descent on one array.
#pragma once

#include <cstddef>
#include <vector>

namespace fedmef {

// How a step changes what is trained.
struct Descent {
  float rate = 0;
  float momentum = 0;
  float weight_decay = 0;
  float pull = 0;       // λ of extrusion: marked weights get the gradient 2 λ θ as well
  bool record = false;  // keep gradients, for tests
};

// An array that training changes unless it is frozen.
struct Parameter {
  std::vector<float> values;
  std::vector<float> velocity;  // of momentum; empty without
  std::vector<float> recorded;  // the last gradient, if it was asked for
  bool trained = true;

  void load(const float* from, size_t count);
  void descend(const float* gradient, const Descent& descent);
  size_t bytes() const { return (values.size() + velocity.size()) * sizeof(float); }
};

}  // namespace fedmef
