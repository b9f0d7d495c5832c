#include "tests/bench/live_run.h"

#include <signal.h>
#include <stdlib.h>

#include <algorithm>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "runtime/base/digest.h"
#include "runtime/base/exit_code.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"

namespace holdfast {

namespace fs = std::filesystem;

BenchFolder::BenchFolder() {
  chaos::AdoptOrphans();
  path_ = (fs::temp_directory_path() / "holdfast-bench-XXXXXX").string();
  if (mkdtemp(path_.data()) == nullptr) {
    std::perror(path_.c_str());
    std::exit(1);
  }
  std::ofstream out(text());
  const char* words[] = {"the ", "run ", "goes ", "on ", "whatever ", "dies ", "and ", "ends\n"};
  for (uint64_t i = 0; i < 80'000; ++i) out << words[Mix64(i) % 8];
}

BenchFolder::~BenchFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

absl::StatusOr<std::unique_ptr<LiveRun>> LiveRun::Start(const BenchFolder& folder,
                                                        const std::string& name,
                                                        const std::vector<std::string>& flags) {
  std::unique_ptr<LiveRun> run(new LiveRun(folder.path() + "/" + name));
  const char* program = std::getenv("HOLDFAST_PROGRAM");
  chaos::SpawnOptions options;
  options.args = {fs::absolute(program != nullptr ? program : "build/holdfast").string(),
                  "run",
                  "--dir",
                  run->dir_,
                  "--data",
                  folder.text()};
  options.args.insert(options.args.end(), flags.begin(), flags.end());
  options.output_path = run->dir_ + ".log";
  HF_ASSIGN_OR_RETURN(run->process_, chaos::ChildProcess::Start(options));
  return run;
}

absl::Status LiveRun::Follow(std::string_view what, const std::function<bool()>& done) {
  int64_t newest = step();
  Deadline deadline = Deadline::After(kWaitMs);
  while (!done()) {
    if (process_->Poll()) {
      return absl::InternalError(Cat("the run ended (", process_->Poll()->Text(), ") before ", what,
                                     "\n", process_->Output(3000)));
    }
    if (step() > newest) newest = step(), deadline = Deadline::After(kWaitMs);
    if (deadline.passed())
      return absl::DeadlineExceededError(
          Cat("waited in vain for ", what, "\n", process_->Output(3000)));
    chaos::internal::SleepMs(2);
  }
  return absl::OkStatus();
}

absl::Status LiveRun::WaitForStep(int64_t wanted) {
  return Follow(Cat("step ", wanted), [&] { return step() >= wanted; });
}

// From the end of the file: it may hold a hundred thousand steps.
int64_t LiveRun::world_size() const {
  std::ifstream file(dir_ + "/steps.jsonl", std::ios::binary | std::ios::ate);
  const int64_t size = file ? static_cast<int64_t>(file.tellg()) : 0;
  std::string tail(static_cast<size_t>(std::min<int64_t>(size, 4096)), '\0');
  file.seekg(size - static_cast<int64_t>(tail.size()));
  file.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  tail.resize(tail.rfind('\n') == std::string::npos ? 0 : tail.rfind('\n'));
  const std::string_view key = "\"world_size\":";
  const size_t at = tail.rfind(key);
  return at == std::string::npos ? 0 : std::strtoll(tail.c_str() + at + key.size(), nullptr, 10);
}

absl::Status LiveRun::WaitForWorld(int64_t workers) {
  int64_t looked_at = step();  // a step that was taken before the call says nothing
  return Follow(Cat("a world of ", workers), [&] {
    const int64_t now = step();
    if (now == looked_at) return false;
    looked_at = now;
    return world_size() == workers &&
           static_cast<int64_t>(chaos::WorkersOf(process_->pid()).size()) == workers;
  });
}

int64_t LiveRun::CountEvents(std::string_view kind) const {
  const auto events = chaos::ReadEvents(dir_);
  if (!events.ok()) return 0;
  return std::count_if(events->begin(), events->end(),
                       [&](const chaos::EventLine& e) { return e.kind == kind; });
}

double LiveRun::LastEventMs(std::string_view kind) const {
  const auto events = chaos::ReadEvents(dir_);
  double ms = -1;
  if (!events.ok()) return ms;
  for (const chaos::EventLine& e : *events) {
    if (e.kind == kind) ms = e.ms;
  }
  return ms;
}

absl::StatusOr<chaos::Summary> LiveRun::End(int wanted_code) {
  HF_ASSIGN_OR_RETURN(const chaos::EndState end, process_->Wait(Deadline::After(kWaitMs)));
  if (!end.exited || end.code != wanted_code)
    return absl::InternalError(
        Cat("the run ended with ", end.Text(), "\n", process_->Output(3000)));
  return chaos::ReadSummary(dir_);
}

absl::StatusOr<chaos::Summary> LiveRun::Stop() {
  HF_RETURN_IF_ERROR(process_->Signal(SIGTERM));
  return End(static_cast<int>(ExitCode::kInterrupted));
}

absl::StatusOr<chaos::Summary> LiveRun::Finish() { return End(static_cast<int>(ExitCode::kOk)); }

}  // namespace holdfast
