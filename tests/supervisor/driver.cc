#include "tests/supervisor/driver.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/base/clock.h"

namespace holdfast {
namespace {

std::string Slurp(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

Driver::Driver() {
  std::string path = (std::filesystem::temp_directory_path() / "holdfast-test-XXXXXX").string();
  dir_ = mkdtemp(path.data());
}

Driver::~Driver() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    (void)waitpid(pid_, nullptr, 0);
  }
  std::error_code error;
  std::filesystem::remove_all(dir_, error);
}

void Driver::Start(const std::string& toml, const std::string& deeds,
                   const std::function<void()>& prepare) {
  const std::string config = dir_ + "/wanted.toml";
  std::ofstream file(config);
  file << "dir = \"" << dir_ << "/run\"\ndata = \"some.txt\"\n";
  for (const char* line : {"workers = 2", "steps = 60", "detect_ms = 500", "log_every = 20"}) {
    const std::string key = std::string(line).substr(0, std::string(line).find(' ') + 1);
    if (("\n" + toml).find("\n" + key) == std::string::npos) file << line << "\n";
  }
  file << toml;
  file.close();
  pid_ = fork();
  if (pid_ != 0) return;
  setenv("HOLDFAST_FAKE_WORKER", deeds.c_str(), 1);
  const int out = open((dir_ + "/out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  const int err = open((dir_ + "/err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  dup2(out, 1);
  dup2(err, 2);
  if (prepare) prepare();
  execl(DRIVER, "supervisor_driver", config.c_str(), FAKE_WORKER, nullptr);
  _exit(126);
}

int Driver::Wait(int seconds) {
  int status = 0;
  const bool ended = Until([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, seconds);
  if (!ended) return -2;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int Driver::Run(const std::string& toml, const std::string& deeds, int seconds) {
  Start(toml, deeds);
  return Wait(seconds);
}

void Driver::Signal(int number) const { kill(pid_, number); }
std::string Driver::Output() const { return Slurp(dir_ + "/err"); }
std::string Driver::Printed() const { return Slurp(dir_ + "/out"); }

nlohmann::json Driver::Summary() const {
  return nlohmann::json::parse(Slurp(RunPath("summary.json")), nullptr, false);
}

std::vector<nlohmann::json> Driver::Lines(const std::string& name) const {
  std::vector<nlohmann::json> lines;
  std::ifstream file(RunPath(name));
  std::string line;
  while (std::getline(file, line)) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) lines.push_back(std::move(json));
  }
  return lines;
}

std::vector<nlohmann::json> Driver::Events(const std::string& kind) const {
  std::vector<nlohmann::json> events;
  for (auto& event : Lines("events.jsonl")) {
    if (event["event"] == kind) events.push_back(event);
  }
  return events;
}

bool Driver::Until(const std::function<bool()>& done, int seconds) {
  const Deadline deadline = Deadline::After(int64_t{1000} * seconds);
  while (!done()) {
    if (deadline.passed()) return false;
    usleep(5000);
  }
  return true;
}

std::vector<pid_t> Driver::ChildrenOf(pid_t pid) {
  std::vector<pid_t> children;
  const std::string path =
      "/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children";
  std::istringstream text(Slurp(path));
  for (pid_t child; text >> child;) children.push_back(child);
  return children;
}

pid_t Driver::PidOfSlot(int slot) const {
  pid_t pid = -1;
  for (const auto& event : Events("start")) {
    if (event["worker"] == slot) pid = event["pid"];
  }
  return pid;
}

bool Driver::Alive(pid_t pid) {
  const std::string stat = Slurp("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.size() > name_end + 2 && stat[name_end + 2] != 'Z';
}

}  // namespace holdfast
