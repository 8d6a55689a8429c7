// What every instruction set implements: plain functions on arrays whose sizes the caller has checked.
//
// Results of a network lie in memory as [blocks][channels][height][width][lanes]: `lanes` images next to each other,
// so that one vector holds the same pixel of several images. Lanes without an image are 0 everywhere, in results and
// in gradients. A batch too small to fill the lanes has lanes = 1: plain [images][channels][height][width].
//
// Every result has one owner and every sum a fixed order: nothing depends on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fedmef {

class Threads;
struct Stream;
struct ConvolutionPlan;

struct Shape {
  int channels = 1, height = 1, width = 1;
  size_t plane() const { return size_t(height) * width; }
  size_t size() const { return channels * plane(); }
};

// How a batch lies in memory.
struct Layout {
  int images = 0;
  int lanes = 1;
  int blocks() const { return (images + lanes - 1) / lanes; }
  // How many lanes of a block have an image.
  int filled(int block) const { return block + 1 < blocks() ? lanes : images - block * lanes; }
  // Of a result of which one image has this shape.
  size_t elements(const Shape& shape) const { return size_t(blocks()) * size_t(lanes) * shape.size(); }
};

// Windows that slide over a plane: of a convolution or of pooling.
struct Window {
  int kernel[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1};
};

// An activation of which only the largest magnitudes are kept: one bit an element, in the order of memory, and the
// values one after the other. `starts[i]` is where the values of plane i (block, channel) begin.
enum class CacheType : uint8_t { fp32, fp16, bf16 };
struct PrunedActivation {
  uint8_t* bits = nullptr;
  void* values = nullptr;
  uint32_t* starts = nullptr;
  CacheType type = CacheType::fp32;
};

// What a convolution's weight gradient reads: the exact input, or what is left of it.
struct Source {
  const float* dense = nullptr;
  const PrunedActivation* pruned = nullptr;
};

// What is done to a result as it is stored: nothing, a ReLU, or the backward step of one. See `relu` below.
struct Rectification {
  enum class Kind : uint8_t { none, relu, relu_backward };
  Kind kind = Kind::none;
  uint8_t* bits = nullptr;
  float upper = 0;
  bool at_zero = false;
};

enum class PoolKind : uint8_t { maximum, average, adaptive };
struct Pooling {
  PoolKind kind = PoolKind::average;
  Shape input, output;
  Window window;              // not of adaptive pooling
  bool count_padding = true;  // average: whether padding counts as elements
  int divisor = 0;            // average: replaces the number of elements, unless 0
};

struct BatchNormConstants {
  float epsilon, momentum;
};

struct Kernels {
  const char* name;
  int lanes;
  bool many_registers;  // 32 of them instead of 16

  // ---- images and elementwise -----------------------------------------------------------------------------------
  // uint8 [images, channels, plane] -> x * scale[c] - shift[c] in the layout.
  void (*read_images)(Threads&, Layout, const uint8_t* images, Shape, const float* scale, const float* shift,
                      float* to);
  // In place: min(max(x, 0), upper); one bit an element where 0 < x < upper (or also x == 0 if `at_zero`), unless
  // bits is null. `count` elements; bits has (count + 7) / 8 bytes rounded up to 8.
  void (*relu)(Threads&, float* x, uint8_t* bits, size_t count, float upper, bool at_zero);
  void (*relu_backward)(Threads&, float* gradient, const uint8_t* bits, size_t count);
  void (*rectify)(Threads&, float* x, size_t count, const Rectification& how);
  void (*add)(Threads&, float* to, const float* from, size_t count);
  void (*scale)(Threads&, float* x, float factor, size_t count);
  // For each of `blocks`: `size` floats from `from + block * from_stride` to `to + block * to_stride`.
  void (*copy)(Threads&, float* to, size_t to_stride, const float* from, size_t from_stride, size_t size, int blocks,
               bool accumulate);

  // ---- pooling --------------------------------------------------------------------------------------------------
  // `places` of max pooling: a byte an output, the number of the window's element; null when not training.
  void (*pool)(Threads&, const Pooling&, Layout, const float* x, float* y, uint8_t* places);
  void (*pool_backward)(Threads&, const Pooling&, Layout, const float* dy, const uint8_t* places, float* dx,
                        bool accumulate);

