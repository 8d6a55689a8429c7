// Convolutions of batches that do not fill the lanes: the same as those of `Kernels`, for lanes = 1.
#pragma once

#include "kernels/parts.h"

namespace fedmef::FEDMEF_ISA {

Function<decltype(Kernels::convolve)> small_convolve;
Function<decltype(Kernels::input_gradient)> small_input_gradient;
Function<decltype(Kernels::weight_gradient)> small_weight_gradient;
Function<decltype(Kernels::dense_weight_gradient)> small_dense_weight_gradient;

}  // namespace fedmef::FEDMEF_ISA
