#include "tests/emulation/cuda_testing.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace holdfast::emulation {

int RunChild(const Environment& environment, const std::string& test) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("HOLDFAST_EMULATION_CHILD", "1", 1);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    const std::string filter = "--gtest_filter=" + test;
    execl("/proc/self/exe", "child", filter.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return status;
}

bool IsChild() { return std::getenv("HOLDFAST_EMULATION_CHILD") != nullptr; }

}  // namespace holdfast::emulation
