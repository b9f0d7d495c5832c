// What `--device auto` and `--workers auto` mean on this machine.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda_backend.h"
#include "runtime/config/config.h"

namespace holdfast {

// Where the CUDA libraries are looked for first.
kernels::CudaOptions CudaOptionsOf(const Config& config);

// Settles device, and workers where they are left open and the device is cuda: one for each GPU.
// `auto` is what the run computes on (`recorded`: its config, or null), for a new run of a built-in
// model a GPU where there is one, and for a model of one's own, which may know nothing of GPUs, the
// CPU. `notes`: for people. kUsage: cuda was
// asked for and cannot be had (with the reason), or more workers than GPUs; kRefused: the run used
// GPUs and there are none.
absl::Status SettleDevice(const Config* recorded, Config* wanted, std::vector<std::string>* notes);

}  // namespace holdfast
