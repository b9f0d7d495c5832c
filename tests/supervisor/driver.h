// Starts the supervisor with fake workers in a directory of its own and looks at what it does and
// leaves.
#pragma once

#include <sys/types.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace holdfast {

class Driver {
 public:
  Driver();
  ~Driver();  // kills what still runs, removes the directory

  // Writes the configuration (TOML lines over two workers and 60 steps) and starts the supervisor.
  // `deeds`: see fake_worker.cc. `prepare` runs in the child before exec.
  void Start(const std::string& toml, const std::string& deeds,
             const std::function<void()>& prepare = {});
  // Waits for its end, at most `seconds`; the exit code, or -1 (ended by a signal), or -2 (did not
  // end).
  int Wait(int seconds = 60);
  int Run(const std::string& toml, const std::string& deeds, int seconds = 60);
  void Signal(int number) const;
  pid_t pid() const { return pid_; }
  const std::string& dir() const { return dir_; }
  std::string RunPath(const std::string& name) const { return dir_ + "/run/" + name; }

  std::string Output() const;   // standard error of the supervisor
  std::string Printed() const;  // standard output
  nlohmann::json Summary() const;
  std::vector<nlohmann::json> Lines(const std::string& file) const;
  // Events of a kind.
  std::vector<nlohmann::json> Events(const std::string& kind) const;
  // Polls until `done`, at most `seconds`.
  static bool Until(const std::function<bool()>& done, int seconds = 30);
  // Processes whose parent is `pid` (empty when it has gone).
  static std::vector<pid_t> ChildrenOf(pid_t pid);
  pid_t PidOfSlot(int slot) const;  // newest start; -1
  static bool Alive(pid_t pid);

 private:
  std::string dir_;
  pid_t pid_ = -1;
};

}  // namespace holdfast
