#include "chaos/residue.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "chaos/process.h"
#include "runtime/base/text.h"

namespace holdfast::chaos {
namespace {

namespace fs = std::filesystem;

std::set<std::string> SharedMemory() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename().string();
    if (name.find("holdfast") != std::string::npos) names.insert(name);
  }
  return names;
}

void ScratchFiles(const std::string& dir, std::vector<std::string>* left) {
  std::error_code error;
  if (!fs::exists(dir, error)) return;
  for (fs::recursive_directory_iterator it(dir, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".tmp") || name.ends_with(".sock") || name == "dump.rdb" ||
        name == "redis.secret" || name == "run.json") {
      left->push_back("file " + it->path().string());
    }
  }
}

}  // namespace

Residue::Residue() : shm_before_(SharedMemory()) {}

std::vector<std::string> Residue::Check(const std::string& mark, const std::string& dir,
                                        Deadline deadline) const {
  std::vector<std::string> left;
  WaitUntil(
      deadline,
      [&] {
        left.clear();
        for (const ProcessInfo& process : MarkedProcesses(mark)) {
          left.push_back("process " + process.Text());
          for (const int port : ListeningPorts(process.pid))
            left.push_back(Cat("port ", port, " of pid ", process.pid));
        }
        for (const std::string& name : SharedMemory()) {
          if (shm_before_.count(name) == 0) left.push_back("/dev/shm/" + name);
        }
        ScratchFiles(dir, &left);
        return left.empty();
      },
      20);
  return left;
}

std::vector<int> ListeningPorts(int pid) {
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(Cat("/proc/", pid, "/fd"), error)) {
    std::error_code ignored;
    const std::string target = fs::read_symlink(entry.path(), ignored).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<int> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // column names
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, queues, timer, retransmit, uid, timeout, inode;
      fields >> number >> local >> remote >> state >> queues >> timer >> retransmit >> uid >>
          timeout >> inode;
      const size_t colon = local.rfind(':');
      if (state != "0A" || inodes.count(inode) == 0 || colon == std::string::npos) continue;
      ports.push_back(static_cast<int>(std::stoul(local.substr(colon + 1), nullptr, 16)));
    }
  }
  return ports;
}

}  // namespace holdfast::chaos
