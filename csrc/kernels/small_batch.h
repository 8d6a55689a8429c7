// Convolutions of batches that do not fill the lanes: the same as those of `Kernels`, for lanes = 1.
#pragma once

#include "kernels/parts.h"

namespace fedmef::FEDMEF_ISA {

void small_convolve(Threads& threads, const ConvolutionPlan& plan, Layout layout, const float* values,
                    const float* bias, const float* x, float* y, bool accumulate);
void small_input_gradient(Threads& threads, const ConvolutionPlan& plan, Layout layout, const float* values,
                          const float* dy, float* dx, bool accumulate);
Function<decltype(Kernels::weight_gradient)> small_weight_gradient;
Function<decltype(Kernels::dense_weight_gradient)> small_dense_weight_gradient;

}  // namespace fedmef::FEDMEF_ISA
