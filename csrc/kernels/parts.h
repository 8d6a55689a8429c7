// The kernels of one instruction set, file by file, with the signatures of `Kernels`; table.cpp collects them.
#pragma once

#include <type_traits>

#include "kernels/kernels.h"
#include "kernels/vector.h"

namespace fedmef::FEDMEF_ISA {

template <class Pointer>
using Function = std::remove_pointer_t<Pointer>;

// elementwise.cpp
Function<decltype(Kernels::read_images)> read_images;
Function<decltype(Kernels::relu)> relu;
Function<decltype(Kernels::relu_backward)> relu_backward;
Function<decltype(Kernels::rectify)> rectify;
Function<decltype(Kernels::add)> add;
Function<decltype(Kernels::scale)> scale;
Function<decltype(Kernels::copy)> copy;

// pooling.cpp
Function<decltype(Kernels::pool)> pool;
Function<decltype(Kernels::pool_backward)> pool_backward;

// normalization.cpp
Function<decltype(Kernels::batch_norm)> batch_norm;
Function<decltype(Kernels::batch_norm_fixed)> batch_norm_fixed;
Function<decltype(Kernels::batch_norm_backward)> batch_norm_backward;
Function<decltype(Kernels::layer_norm)> layer_norm;
Function<decltype(Kernels::layer_norm_backward)> layer_norm_backward;
Function<decltype(Kernels::bias_gradient)> bias_gradient;

// linear.cpp
Function<decltype(Kernels::linear)> linear;
Function<decltype(Kernels::linear_input_gradient)> linear_input_gradient;
Function<decltype(Kernels::linear_weight_gradient)> linear_weight_gradient;
Function<decltype(Kernels::cross_entropy)> cross_entropy;

// filters.cpp
Function<decltype(Kernels::filter_sums)> filter_sums;
Function<decltype(Kernels::scale_filters)> scale_filters;
Function<decltype(Kernels::project_filters)> project_filters;

// prune.cpp
Function<decltype(Kernels::prune)> prune;

// The files of the convolutions.
Function<decltype(Kernels::convolve)> convolve;
Function<decltype(Kernels::input_gradient)> input_gradient;
Function<decltype(Kernels::weight_gradient)> weight_gradient;
Function<decltype(Kernels::dense_weight_gradient)> dense_weight_gradient;

const Kernels& table();

}  // namespace fedmef::FEDMEF_ISA
