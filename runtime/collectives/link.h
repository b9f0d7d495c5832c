// One link: the authenticated TCP connection to one other member, with framing in both directions.
// Only moves bytes and checks frames; what they mean is the sink's business. Used by the
// communicator's I/O thread alone.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/collectives/frame.h"
#include "runtime/collectives/socket.h"

namespace holdfast {

// What the hello has made.
struct LinkSeed {
  Fd fd;
  int rank = -1;
  std::string address;  // of the peer, "host:port"
  uint64_t send_key = 0, receive_key = 0;
};

class Link;

class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Where the payload of this frame goes (header.length > 0). nullptr: not now; the link pauses
  // until Read is called again.
  virtual absl::StatusOr<std::byte*> Place(Link& link, const FrameHeader& header) = 0;
  // The frame is whole and intact.
  virtual absl::Status Take(Link& link, const FrameHeader& header) = 0;
};

class Link {
 public:
  Link(LinkSeed seed, uint64_t nonce) : seed_(std::move(seed)), nonce_(nonce) {}

  int fd() const { return seed_.fd.get(); }
  int rank() const { return seed_.rank; }
  // "rank 2 (127.0.0.1:4711)"
  std::string Name() const;

  // A small frame: copied, sent in order by Flush. Error when the queue's bound is reached (the
  // peer does not read).
  absl::Status Queue(FrameHeader header, std::span<const std::byte> payload);
  // A large frame, sent from the caller's memory after what is queued. Only when !bulk_busy().
  void StartBulk(FrameHeader header, const std::byte* payload);
  bool bulk_busy() const { return bulk_payload_ != nullptr; }
  bool unsent() const { return queue_sent_ < queue_.size() || bulk_busy(); }
  // Sends what the socket takes now.
  absl::Status Flush(int64_t now_ms);
  // The last words of this side, as well as they can be said without waiting; then both directions
  // are shut.
  void SayGoodbye(const Goodbye& goodbye);
  // Half-close after the end frame was sent.
  void ShutSend();

  // Reads up to `budget` bytes and hands frames to the sink. At the end of the stream eof() becomes
  // true; a reset is an error.
  absl::Status Read(FrameSink* sink, int64_t now_ms, size_t budget);
  bool eof() const { return eof_; }
  bool paused() const { return paused_; }
  // True when the stream ended (or was reset) with a goodbye inside an unfinished frame.
  bool HiddenGoodbye(Goodbye* goodbye) const;

  // State that the communicator keeps with a link.
  int64_t last_received_ms = 0;  // 0: nothing yet, the silence clock has not started
  int64_t last_sent_ms = 0;
  uint64_t announced = 0;    // highest operation the peer has announced
  uint64_t direct_seen = 0;  // direct frames received
  bool ended = false;        // its end frame came,
  uint64_t end_op = 0;       // with this Close operation
  bool end_sent = false;     // own end frame and half-close are out
  std::array<FrameHeader, 2> direct_header;
  std::array<std::unique_ptr<std::byte[]>, 2>
      direct_data;  // kMaxDirectBytes each, made at first use
  std::array<std::byte, kGoodbyePayloadBytes> goodbye_data;

 private:
  static constexpr size_t kReadAhead = 4096;
  static constexpr size_t kQueueBound = 1 << 20;

  absl::Status Send(const iovec* parts, int count, size_t* sent, bool* blocked, int64_t now_ms);
  absl::Status ParseBuffered(FrameSink* sink);
  absl::Status CheckHeader() const;
  absl::Status FinishFrame(FrameSink* sink);

  LinkSeed seed_;
  uint64_t nonce_;

  std::string queue_;  // whole frames
  size_t queue_sent_ = 0;
  FrameHeader bulk_header_;
  const std::byte* bulk_payload_ = nullptr;
  size_t bulk_sent_ = 0;  // of header and payload

  std::array<std::byte, kReadAhead>
      ahead_;  // received, not yet consumed: [ahead_begin_, ahead_end_)
  size_t ahead_begin_ = 0, ahead_end_ = 0;
  FrameHeader header_;
  bool have_header_ = false;
  std::byte* payload_ = nullptr;
  size_t payload_got_ = 0;
  bool paused_ = false;
  bool eof_ = false;
};

}  // namespace holdfast
