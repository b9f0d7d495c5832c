#include "runtime/collectives/link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/status.h"

namespace holdfast {
namespace {

// A goodbye never waits for more than this much of an unfinished frame.
constexpr size_t kShortRest = 4096;

}  // namespace

std::string Link::Name() const { return Cat("rank ", seed_.rank, " (", seed_.address, ")"); }

absl::Status Link::Queue(FrameHeader header, std::span<const std::byte> payload) {
  header.nonce = nonce_;
  header.length = static_cast<uint32_t>(payload.size());
  SealFrame(&header, payload.data(), seed_.send_key);
  if (queue_sent_ == queue_.size()) {
    queue_.clear();
    queue_sent_ = 0;
  }
  if (queue_.size() + kFrameHeaderBytes + payload.size() > kQueueBound) {
    return absl::AbortedError(
        Cat(Name(), " does not read: more than ", kQueueBound, " bytes wait for it"));
  }
  queue_.append(reinterpret_cast<const char*>(&header), sizeof header);
  queue_.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  return absl::OkStatus();
}

void Link::StartBulk(FrameHeader header, const std::byte* payload) {
  header.nonce = nonce_;
  SealFrame(&header, payload, seed_.send_key);
  bulk_header_ = header;
  bulk_payload_ = payload;
  bulk_sent_ = 0;
}

absl::Status Link::Send(const iovec* parts, int count, size_t* sent, bool* blocked,
                        int64_t now_ms) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(count);
  *sent = 0;
  ssize_t n;
  do {
    n = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      *blocked = true;
      return absl::OkStatus();
    }
    return absl::AbortedError(Cat(Name(), " closed its connection (", ErrnoText(errno), ")"));
  }
  last_sent_ms = now_ms;
  *sent = static_cast<size_t>(n);
  size_t total = 0;
  for (int i = 0; i < count; ++i) total += parts[i].iov_len;
  *blocked = *sent < total;
  return absl::OkStatus();
}

absl::Status Link::Flush(int64_t now_ms) {
  bool blocked = false;
  while (unsent() && !blocked) {
    const bool bulk_first = bulk_busy() && (bulk_sent_ > 0 || queue_sent_ == queue_.size());
    size_t sent = 0;
    if (bulk_first) {
      const size_t of_header = std::min(bulk_sent_, kFrameHeaderBytes);
      const size_t of_payload = bulk_sent_ - of_header;
      const iovec parts[2] = {
          {reinterpret_cast<char*>(&bulk_header_) + of_header, kFrameHeaderBytes - of_header},
          {const_cast<std::byte*>(bulk_payload_) + of_payload, bulk_header_.length - of_payload}};
      HF_RETURN_IF_ERROR(Send(parts, 2, &sent, &blocked, now_ms));
      bulk_sent_ += sent;
      if (bulk_sent_ == kFrameHeaderBytes + bulk_header_.length) bulk_payload_ = nullptr;
    } else {
      const iovec part = {queue_.data() + queue_sent_, queue_.size() - queue_sent_};
      HF_RETURN_IF_ERROR(Send(&part, 1, &sent, &blocked, now_ms));
      queue_sent_ += sent;
    }
  }
  return absl::OkStatus();
}

void Link::SayGoodbye(const Goodbye& goodbye) {
  const std::string frame = EncodeGoodbye(goodbye, nonce_, seed_.send_key);
  // In the middle of a long frame the goodbye goes right into its payload: the receiver looks at
  // the end of what it got.
  const bool in_payload = bulk_busy() && bulk_sent_ > kFrameHeaderBytes &&
                          kFrameHeaderBytes + bulk_header_.length - bulk_sent_ > kShortRest;
  if (bulk_busy() && bulk_sent_ == 0) bulk_payload_ = nullptr;
  if (in_payload) {
    SendWhole(fd(), frame);
  } else if (!end_sent && Flush(last_sent_ms).ok() && !unsent()) {
    SendWhole(fd(), frame);
  }
  shutdown(fd(), SHUT_RDWR);
}

void Link::ShutSend() { shutdown(fd(), SHUT_WR); }

