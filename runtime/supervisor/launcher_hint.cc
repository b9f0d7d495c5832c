#include "runtime/supervisor/launcher_hint.h"

#include <cstdlib>
#include <cstring>

#include "runtime/base/text.h"

namespace holdfast {
namespace {

constexpr const char* kVariables[] = {
    "RANK",        "WORLD_SIZE",   "LOCAL_RANK",          "MASTER_ADDR",
    "MASTER_PORT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"};

// A rank above 0: most likely one of several copies of the same command.
bool IsLaterCopy(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::strtol(value, nullptr, 10) > 0;
}

}  // namespace

std::string LauncherHint() {
  std::string names;
  for (const char* name : kVariables) {
    if (std::getenv(name) != nullptr) names += Cat(names.empty() ? "" : ", ", name);
  }
  if (names.empty()) return "";
  const char* launcher = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr ? "mpirun"
                         : std::getenv("SLURM_PROCID") != nullptr       ? "Slurm"
                                                                        : "torchrun";
  std::string text =
      Cat(names, " of another launcher (", launcher,
          "?) are set: ignored. One 'holdfast run' on each machine starts its workers itself "
          "(--workers N) and gives them their ranks; machines meet by --redis URL --run NAME");
  if (std::getenv("SLURM_PROCID") != nullptr) text += ". With Slurm: srun --ntasks-per-node=1";
  if (IsLaterCopy("LOCAL_RANK") || IsLaterCopy("OMPI_COMM_WORLD_LOCAL_RANK") ||
      IsLaterCopy("SLURM_LOCALID")) {
    text += ". This seems to be a further copy on this machine: start one only";
  }
  return text;
}

}  // namespace holdfast
