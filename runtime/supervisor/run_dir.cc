#include "runtime/supervisor/run_dir.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_split.h"
#include "runtime/base/digest.h"
#include "runtime/supervisor/exit_status.h"
#include "runtime/supervisor/line_file.h"
#include "runtime/supervisor/settle_bits.h"

namespace holdfast {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFreeBytesMin = 32 << 20;  // below this not even the logs of a short run are safe
constexpr const char* kRunFiles[] = {
    "config.toml", "events.jsonl", "steps.jsonl", "metrics.csv", "metrics.left.csv",
    "tensorboard", "summary.json", "slots",       "products.txt"};

absl::StatusOr<std::string> CreateDirectory(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error)
    return ExitError(ExitCode::kUsage, "--dir ", dir, ": cannot be created: ", error.message());
  const fs::path absolute = fs::canonical(dir, error);
  if (error) return ExitError(ExitCode::kUsage, "--dir ", dir, ": ", error.message());
  if (!fs::is_directory(absolute))
    return ExitError(ExitCode::kUsage, "--dir ", dir, ": is not a directory");
  return absolute.string();
}

absl::Status CheckSpace(const std::string& path) {
  struct statvfs info;
  if (statvfs(path.c_str(), &info) != 0) return absl::OkStatus();  // unknown is no reason to refuse
  const int64_t free_bytes =
      static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  if (free_bytes >= kFreeBytesMin) return absl::OkStatus();
  return ExitError(ExitCode::kUsage, "--dir ", path, ": only ", free_bytes >> 20,
                   " MiB are free there; free some space or choose another directory");
}

// "key = value" lines of one class of keys, old against new: all that differ, or "".
std::string Difference(const std::string& old_text, const std::string& new_text) {
  const std::vector<std::string> old_lines = absl::StrSplit(old_text, '\n');
  const std::vector<std::string> new_lines = absl::StrSplit(new_text, '\n');
  const auto value = [](const std::vector<std::string>& lines, const std::string& key) {
    for (const std::string& line : lines) {
      if (line.rfind(Cat(key, " = "), 0) == 0) return line.substr(key.size() + 3);
    }
    return std::string("(not set)");
  };
  std::vector<std::string> all = old_lines;
  all.insert(all.end(), new_lines.begin(), new_lines.end());
  std::string text;
  std::set<std::string> told;
  for (const std::string& line : all) {
    const std::string key = line.substr(0, line.find(" = "));
    if (key.empty() || !told.insert(key).second) continue;
    const std::string before = value(old_lines, key), now = value(new_lines, key);
    if (before != now)
      text += Cat(text.empty() ? "" : "; ", key, " was ", before, " and is now ", now);
  }
  return text;
}

}  // namespace

int DefaultWorkers() {
  cpu_set_t cpus;
  const int count = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
  return std::max(1, count / 2);
}

std::string DefaultRunName(const std::string& dir, bool embedded) {
  std::string name = fs::path(dir).filename().string();
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') c = '-';
  }
  name = name.substr(0, 80);
  if (name.empty()) name = "run";
  // On a shared Redis two directories of one name must not meet.
  return embedded ? name : Cat(name, "-", Hex(RandomBytes(3)));
}

RecordedRun ReadRecord(const std::string& dir) {
  RecordedRun record;
  ForEachLine(Cat(dir, "/steps.jsonl"), [&](std::string_view line) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return;
    const int64_t step = json["step"];
    if (step <= record.last_step) return;
    record.last_step = step;
    if (json.contains("state_digest") && json["state_digest"].is_string())
      record.last_digest = json["state_digest"];
  });
  const auto summary = ReadSmallFile(Cat(dir, "/summary.json"));
  if (!summary.ok()) return record;
  const auto json = nlohmann::json::parse(*summary, nullptr, false);
  if (!json.is_object()) return record;
  record.summary_json = *summary;
  if (json.contains("finished") && json["finished"].is_boolean())
    record.finished = json["finished"];
  if (json.contains("final_step") && json["final_step"].is_number_integer())
    record.final_step = json["final_step"];
  if (json.contains("state_digest") && json["state_digest"].is_string())
    record.final_digest = json["state_digest"];
  return record;
}

