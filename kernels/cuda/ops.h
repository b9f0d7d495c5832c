// The table of this backend's operations.
#pragma once

#include "kernels/device_ops.h"

namespace holdfast::kernels::cuda {

const DeviceOps& CudaOps();

}  // namespace holdfast::kernels::cuda
