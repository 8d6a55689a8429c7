// The table of one instruction set's kernels.
#include "kernels/parts.h"

#define FEDMEF_TEXT_OF(name) #name
#define FEDMEF_TEXT(name) FEDMEF_TEXT_OF(name)

namespace fedmef::FEDMEF_ISA {

const Kernels& table() {
  static constexpr Kernels kernels = {
      .name = FEDMEF_TEXT(FEDMEF_ISA),
      .lanes = LANES,
      .many_registers = MANY_REGISTERS,
      .read_images = read_images,
      .relu = relu,
      .relu_backward = relu_backward,
      .rectify = rectify,
      .add = add,
      .scale = scale,
      .copy = copy,
      .pool = pool,
      .pool_backward = pool_backward,
      .batch_norm = batch_norm,
      .batch_norm_fixed = batch_norm_fixed,
      .batch_norm_backward = batch_norm_backward,
      .layer_norm = layer_norm,
      .layer_norm_backward = layer_norm_backward,
      .linear = linear,
      .linear_input_gradient = linear_input_gradient,
      .linear_weight_gradient = linear_weight_gradient,
      .cross_entropy = cross_entropy,
      .convolve = convolve,
      .input_gradient = input_gradient,
      .weight_gradient = weight_gradient,
      .bias_gradient = bias_gradient,
      .dense_weight_gradient = dense_weight_gradient,
      .filter_sums = filter_sums,
      .scale_filters = scale_filters,
      .project_filters = project_filters,
      .prune = prune,
  };
  return kernels;
}

}  // namespace fedmef::FEDMEF_ISA