absl::StatusOr<RunDir> RunDir::Open(const std::string& dir) {
  HF_ASSIGN_OR_RETURN(const std::string path, CreateDirectory(dir));
  const std::string lock_path = path + "/lock";
  const int fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return ExitError(ExitCode::kUsage, "--dir ", path,
                     ": cannot be written: ", std::strerror(errno));
  }
  RunDir result(path, fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    char holder[32] = "unknown";
    const ssize_t n = pread(fd, holder, sizeof holder - 1, 0);
    if (n > 0) holder[n] = '\0';
    return ExitError(ExitCode::kBusy, "--dir ", path, " is in use by process ",
                     std::string(holder, strcspn(holder, "\n")),
                     " (holdfast run); wait for its end, stop it (holdfast stop --dir ", path,
                     "), or use another --dir");
  }
  const std::string pid = Cat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return ExitError(ExitCode::kUsage, "--dir ", path,
                     ": cannot be written: ", std::strerror(errno));
  }
  HF_RETURN_IF_ERROR(CheckSpace(path));
  return result;
}

RunDir::~RunDir() {
  if (lock_fd_ < 0) return;
  (void)!ftruncate(lock_fd_, 0);
  close(lock_fd_);
}

std::string RunDir::File(std::string_view name) const { return Cat(path_, "/", name); }

absl::Status RunDir::SetAside() {
  std::error_code error;
  int number = 1;
  while (fs::exists(File(Cat("old-", number)), error)) ++number;
  const std::string target = File(Cat("old-", number));
  bool created = false;
  std::vector<std::string> names(std::begin(kRunFiles), std::end(kRunFiles));
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("steps.branch-")) names.push_back(name);
  }
  for (const std::string& name : names) {
    if (!fs::exists(File(name), error)) continue;
    if (!created) fs::create_directory(target, error);
    created = true;
    if (!error) fs::rename(File(name), Cat(target, "/", name), error);
    if (error)
      return ExitError(ExitCode::kFailed, "--fresh: cannot move ", File(name), " to ", target, ": ",
                       error.message());
  }
  return absl::OkStatus();
}

absl::StatusOr<RunDir::Plan> RunDir::Compare(const Config& old, const Config& given) const {
  Config wanted = given;
  const int64_t old_decay = old.decay_steps > 0 ? old.decay_steps : old.steps;
  if (wanted.decay_steps == 0) wanted.decay_steps = old_decay;
  Plan plan;  // an existing run is settled: nothing but its device is found out anew
  HF_RETURN_IF_ERROR(SettleBits(&old, &wanted, &plan.notes));
  const std::string fresh_hint =
      "; use another --dir, or --fresh to set the old run aside and start anew";
  if (!wanted.run.empty() && !old.run.empty() && wanted.run != old.run) {
    return ExitError(ExitCode::kRefused, path_, " holds the run '", old.run, "', not '", wanted.run,
                     "'", fresh_hint);
  }
  const std::string bits = Difference(old.BitsText(), wanted.BitsText());
  if (!bits.empty()) {
    return ExitError(ExitCode::kRefused, path_,
                     " holds a run with other settings that move the result: ", bits, fresh_hint);
  }
  Config former = old;
  former.decay_steps = old_decay;
  const std::string schedule = Difference(former.ScheduleText(), wanted.ScheduleText());
  if (!schedule.empty() && !wanted.accept_change) {
    return ExitError(
        ExitCode::kRefused, path_, " holds a run with another schedule: ", schedule,
        "; with --accept-change it goes on with the new one from its newest state, in a "
        "new branch (stop all its machines first, and start all with the new value)",
        fresh_hint);
  }
  const RecordedRun record = ReadRecord(path_);
  plan.config = wanted;
  plan.config.run = old.run;
  plan.exists = true;
  plan.step = std::max(record.last_step, record.final_step);
  plan.former_steps = old.steps;
  plan.change = schedule;
  if (wanted.steps < plan.step) {
    return ExitError(ExitCode::kRefused, "--steps ", wanted.steps, " is below the ", plan.step,
                     " that this run has reached: nothing is done");
  }
  plan.finished = record.finished && record.final_step >= wanted.steps;
  plan.digest = record.final_digest;
  if (plan.finished) plan.step = record.final_step;
  return plan;
}

