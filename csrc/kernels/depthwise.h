// Convolutions in which every channel has a filter of its own; see depthwise.cpp.
#pragma once

#include "kernels/parts.h"
#include "stream.h"

namespace fedmef::FEDMEF_ISA {

inline bool is_depthwise(const ConvolutionPlan& plan) {
  return plan.groups > 1 && plan.input.channels == plan.groups && plan.output.channels == plan.groups;
}

Function<decltype(Kernels::convolve)> depthwise_convolve;
Function<decltype(Kernels::input_gradient)> depthwise_input_gradient;
Function<decltype(Kernels::weight_gradient)> depthwise_weight_gradient;

}  // namespace fedmef::FEDMEF_ISA
