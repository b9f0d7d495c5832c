// The I/O thread: what frames mean, and how it ends when something is wrong.
#include <algorithm>

#include "runtime/base/status.h"
#include "runtime/collectives/tcp_communicator.h"

namespace holdfast {

absl::Status TcpCommunicator::CheckEnd(const Link& link) const {
  const Operation* current = Current();
  const bool same = current == nullptr || current->index < link.end_op ||
                    (current->index == link.end_op && current->kind == OpKind::kClose);
  if (same) return absl::OkStatus();
  return absl::AbortedError(Cat(link.Name(), " closed before operation ", link.end_op,
                                ", this rank is in ", current->Text(),
                                ": all members must close after the same operation"));
}

absl::Status TcpCommunicator::CheckCarrier(const Link& link, FrameType type) const {
  const bool words =
      type == FrameType::kDirect || type == FrameType::kBulk || type == FrameType::kAnnounce;
  if (channel_ == nullptr || !words) return absl::OkStatus();
  return absl::AbortedError(Cat(link.Name(), " sent words over TCP; shared memory was agreed on"));
}

absl::StatusOr<std::byte*> TcpCommunicator::Place(Link& link, const FrameHeader& header) {
  HF_RETURN_IF_ERROR(CheckCarrier(link, header.type));
  switch (header.type) {
    case FrameType::kGoodbye:
      return link.goodbye_data.data();
    case FrameType::kDirect: {
      if (link.direct_seen >= direct_done_ + 2) {
        return absl::AbortedError(Cat(link.Name(), " is more than one operation ahead"));
      }
      auto& data = link.direct_data[link.direct_seen % 2];
      if (data == nullptr) data = std::make_unique_for_overwrite<std::byte[]>(kMaxDirectBytes);
      return data.get();
    }
    case FrameType::kBulk:
      return PlaceBulk(link, header);
    default:
      return absl::AbortedError(Cat(link.Name(), " sent a frame of a wrong type"));
  }
}

absl::StatusOr<std::byte*> TcpCommunicator::PlaceBulk(Link& link, const FrameHeader& header) {
  if (&link != Predecessor() || header.op > announced_) {
    return absl::AbortedError(Cat(link.Name(), " sent bulk data that was not asked for"));
  }
  if (current_ == nullptr || header.op > current_->index) return nullptr;
  HF_RETURN_IF_ERROR(current_->Match(header, link.Name()));
  const bool expected = receives_done_ < plan_.receives.size() &&
                        header.offset == bytes_received_ &&
                        header.length == plan_.receives[receives_done_].bytes;
  if (!expected) {
    return absl::AbortedError(Cat(link.Name(), " sent the wrong part of ", current_->Text(),
                                  ": offset ", header.offset, " instead of ", bytes_received_));
  }
  const ReceiveChunk& chunk = plan_.receives[receives_done_];
  return sends_done_ < chunk.need_sent ? nullptr : chunk.place;
}

absl::Status TcpCommunicator::Take(Link& link, const FrameHeader& header) {
  HF_RETURN_IF_ERROR(CheckCarrier(link, header.type));
  switch (header.type) {
    case FrameType::kBeat:
      return absl::OkStatus();
    case FrameType::kAnnounce:
      link.announced = std::max(link.announced, header.op);
      if (current_ == nullptr || header.op != current_->index) return absl::OkStatus();
      return current_->Match(header, link.Name());
    case FrameType::kDirect: {
      if (link.direct_seen >= direct_done_ + 2) {
        return absl::AbortedError(Cat(link.Name(), " is more than one operation ahead"));
      }
      link.direct_header[link.direct_seen % 2] = header;
      // The first unseen one belongs to the current operation if that is direct; a later one is
      // checked when its turn comes.
      if (++link.direct_seen != direct_done_ + 1 || current_ == nullptr) return absl::OkStatus();
      if (!current_->direct && header.op > current_->index) return absl::OkStatus();
      return current_->Match(header, link.Name());
    }
    case FrameType::kBulk:
      if (header.length == 0) return absl::AbortedError(Cat(link.Name(), " sent an empty chunk"));
      AddChunk(plan_.receives[receives_done_]);
      bytes_received_ += header.length;
      ++receives_done_;
      return absl::OkStatus();
    case FrameType::kEnd:
      link.ended = true;
      link.end_op = header.op;
      return CheckEnd(link);
    case FrameType::kGoodbye: {
      const Goodbye goodbye = DecodeGoodbyePayload(
          {reinterpret_cast<const char*>(link.goodbye_data.data()), link.goodbye_data.size()});
      culprit_ = goodbye.culprit;
      witness_ = std::max(goodbye.witness, 0);
      return absl::AbortedError(goodbye.text);
    }
  }
  return absl::AbortedError(Cat(link.Name(), " sent a frame of an unknown type"));
}

absl::Status TcpCommunicator::Blame(const Link& link, const absl::Status& status) {
  if (!status.ok() && witness_ < 0) {
    culprit_ = link.rank();
    witness_ = at_.rank;
  }
  return status;
}

std::string TcpCommunicator::AwaitedText() const {
  if (current_ == nullptr && channel_ != nullptr && channel_->current() != nullptr) {
    const std::string who = channel_->Missing(), what = channel_->current()->Text();
    return who.empty() ? Cat(what, " was under way") : Cat(what, " waited for ", who, " to enter");
  }
  if (current_ == nullptr) return "no operation was under way";
  std::string who;
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    const bool missing =
        current_->direct ? link->direct_seen <= direct_done_ : link->announced < current_->index;
    if (missing) who += Cat(who.empty() ? "" : ", ", link->Name());
  }
  if (current_->kind == OpKind::kClose)
    return Cat(current_->Text(), " waited for the others to close");
  if (!who.empty()) return Cat(current_->Text(), " waited for ", who, " to enter");
  return Cat(current_->Text(), " was under way with ", receives_done_, " of ",
             plan_.receives.size(), " chunks received");
}

void TcpCommunicator::Fail(const absl::Status& status) {
  // First of all: from here on peers must not count what they read here.
  if (channel_ != nullptr) channel_->Leave();
  Goodbye goodbye;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (error_.ok()) {
      std::string text(status.message());
      const Operation* current = Current();
      if (witness_ == at_.rank && current != nullptr) text += Cat(" during ", current->Text());
      failed_rank_ = culprit_;
      goodbye.text = text;
      if (witness_ != at_.rank && witness_ >= 0) text += Cat(" (seen by rank ", witness_, ")");
      error_ = absl::AbortedError(text);
    } else {
      if (late_) error_ = absl::AbortedError(Cat(error_.message(), ": ", AwaitedText()));
      goodbye.text = Cat("rank ", at_.rank, " gave up: ", error_.message());
      culprit_ = -1;
      witness_ = at_.rank;
    }
    goodbye.culprit = culprit_;
    goodbye.witness = witness_ < 0 ? at_.rank : witness_;
  }
  for (auto& link : links_) {
    if (link != nullptr) link->SayGoodbye(goodbye);
  }
}

}  // namespace holdfast
