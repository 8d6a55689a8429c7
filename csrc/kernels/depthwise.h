// Convolutions in which every channel has a filter of its own; see depthwise.cpp.
#pragma once

#include "kernels/parts.h"
#include "stream.h"

namespace fedmef::FEDMEF_ISA {

inline bool is_depthwise(const ConvolutionPlan& plan) {
  return plan.groups > 1 && plan.input.channels == plan.groups && plan.output.channels == plan.groups;
}

void depthwise_convolve(Threads& threads, const ConvolutionPlan& plan, Layout layout, const float* values,
                        const float* bias, const float* x, float* y, bool accumulate);
void depthwise_input_gradient(Threads& threads, const ConvolutionPlan& plan, Layout layout, const float* values,
                              const float* dy, float* dx, bool accumulate);
Function<decltype(Kernels::weight_gradient)> depthwise_weight_gradient;

}  // namespace fedmef::FEDMEF_ISA