absl::StatusOr<RunDir::Plan> RunDir::Prepare(const Config& wanted) {
  if (wanted.fresh) HF_RETURN_IF_ERROR(SetAside());
  Plan plan;
  plan.config = wanted;
  const auto text = ReadSmallFile(File("config.toml"));
  std::error_code error;
  if (text.ok()) {
    const auto old = ConfigFromToml(*text, File("config.toml"));
    if (!old.ok()) {
      return ExitError(ExitCode::kRefused, "the configuration of the run in ", path_,
                       " cannot be read: ", StdView(old.status().message()),
                       "; use another --dir, or --fresh");
    }
    // A start that never came to train (bad data, a misspelt model) binds nobody.
    const bool trained = fs::exists(File("slots"), error) || ReadRecord(path_).last_step > 0;
    if (trained) {
      HF_ASSIGN_OR_RETURN(plan, Compare(*old, wanted));
    }
  } else if (!absl::IsNotFound(text.status())) {
    return WithExit(text.status(), ExitCode::kUsage);
  } else if (fs::exists(File("slots"), error)) {
    return ExitError(ExitCode::kRefused, path_,
                     " holds checkpoints (slots/) but no config.toml to compare with",
                     "; bring it back, use another --dir, or --fresh");
  }
  if (!plan.exists) HF_RETURN_IF_ERROR(SettleBits(nullptr, &plan.config, &plan.notes));
  if (plan.config.run.empty()) plan.config.run = DefaultRunName(path_, wanted.redis.empty());
  plan.config.dir = path_;
  plan.config.fresh = false;
  plan.config.accept_change = false;
  if (plan.config.decay_steps == 0) plan.config.decay_steps = plan.config.steps;
  if (plan.config.workers == 0)
    plan.config.workers = std::max(DefaultWorkers(), wanted.redis.empty() ? wanted.min_workers : 1);
  return plan;
}

absl::StatusOr<RunDir::Plan> RunDir::Look(const Config& wanted) {
  Config config = wanted;
  std::error_code error;
  const fs::path absolute = fs::weakly_canonical(wanted.dir, error);
  const std::string path = error ? wanted.dir : absolute.string();
  if (fs::exists(path, error) && !fs::is_directory(path, error))
    return ExitError(ExitCode::kUsage, "--dir ", path, ": is not a directory");
  RunDir dir(path, -1);
  if (wanted.fresh) {  // the old run would be out of the way
    Plan plan;
    plan.config = config;
    plan.config.dir = path;
    HF_RETURN_IF_ERROR(SettleBits(nullptr, &plan.config, &plan.notes));
    return plan;
  }
  return dir.Prepare(config);
}

absl::Status RunDir::Begin(const Config& config) {
  const std::string head =
      "# The configuration of the run in this directory, as resolved. Written by `holdfast run`; "
      "not to be edited.\n";
  HF_RETURN_IF_ERROR(WriteFileAtomically(File("config.toml"), Cat(head, config.ToToml())));
  (void)unlink(File("summary.json").c_str());
  return absl::OkStatus();
}

absl::Status RunDir::PublishEndpoint(const Config& config, const RedisAddress& redis,
                                     bool embedded) {
  const nlohmann::json json = {{"pid", getpid()},          {"run", config.run},
                               {"redis_host", redis.host}, {"redis_port", redis.port},
                               {"redis_user", redis.user}, {"embedded", embedded}};
  HF_RETURN_IF_ERROR(WriteFileAtomically(File("redis.secret"), redis.password, 0600));
  return WriteFileAtomically(File("run.json"), json.dump() + "\n");
}

void RunDir::RemoveEndpoint() {
  (void)unlink(File("run.json").c_str());
  (void)unlink(File("redis.secret").c_str());
}

}  // namespace holdfast