  // ---- normalisation --------------------------------------------------------------------------------------------
  // y may be x. Saves mean and 1 / sqrt(variance + epsilon) for the backward pass, updates the running statistics
  // with momentum (variance unbiased, as PyTorch does) unless running_mean is null. gain and bias may be null.
  void (*batch_norm)(Threads&, Layout, Shape, BatchNormConstants, const float* x, const float* gain, const float* bias,
                     float* running_mean, float* running_variance, float* mean, float* inverse, float* y);
  // The same with given statistics (evaluation, and batches with one value a channel).
  void (*batch_norm_fixed)(Threads&, Layout, Shape, float epsilon, const float* x, const float* gain, const float* bias,
                           const float* running_mean, const float* running_variance, float* y);
  // dx may be dy. d_gain and d_bias may be null; `fixed`: mean and inverse are constants.
  void (*batch_norm_backward)(Threads&, Layout, Shape, const float* x, const float* gain, const float* mean,
                              const float* inverse, const float* dy, float* dx, float* d_gain, float* d_bias,
                              bool fixed);
  // fedmef.nn.features: each image's `size` values; factors has one number an image lane [blocks][lanes].
  void (*layer_norm)(Threads&, Layout, size_t size, float epsilon, float* x, float* factors);
  void (*layer_norm_backward)(Threads&, Layout, size_t size, const float* y, const float* factors, float* gradient);

  // ---- linear layers: weights [out][in], or only those at `columns`, row by row from `rows` ---------------------
  void (*linear)(Threads&, Layout, int inputs, int outputs, const float* weights, const uint32_t* rows,
                 const uint32_t* columns, const float* bias, const float* x, float* y);
  void (*linear_input_gradient)(Threads&, Layout, int inputs, int outputs, const float* weights, const uint32_t* rows,
                                const uint32_t* columns, const float* dy, float* dx, bool accumulate);
  // At the active weights; d_bias may be null.
  void (*linear_weight_gradient)(Threads&, Layout, int inputs, int outputs, const uint32_t* rows,
                                 const uint32_t* columns, const float* x, const float* dy, float* d_weights,
                                 float* d_bias);
  // Mean cross-entropy of the images; logits [blocks][classes][lanes] become their gradient, unless labels is null.
  double (*cross_entropy)(Layout, int classes, const int64_t* labels, float* logits);

  // ---- convolutions: values in the order of the forward stream, see stream.h -------------------------------------
  // With `accumulate` the result is added to what y holds; then there must be no bias.
  void (*convolve)(Threads&, const ConvolutionPlan&, Layout, const float* values, const float* bias, const float* x,
                   float* y, bool accumulate, const Rectification& then);
  // `values` in the order of the backward stream.
  void (*input_gradient)(Threads&, const ConvolutionPlan&, Layout, const float* values, const float* dy, float* dx,
                         bool accumulate, const Rectification& then);
  void (*weight_gradient)(Threads&, const ConvolutionPlan&, Layout, Source, const float* dy, float* d_values);
  void (*bias_gradient)(Threads&, Layout, Shape, const float* dy, float* d_bias);
  // The whole dense gradient of filters [first, last): [last - first][filter_size], for growth scores.
  void (*dense_weight_gradient)(Threads&, const ConvolutionPlan&, Layout, Source, const float* dy, int first, int last,
                                float* gradient);

  // ---- weights of filters [first, last), in the order of the forward stream; see standardization.h ----------------
  // Of every filter the sums of value · factor and of the values, in double. `factors` may be the values.
  void (*filter_sums)(const ConvolutionPlan&, int first, int last, const float* values, const float* factors,
                      double* products, double* sums);
  // to = (value - shift) · factor, with one shift (none if null) and one factor a filter.
  void (*scale_filters)(const ConvolutionPlan&, int first, int last, const float* values, const float* shift,
                        const float* factor, float* to);
  // gradient = (gradient - average - (value - mean) · slope) · factor
  void (*project_filters)(const ConvolutionPlan&, int first, int last, const float* values, const float* mean,
                          const float* slope, const float* average, const float* factor, float* gradient);

  // ---- pruned activations ---------------------------------------------------------------------------------------
  // Keep the `keep` largest magnitudes of `planes` planes of `plane` floats (exactly; ties go to the lower place;
  // zeros are never kept). `scratch` has room for prune_scratch(...) bytes.
  size_t (*prune)(Threads&, const float* x, size_t planes, size_t plane, size_t keep, PrunedActivation&, void* scratch);
};

size_t prune_scratch(size_t planes, size_t plane, size_t keep);

// By name: "avx512", "avx2", "neon", "baseline"; null when it was not compiled or the processor cannot do it.
const Kernels* find_kernels(const char* name);
// The names of those that are compiled and that this processor has, fastest first.
std::vector<const char*> available_kernels();

}  // namespace fedmef
