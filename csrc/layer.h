// A convolution or a linear layer: its weights in the order of the forward stream, its passes and its step of descent.
#pragma once

#include <optional>
#include <vector>

#include "descent.h"
#include "growth.h"
#include "standardization.h"
#include "stream.h"
#include "threads.h"

namespace fedmef {

struct LayerSettings {
  Shape input, output;
  Window window;
  int groups = 1;
  bool sparse = false;  // it has a mask; otherwise every weight is active
  bool linear = false;  // a dense linear layer, which has kernels of its own; a sparse one is a 1x1 convolution
  bool bias = false, gain = false;
  std::optional<Normalization> normalization;
  bool train_values = true, train_gain = true, train_bias = true;
};

class Layer;

// Memory that one layer after the other uses.
struct Scratch {
  // `weights` are what convolves, and then the weights' gradient: never both at a time.
  std::vector<float> weights, transposed, gain_gradient, bias_gradient, rows;
  const Layer* of = nullptr;  // whose weights are transposed

  static float* at_least(std::vector<float>& memory, size_t count) {
    if (memory.size() < count) memory = std::vector<float>(count);
    return memory.data();
  }
  size_t bytes() const;
};

// What a pass works with.
struct Pass {
  const Kernels& kernels;
  Threads& threads;
  Layout layout;
  Scratch& scratch;
};

class Layer {
 public:
  // Throws when the shapes do not fit each other.
  explicit Layer(const LayerSettings& settings);

  // Values in canonical order. A mask, of a sparse layer only, has one bit a weight; the last byte ends with zeros.
  void load_values(const Kernels& kernels, const float* values, size_t count, const uint8_t* mask, size_t mask_bytes);
  std::vector<float> canonical(const std::vector<float>& stream) const;
  // Mark active weights, by their canonical places, to be pulled towards 0.
  void mark(const int64_t* places, size_t count);
  double marked_squares() const;

  // Before any of the following: makes the indices those of the pass.
  void prepare(const Pass& pass);
  void forward(const Pass& pass, const float* x, float* y, bool accumulate, const Rectification& then);
  // Leaves the weights in the order of the input's gradient in the scratch memory, where input_gradient() finds them.
  void transpose(const Pass& pass);
  void input_gradient(const Pass& pass, const float* dy, float* dx, bool accumulate, const Rectification& then);
  // Leaves the gradients in the scratch memory, where update() finds them. `source` is empty if only the bias is
  // trained.
  void weight_gradient(const Pass& pass, Source source, const float* dy);
  void update(const Pass& pass, const Descent& descent);
  // The largest `growing` gradients at pruned positions, to `scores`.
  void score(const Pass& pass, Source source, const float* dy);

  // Make the scratch memory large enough for a pass.
  void reserve(Scratch& scratch, bool backward) const;

  const LayerSettings& settings() const { return settings_; }
  size_t size() const;                                      // weights, active or pruned
  std::vector<uint8_t> mask(const Kernels& kernels) const;  // one bit a weight; empty if it has none
  bool is_loaded() const { return loaded_; }
  bool trains_weights() const { return values.trained || (settings_.gain && gain.trained); }
  size_t weight_bytes() const;
  size_t index_bytes() const;

  Parameter values, gain, bias;
  size_t growing = 0;
  GrowthScores scores;

 private:
  bool is_effective() const { return settings_.gain || settings_.normalization; }
  const FilterStatistics* statistics() const { return settings_.normalization ? &statistics_ : nullptr; }
  const float* gains() const { return settings_.gain ? gain.values.data() : nullptr; }
  const float* biases() const { return settings_.bias ? bias.values.data() : nullptr; }
  const float* effective(const Pass& pass);

  LayerSettings settings_;
  ConvolutionPlan plan_;
  FilterStatistics statistics_;
  std::vector<uint32_t> marked_;
  bool loaded_ = false;
};

}  // namespace fedmef
