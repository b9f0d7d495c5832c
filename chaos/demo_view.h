// What the demonstration prints: headings, lines with the time since the start, and a run's events
// as they come. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "chaos/oracle.h"

namespace holdfast::chaos {

void Heading(const char* format, ...) __attribute__((format(printf, 1, 2)));
void Say(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Follows DIR/events.jsonl and DIR/steps.jsonl and prints what a person wants to see of them: each
// generation once, losses, deaths, recoveries, checkpoints, and the loss each 50 steps.
class EventView {
 public:
  explicit EventView(std::string dir) : dir_(std::move(dir)) {}
  // True when something has happened since the last call.
  bool Show();
  int64_t Count(const std::string& kind) const;       // events of this kind so far
  double LastMs(const std::string& kind) const;       // CLOCK_BOOTTIME of the last one; 0: none
  int64_t world_size() const { return world_size_; }  // of the newest generation

 private:
  void ShowEvent(const EventLine& event);

  const std::string dir_;
  uint64_t event_bytes_ = 0, step_bytes_ = 0;
  size_t events_ = 0, steps_ = 0;
  std::map<std::string, int64_t> count_;
  std::map<std::string, double> last_ms_;
  int64_t generation_ = 0, lost_ = 0, saved_ = 0, world_size_ = 0;
};

}  // namespace holdfast::chaos
