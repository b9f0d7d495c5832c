// Log lines for people, on standard error: "04:30:12.345 I worker 2: text". Losing the sink (closed
// pipe, full disk) never ends the program: lines are dropped and counted. Thread-safe. Secrets must
// never be passed in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/text.h"

namespace holdfast {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

// Who speaks: put before every line, e.g. "worker 2". Call once, before threads start.
void SetLogName(std::string_view name);
void SetLogLevel(LogLevel level);
void LogLine(LogLevel level, std::string_view text);
// Lines that could not be written so far.
int64_t DroppedLogLines();

template <typename... Args>
void LogInfo(const Args&... args) {
  LogLine(LogLevel::kInfo, Cat(args...));
}
template <typename... Args>
void LogWarning(const Args&... args) {
  LogLine(LogLevel::kWarning, Cat(args...));
}
template <typename... Args>
void LogError(const Args&... args) {
  LogLine(LogLevel::kError, Cat(args...));
}
template <typename... Args>
void LogDebug(const Args&... args) {
  LogLine(LogLevel::kDebug, Cat(args...));
}

}  // namespace holdfast