absl::Status Link::CheckHeader() const {
  uint32_t limit = 0;
  switch (header_.type) {
    case FrameType::kDirect:
      limit = kMaxDirectBytes;
      break;
    case FrameType::kBulk:
      limit = kMaxBulkBytes;
      break;
    case FrameType::kGoodbye:
      limit = kGoodbyePayloadBytes;
      break;
    default:
      break;
  }
  if (header_.magic != kFrameMagic || header_.nonce != nonce_ || header_.length > limit) {
    return absl::AbortedError(Cat(Name(), " sent bytes that are no frame of this generation"));
  }
  return absl::OkStatus();
}

absl::Status Link::FinishFrame(FrameSink* sink) {
  if (!FrameIntact(header_, payload_, seed_.receive_key)) {
    return absl::AbortedError(Cat(Name(), " sent a damaged frame (checksum): step ", header_.step,
                                  " bucket ", header_.bucket, " operation ", header_.op));
  }
  const FrameHeader done = header_;
  have_header_ = false;
  payload_ = nullptr;
  payload_got_ = 0;
  return sink->Take(*this, done);
}

absl::Status Link::ParseBuffered(FrameSink* sink) {
  paused_ = false;
  for (;;) {
    if (!have_header_) {
      if (ahead_end_ - ahead_begin_ < kFrameHeaderBytes) return absl::OkStatus();
      std::memcpy(&header_, &ahead_[ahead_begin_], sizeof header_);
      ahead_begin_ += kFrameHeaderBytes;
      have_header_ = true;
      HF_RETURN_IF_ERROR(CheckHeader());
    }
    if (header_.length > 0 && payload_ == nullptr) {
      HF_ASSIGN_OR_RETURN(payload_, sink->Place(*this, header_));
      if (payload_ == nullptr) {
        paused_ = true;
        return absl::OkStatus();
      }
    }
    const size_t take = std::min(ahead_end_ - ahead_begin_, header_.length - payload_got_);
    if (take > 0) std::memcpy(payload_ + payload_got_, &ahead_[ahead_begin_], take);
    ahead_begin_ += take;
    payload_got_ += take;
    if (payload_got_ < header_.length) return absl::OkStatus();
    HF_RETURN_IF_ERROR(FinishFrame(sink));
  }
}

absl::Status Link::Read(FrameSink* sink, int64_t now_ms, size_t budget) {
  size_t total = 0;
  HF_RETURN_IF_ERROR(ParseBuffered(sink));
  while (!paused_ && total < budget) {
    // What is left over is the beginning of a header: to the front with it.
    const size_t left = ahead_end_ - ahead_begin_;
    std::memmove(ahead_.data(), &ahead_[ahead_begin_ < kReadAhead ? ahead_begin_ : 0], left);
    ahead_begin_ = 0;
    ahead_end_ = left;
    const size_t wanted = payload_ != nullptr ? header_.length - payload_got_ : 0;
    iovec parts[2] = {{payload_ + payload_got_, wanted}, {ahead_.data() + left, kReadAhead - left}};
    msghdr message = {};
    message.msg_iov = wanted > 0 ? parts : parts + 1;
    message.msg_iovlen = wanted > 0 ? 2 : 1;
    const ssize_t n = recvmsg(fd(), &message, MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return absl::OkStatus();
      return absl::AbortedError(Cat(Name(), " closed its connection (", ErrnoText(errno), ")"));
    }
    if (n == 0) {
      eof_ = true;
      return absl::OkStatus();
    }
    last_received_ms = now_ms;
    const size_t got = static_cast<size_t>(n);
    total += got;
    payload_got_ += std::min(got, wanted);
    ahead_end_ += got - std::min(got, wanted);
    HF_RETURN_IF_ERROR(ParseBuffered(sink));
    if (got < wanted + kReadAhead - left) return absl::OkStatus();
  }
  return absl::OkStatus();
}

bool Link::HiddenGoodbye(Goodbye* goodbye) const {
  if (payload_ == nullptr) return false;
  return FindGoodbye({reinterpret_cast<const char*>(payload_), payload_got_}, nonce_,
                     seed_.receive_key, goodbye);
}

}  // namespace holdfast
