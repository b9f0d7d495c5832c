#include "runtime/dry_run/machine.h"

#include <sched.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "runtime/base/text.h"

namespace holdfast {
namespace {

namespace fs = std::filesystem;

// The number of kB after "KEY:" in a file of /proc; -1 when it is not there.
int64_t KilobytesOf(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key + ":")) continue;
    std::istringstream words(line.substr(key.size() + 1));
    int64_t value = -1;
    words >> value;
    return value;
  }
  return -1;
}

int64_t NumberIn(const std::string& file) {
  std::ifstream in(file);
  std::string word;
  int64_t value = -1;
  if (!(in >> word) || !absl::SimpleAtoi(word, &value)) return -1;  // "max": no limit
  return value;
}

// What the control group of this process and those above it leave; -1: no limit.
int64_t GroupLeaves() {
  std::ifstream in("/proc/self/cgroup");
  int64_t least = -1;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("0::")) continue;
    for (fs::path group = "/sys/fs/cgroup" + line.substr(3);
         group.string().starts_with("/sys/fs/cgroup"); group = group.parent_path()) {
      const int64_t most = NumberIn((group / "memory.max").string());
      const int64_t used = NumberIn((group / "memory.current").string());
      if (most < 0 || used < 0) continue;
      const int64_t left = std::max<int64_t>(0, most - used);
      least = least < 0 ? left : std::min(least, left);
    }
  }
  return least;
}

}  // namespace

std::string NearestFolder(const std::string& path) {
  std::error_code error;
  fs::path at = fs::absolute(path, error);
  while (!fs::is_directory(at, error) && at.has_relative_path()) at = at.parent_path();
  return at.string();
}

MachineFacts LookAtMachine(const std::string& dir) {
  MachineFacts facts;
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) facts.cores = std::max(1, CPU_COUNT(&cpus));
  const int64_t available = KilobytesOf("/proc/meminfo", "MemAvailable");
  const int64_t group = GroupLeaves();
  facts.memory_free = available < 0 ? group : available * 1024;
  if (group >= 0) facts.memory_free = std::min(facts.memory_free, group);
  struct statvfs info;
  if (statvfs(NearestFolder(dir).c_str(), &info) == 0) {
    facts.disk_free = static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  }
  return facts;
}

int64_t AnonymousBytes() {
  // Sums that other workers of the machine may read lie in shared memory.
  return (std::max<int64_t>(0, KilobytesOf("/proc/self/status", "RssAnon")) +
          std::max<int64_t>(0, KilobytesOf("/proc/self/status", "RssShmem"))) *
         1024;
}

}  // namespace holdfast
