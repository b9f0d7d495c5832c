#include "chaos/demo_view.h"

#include <cstdarg>
#include <cstdio>
#include <filesystem>

#include "chaos/oracle.h"
#include "runtime/base/clock.h"

namespace holdfast::chaos {
namespace {

constexpr int64_t kStepsALine = 50;
const int64_t start_ms = BootMs();

uint64_t SizeOf(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : size;
}

void Line(const char* mark, const char* text) {
  std::printf("%6.1f s %s %s\n", static_cast<double>(BootMs() - start_ms) / 1000, mark, text);
  std::fflush(stdout);
}

std::string Format(const char* format, va_list args) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, args);
  return text;
}

}  // namespace

void Heading(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::printf("\n== %s\n", Format(format, args).c_str());
  std::fflush(stdout);
  va_end(args);
}

void Say(const char* format, ...) {
  va_list args;
  va_start(args, format);
  Line(" ", Format(format, args).c_str());
  va_end(args);
}

bool EventView::Show() {
  bool news = false;
  // Read again only when a file has grown.
  if (const uint64_t bytes = SizeOf(dir_ + "/events.jsonl"); bytes != event_bytes_) {
    event_bytes_ = bytes;
    news = true;
    const auto events = ReadEvents(dir_);
    for (; events.ok() && events_ < events->size(); ++events_) ShowEvent((*events)[events_]);
  }
  if (const uint64_t bytes = SizeOf(dir_ + "/steps.jsonl"); bytes != step_bytes_) {
    step_bytes_ = bytes;
    news = true;
    const auto log = ReadSteps(dir_);
    for (; log.ok() && steps_ < log->lines.size(); ++steps_) {
      const StepLine& line = log->lines[steps_];
      if (line.step != 1 && line.step % kStepsALine != 0) continue;
      char text[160];
      std::snprintf(
          text, sizeof text, "step %lld  loss %.4f  %lld workers  generation %lld  state %s",
          static_cast<long long>(line.step), line.loss, static_cast<long long>(line.world_size),
          static_cast<long long>(line.generation), line.digest.c_str());
      Line("|", text);
    }
  }
  return news;
}

void EventView::ShowEvent(const EventLine& event) {
  ++count_[event.kind];
  last_ms_[event.kind] = event.ms;
  bool show = event.kind == "death" || event.kind == "recovered" || event.kind == "eval" ||
              event.kind == "restore" || event.kind == "checkpoint_skipped" ||
              event.kind == "corrupt";
  if (event.kind == "joined" && event.generation > generation_) {
    generation_ = event.generation;
    world_size_ = event.world_size;
    show = true;
  }
  if (event.kind == "lost" && event.generation > lost_) {
    lost_ = event.generation;
    show = true;
  }
  if (event.kind == "save" && event.line.find("\"phase\":\"saved\"") != std::string::npos &&
      event.step > saved_) {
    saved_ = event.step;
    show = true;
  }
  if (show) Line("|", event.text.c_str());
}

int64_t EventView::Count(const std::string& kind) const {
  const auto it = count_.find(kind);
  return it == count_.end() ? 0 : it->second;
}

double EventView::LastMs(const std::string& kind) const {
  const auto it = last_ms_.find(kind);
  return it == last_ms_.end() ? 0 : it->second;
}

}  // namespace holdfast::chaos
