#include "kernels/cuda/ops.h"

#include "kernels/cuda/cuda_ops.h"

namespace holdfast::kernels::cuda {

const DeviceOps& CudaOps() {
  static constexpr DeviceOps kOps = {
#define HOLDFAST_CUDA_OP(name) .name = &cuda::name,
      HOLDFAST_DEVICE_OPS(HOLDFAST_CUDA_OP)
#undef HOLDFAST_CUDA_OP
  };
  return kOps;
}

}  // namespace holdfast::kernels::cuda
