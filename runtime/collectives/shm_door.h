// How descriptors travel between members: a datagram socket with a random abstract name (no file;
// it exists as long as the socket). Whoever is in the same network namespace can send to it, so a
// letter counts only with a proof made with the run's secret over both sides' fresh challenges, and
// descriptors that came without one are closed unused.
//
// Threads: one. Nothing here blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/collectives/socket.h"

namespace holdfast {

inline constexpr size_t kDoorNameBytes = 16;
inline constexpr size_t kMaxLetterBytes = 256;
inline constexpr int kMaxLetterFds = 16;

struct Letter {
  std::string text;
  std::vector<Fd> fds;
};

class ShmDoor {
 public:
  static absl::StatusOr<ShmDoor> Open();
  int fd() const { return fd_.get(); }
  const std::string& name() const { return name_; }  // kDoorNameBytes

  // kUnavailable: its queue is full, try again.
  absl::Status Send(std::string_view to, std::string_view text, const std::vector<int>& fds) const;
  // kNotFound: nothing there. What is longer than a letter comes with its text cut.
  absl::StatusOr<Letter> Receive() const;

 private:
  ShmDoor(Fd fd, std::string name) : fd_(std::move(fd)), name_(std::move(name)) {}
  Fd fd_;
  std::string name_;
};

}  // namespace holdfast
