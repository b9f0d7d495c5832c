// The parts of the GPU check that are C++: `gpu_check PART` runs one of them. See check.sh, which
// runs them all, each with a time limit, and RESULTS.md.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "kernels/cuda_backend.h"
#include "kernels/device.h"
#include "tests/gpu/check_rows.h"
#include "tests/gpu/shapes.h"

namespace holdfast {

struct GpuCheck {
  kernels::CudaOptions libraries;
  kernels::Device* device = nullptr;  // open, and this thread is bound to it
  GpuShapes shapes;
  CheckRows* rows = nullptr;
  std::string program;    // holdfast
  std::string scratch;    // a folder that exists, for files of this part
  std::string cuda_libs;  // as given, for the program's --cuda-libs
};

// The program. 0: no row of correctness failed; 1: one did; 2: wrong arguments.
int GpuCheckMain(int argc, char** argv);

// Each writes its rows. A status is an error that ended the part before its last row.
absl::Status CheckBandwidth(GpuCheck& check);
absl::Status CheckProducts(GpuCheck& check);
absl::Status CheckAttention(GpuCheck& check);
absl::Status CheckTraining(GpuCheck& check);
absl::Status CheckSums(GpuCheck& check);
absl::Status CheckProbe(GpuCheck& check);
absl::Status CheckNccl(GpuCheck& check);
absl::Status CheckAbsentPeer(GpuCheck& check);
absl::Status CheckResume(GpuCheck& check);
absl::Status TrainForSanitizer(GpuCheck& check);

}  // namespace holdfast
