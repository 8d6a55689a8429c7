// The weight gradient of a dense convolution; see dense_gradient.cpp.
#pragma once

#include "kernels/parts.h"
#include "stream.h"

namespace fedmef::FEDMEF_ISA {

constexpr size_t MOST_WEIGHTS = 8192;  // each has a vector of sums for each part of a batch

// Whether all weights are active, in one group and one block of channels, and few: a stem.
inline bool is_dense(const ConvolutionPlan& plan) {
  return plan.groups == 1 && plan.forward_stream.blocks == 1 && plan.active == plan.size() &&
         plan.active <= MOST_WEIGHTS;
}

Function<decltype(Kernels::weight_gradient)> dense_gradient;

}  // namespace fedmef::FEDMEF_ISA
