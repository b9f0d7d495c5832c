// Apart from RunGrid: a program without the stand-in of the CUDA runtime has no Enqueue.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "runtime/base/text.h"
#include "tests/emulation/simt.h"

namespace holdfast::emulation {

absl::Status LaunchKernel(cudaStream_t stream, dim3 grid, dim3 block, int64_t shared_bytes,
                          std::function<void()> thread, const char* file, int line) {
  absl::Status sizes = CheckSizes(grid, block, shared_bytes);
  if (!sizes.ok()) {
    return absl::InvalidArgumentError(
        Cat("kernel launched at ", file, ":", line, ": ", sizes.message()));
  }
  Enqueue(stream, [=, thread = std::move(thread)] {
    const absl::Status status = RunGrid(grid, block, shared_bytes, thread, file, line);
    if (status.ok()) return;
    std::fprintf(stderr, "emulated device: %s\n", std::string(StdView(status.message())).c_str());
    std::abort();
  });
  return absl::OkStatus();
}

}  // namespace holdfast::emulation
