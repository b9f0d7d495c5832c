#include "runtime/collectives/nccl/nccl.h"

namespace holdfast {

absl::StatusOr<std::unique_ptr<NcclFactory>> NcclFactory::Create(const NcclOptions&) {
  return absl::UnimplementedError(
      "this program was built without NCCL: build it where the CUDA toolkit and NCCL are "
      "installed");
}

}  // namespace holdfast
