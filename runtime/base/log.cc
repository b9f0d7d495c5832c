#include "runtime/base/log.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>

#include "runtime/base/log_sink.h"

namespace holdfast {
namespace {

std::mutex mutex;
std::string& Name() {
  static std::string* name = new std::string();  // outlives every thread that still logs at exit
  return *name;
}
std::function<bool(std::string_view)>& Sink() {
  static auto* sink = new std::function<bool(std::string_view)>();
  return *sink;
}
std::atomic<LogLevel> level_now{LogLevel::kInfo};
std::atomic<int64_t> dropped{0};

void WriteAll(std::string_view line) {
  while (!line.empty()) {
    const ssize_t n = write(STDERR_FILENO, line.data(), line.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    line.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

void SetLogName(std::string_view name) {
  std::lock_guard lock(mutex);
  Name() = name;
}

void SetLogSink(std::function<bool(std::string_view line)> sink) {
  std::lock_guard lock(mutex);
  Sink() = std::move(sink);
}

void SetLogLevel(LogLevel level) { level_now.store(level, std::memory_order_relaxed); }

int64_t DroppedLogLines() { return dropped.load(std::memory_order_relaxed); }

void LogLine(LogLevel level, std::string_view text) {
  if (level < level_now.load(std::memory_order_relaxed)) return;
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  tm parts;
  localtime_r(&t.tv_sec, &parts);
  char stamp[32];
  std::snprintf(stamp, sizeof stamp, "%02d:%02d:%02d.%03ld %c ", parts.tm_hour, parts.tm_min,
                parts.tm_sec, t.tv_nsec / 1'000'000, "DIWE"[static_cast<int>(level)]);
  std::lock_guard lock(mutex);
  const std::string line = Cat(stamp, Name(), Name().empty() ? "" : ": ", text);
  if (Sink() && Sink()(line)) return;
  WriteAll(Cat(line, "\n"));
}

}  // namespace holdfast
