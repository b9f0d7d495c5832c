// The operations of kernels/device_ops.h as functions of the CUDA backend, each with the signature
// and the contract that it has in kernels/ops.h. Defined in the .cu files beside, one file for one
// section of ops.h.
#pragma once

#include "kernels/device_ops.h"

namespace holdfast::kernels::cuda {

#define HOLDFAST_CUDA_OP(name) decltype(kernels::name) name;
HOLDFAST_DEVICE_OPS(HOLDFAST_CUDA_OP)
#undef HOLDFAST_CUDA_OP

}  // namespace holdfast::kernels::cuda
