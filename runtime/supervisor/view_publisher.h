// Pins up this machine's view of the run in Redis (rendezvous/view_board.h) from a thread of its
// own: only the newest text counts, one that cannot be sent is forgotten, and a Redis that is slow
// or away is asked less and less often. Nothing waits for it. Thread-safe.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "rendezvous/view_board.h"
#include "runtime/base/clock.h"

namespace holdfast {

class ViewPublisher {
 public:
  ViewPublisher(const rendezvous::RedisEndpoint& endpoint, std::string run, std::string machine);
  ~ViewPublisher();  // waits for a call under way, at most its connect_ms + command_ms
  ViewPublisher(const ViewPublisher&) = delete;
  ViewPublisher& operator=(const ViewPublisher&) = delete;

  void Post(std::string text);
  // The last word: sent at once, waited for until `deadline`. No Post after it.
  void Finish(std::string text, Deadline deadline);

 private:
  void Work();

  rendezvous::ViewBoard board_;  // of the thread
  const std::string machine_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::string text_;  // "" = nothing new
  bool ending_ = false, done_ = false;
  std::thread thread_;
};

}  // namespace holdfast
