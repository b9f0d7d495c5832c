// The I/O thread: operations, beats and judgement.
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <array>

#include "runtime/base/status.h"
#include "runtime/collectives/tcp_communicator.h"

namespace holdfast {
namespace {

constexpr size_t kReadBudget =
    1 << 20;                  // bytes read from one link before the others have their turn
constexpr int kSendTurn = 4;  // chunks sent before reading has its turn
constexpr int kPasses = 4;    // passes over an operation before the links are polled again
constexpr int kShmTurn = 8;   // rounds read from shared memory before the links are looked at

}  // namespace

void TcpCommunicator::Run() {
  pthread_setname_np(pthread_self(), "hf-collective");
  int64_t now = BootMs();
  absl::Status status;
  while (status.ok() && !finished_) {
    if (!TakeQueued()) {
      status = absl::AbortedError("");  // the reason is in error_
      break;
    }
    if (announced_ < (waiting_.empty() ? 0 : waiting_.back()->index))
      status = Announce(waiting_.back()->index);
    if (status.ok()) status = Progress(now);
    if (status.ok() && !finished_) status = Poll(&now);
    if (status.ok() && !finished_) status = JudgeAndBeat(now);
  }
  if (!status.ok()) Fail(status);
  links_.clear();
  std::lock_guard<std::mutex> lock(mu_);
  stopped_ = true;
  queue_.clear();
  changed_.notify_all();
}

bool TcpCommunicator::TakeQueued() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!error_.ok()) return false;
  channel_ = shm_.get();
  while (!queue_.empty()) {
    std::unique_ptr<Operation> op = std::move(queue_.front());
    queue_.pop_front();
    if (channel_ != nullptr && op->kind != OpKind::kClose) {
      channel_->Push(std::move(op));
    } else {
      waiting_.push_back(std::move(op));
    }
  }
  return true;
}

const Operation* TcpCommunicator::Current() const {
  return current_ != nullptr || channel_ == nullptr ? current_.get() : channel_->current();
}

absl::Status TcpCommunicator::ProgressShm(bool* moved) {
  for (int turn = 0; turn < kShmTurn; ++turn) {
    bool turned = false;
    const absl::Status status = channel_->Progress(&turned);
    if (!status.ok()) {
      culprit_ = channel_->culprit();
      witness_ = at_.rank;
      return status;
    }
    if (!turned) break;
    *moved = true;
  }
  const Operation* now = channel_->current();
  if (now != nullptr && now->index != shm_begun_) {
    shm_begun_ = now->index;
    for (auto& link : links_) {
      if (link != nullptr && link->ended) HF_RETURN_IF_ERROR(Blame(*link, CheckEnd(*link)));
    }
  }
  std::lock_guard<std::mutex> lock(mu_);
  if (error_.ok() && channel_->done() > done_) {
    done_ = channel_->done();
    changed_.notify_all();
  }
  return absl::OkStatus();
}

absl::Status TcpCommunicator::Announce(uint64_t index) {
  // Only bulk operations need it; direct ones are announced by their data.
  const Operation* last_bulk = nullptr;
  for (const auto& op : waiting_) {
    if (!op->direct) last_bulk = op.get();
  }
  const bool needed = last_bulk != nullptr && last_bulk->index > announced_;
  announced_ = index;
  if (!needed) return absl::OkStatus();
  for (auto& link : links_) {
    if (link == nullptr) continue;
    const absl::Status queued = link->Queue(last_bulk->Header(FrameType::kAnnounce), {});
    if (!queued.ok()) return Blame(*link, queued);
  }
  return absl::OkStatus();
}

absl::Status TcpCommunicator::Progress(int64_t now_ms) {
  // A peer that takes bytes as fast as they come must not keep this thread from the other links,
  // from beats and from an abort: after some passes the loop goes round once.
  bool shm_moved = false;
  if (channel_ != nullptr) HF_RETURN_IF_ERROR(ProgressShm(&shm_moved));
  again_ = true;
  for (int pass = 0; pass < kPasses; ++pass) {
    const bool may_start = channel_ == nullptr || channel_->idle();
    if (current_ == nullptr && !waiting_.empty() && may_start) HF_RETURN_IF_ERROR(StartNext());
    if (current_ != nullptr && !current_->direct) HF_RETURN_IF_ERROR(PumpBulk(now_ms));
    bool moved = false;
    for (auto& link : links_) {
      if (link == nullptr) continue;
      if (link->paused()) {
        HF_RETURN_IF_ERROR(ReadLink(link.get(), now_ms));
        if (!link->paused()) {
          // Nothing was read while it was paused: the silence clock starts again.
          link->last_received_ms = now_ms;
          moved = true;
        }
      }
      if (link->unsent()) {
        const absl::Status flushed = link->Flush(now_ms);
        if (!flushed.ok()) {
          // The peer's last words may lie in the receive buffer.
          HF_RETURN_IF_ERROR(ReadLink(link.get(), now_ms));
          return Blame(*link, flushed);
        }
      }
      if (link.get() == Successor() && !link->bulk_busy() && sends_done_ < sends_started_) {
        sends_done_ = sends_started_;
        moved = true;
      }
    }
    if (current_ != nullptr && current_->kind == OpKind::kClose) HF_RETURN_IF_ERROR(ShutEnded());
    if (current_ != nullptr && CurrentComplete()) {
      if (!CompleteCurrent() || finished_) return absl::OkStatus();
      continue;
    }
    if (!moved) {
      again_ = shm_moved;
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::Status TcpCommunicator::StartNext() {
  current_ = std::move(waiting_.front());
  waiting_.pop_front();
  plan_ = {};
  sends_started_ = sends_done_ = receives_done_ = 0;
  bytes_sent_ = bytes_received_ = 0;
  for (auto& link : links_) {
    if (link != nullptr && link->ended) HF_RETURN_IF_ERROR(Blame(*link, CheckEnd(*link)));
  }
  if (current_->kind == OpKind::kClose) {
    for (auto& link : links_) {
      if (link != nullptr)
        HF_RETURN_IF_ERROR(Blame(*link, link->Queue(current_->Header(FrameType::kEnd), {})));
    }
    return absl::OkStatus();
  }
  if (current_->direct) return StartDirect();
  for (auto& link : links_) {
    // A peer that waits in a small operation of this number would wait for ever.
    if (link == nullptr || link->direct_seen <= direct_done_) continue;
    const FrameHeader& ahead = link->direct_header[direct_done_ % 2];
    if (ahead.op <= current_->index)
      HF_RETURN_IF_ERROR(Blame(*link, current_->Match(ahead, link->Name())));
  }
  if (scratch_ == nullptr) scratch_ = std::make_unique_for_overwrite<std::byte[]>(kScratchBytes);
  plan_ = current_->Plan(at_, scratch_.get());
  return absl::OkStatus();
}

absl::Status TcpCommunicator::StartDirect() {
  for (auto& link : links_) {
    if (link == nullptr) continue;
    const absl::Status queued =
        link->Queue(current_->Header(FrameType::kDirect), current_->DirectPart(at_, link->rank()));
    HF_RETURN_IF_ERROR(Blame(*link, queued));
    if (link->direct_seen > direct_done_) {  // it came before this member was here
      HF_RETURN_IF_ERROR(
          Blame(*link, current_->Match(link->direct_header[direct_done_ % 2], link->Name())));
    }
  }
  return absl::OkStatus();
}

bool TcpCommunicator::EverybodyAnnounced() const {
  return std::all_of(links_.begin(), links_.end(), [this](const std::unique_ptr<Link>& link) {
    return link == nullptr || link->announced >= current_->index;
  });
}

bool TcpCommunicator::BulkReady() const {
  return current_ != nullptr && !current_->direct && sends_started_ < plan_.sends.size() &&
         sends_started_ == sends_done_ &&
         receives_done_ >= plan_.sends[sends_started_].need_received && EverybodyAnnounced();
}

absl::Status TcpCommunicator::PumpBulk(int64_t now_ms) {
  Link* link = Successor();
  for (int turn = 0; turn < kSendTurn; ++turn) {
    if (BulkReady()) {
      const SendChunk& chunk = plan_.sends[sends_started_];
      FrameHeader header = current_->Header(FrameType::kBulk);
      header.offset = bytes_sent_;
      header.length = chunk.bytes;
      link->StartBulk(header, chunk.data);
      ++sends_started_;
      bytes_sent_ += chunk.bytes;
    }
    if (sends_started_ == sends_done_) return absl::OkStatus();
    const absl::Status flushed = link->Flush(now_ms);
    if (!flushed.ok()) {
      HF_RETURN_IF_ERROR(ReadLink(link, now_ms));
      return Blame(*link, flushed);
    }
    if (link->bulk_busy()) return absl::OkStatus();
    sends_done_ = sends_started_;
  }
  return absl::OkStatus();
}

bool TcpCommunicator::CurrentComplete() const {
  if (current_->kind == OpKind::kClose) {
    return std::all_of(links_.begin(), links_.end(), [](const std::unique_ptr<Link>& link) {
      return link == nullptr || (link->end_sent && link->ended && link->eof());
    });
  }
  if (!current_->direct)
    return sends_done_ == plan_.sends.size() && receives_done_ == plan_.receives.size();
  return std::all_of(links_.begin(), links_.end(), [this](const std::unique_ptr<Link>& link) {
    return link == nullptr || link->direct_seen > direct_done_;
  });
}

bool TcpCommunicator::CompleteCurrent() {
  // The result of a direct operation is put in place before the latch: an abort that wins leaves a
  // buffer that nobody trusts.
  if (current_->direct && current_->kind != OpKind::kClose) {
    std::vector<const std::byte*> parts(links_.size(), nullptr);
    for (const auto& link : links_) {
      if (link != nullptr) parts[link->rank()] = link->direct_data[direct_done_ % 2].get();
    }
    current_->Finish(at_, parts);
    ++direct_done_;
  }
  std::lock_guard<std::mutex> lock(mu_);
  if (!error_.ok()) return false;
  done_ = current_->index;
  finished_ = current_->kind == OpKind::kClose;
  current_.reset();
  changed_.notify_all();
  return true;
}

absl::Status TcpCommunicator::ReadLink(Link* link, int64_t now_ms) {
  const absl::Status read = link->Read(this, now_ms, kReadBudget);
  if (read.ok() && !link->eof()) return absl::OkStatus();
  Goodbye goodbye;
  if (link->HiddenGoodbye(&goodbye)) {
    culprit_ = goodbye.culprit;
    witness_ = goodbye.witness;
    return absl::AbortedError(goodbye.text);
  }
  if (!read.ok()) return witness_ >= 0 ? read : Blame(*link, read);
  if (link->ended) return absl::OkStatus();
  return Blame(*link,
               absl::AbortedError(Cat(link->Name(), " closed its connection without notice")));
}

absl::Status TcpCommunicator::ShutEnded() {
  for (auto& link : links_) {
    if (link == nullptr || link->end_sent || link->unsent()) continue;
    link->ShutSend();
    link->end_sent = true;
  }
  return absl::OkStatus();
}

short TcpCommunicator::PollEvents(const Link& link) const {
  short events = 0;
  if (!link.paused() && !link.eof()) events |= POLLIN;
  const bool bulk = &link == links_[(at_.rank + 1) % at_.world].get() && BulkReady();
  if (link.unsent() || bulk) events |= POLLOUT;
  return events;
}

int64_t TcpCommunicator::NextDue(int64_t now_ms) const {
  int64_t due = now_ms + beat_ms_;
  for (const auto& link : links_) {
    if (link == nullptr || link->ended) continue;
    if (!link->unsent() && !link->end_sent) due = std::min(due, link->last_sent_ms + beat_ms_);
    if (link->last_received_ms > 0 && !link->paused())
      due = std::min(due, link->last_received_ms + detect_ms_ + 1);
  }
  return std::max<int64_t>(0, due - now_ms);
}

absl::Status TcpCommunicator::Poll(int64_t* now_ms) {
  std::array<pollfd, TcpEndpoint::kMaxWorldSize + 2> polled;
  std::array<Link*, TcpEndpoint::kMaxWorldSize + 2> polled_links;
  polled[0] = {wake_.fd(), POLLIN, 0};
  polled[1] = {channel_ != nullptr ? channel_->doorbell().fd() : -1, POLLIN, 0};
  nfds_t count = 2;
  for (auto& link : links_) {
    if (link == nullptr) continue;
    const short events = PollEvents(*link);
    // A link that is not waited for stays out: its hang-up would wake this thread again and again.
    if (events == 0) continue;
    polled[count] = {link->fd(), events, 0};
    polled_links[count++] = link.get();
  }
  bool dozing = false;
  const bool may_doze = channel_ != nullptr && !channel_->idle() && !again_;
  if (may_doze) {
    const absl::Status dozed = channel_->Doze(&dozing);
    if (!dozed.ok()) culprit_ = channel_->culprit(), witness_ = at_.rank;
    HF_RETURN_IF_ERROR(dozed);
    again_ = !dozing;
  }
  poll(polled.data(), count, static_cast<int>(again_ ? 0 : NextDue(*now_ms)));
  if (dozing) channel_->Awake();
  const int64_t now = BootMs();
  if (now - *now_ms > beat_ms_ + detect_ms_ / 2) {
    // This thread itself was held up (machine frozen, process stopped, no CPU): it cannot judge
    // what it did not watch.
    for (auto& link : links_) {
      if (link != nullptr && link->last_received_ms > 0) link->last_received_ms = now;
    }
  }
  *now_ms = now;
  if (polled[0].revents != 0) wake_.Drain();
  if (polled[1].revents != 0) channel_->doorbell().Drain();
  for (nfds_t i = 2; i < count; ++i) {
    if ((polled[i].revents & (POLLIN | POLLERR | POLLHUP)) == 0 || polled_links[i]->eof()) continue;
    HF_RETURN_IF_ERROR(ReadLink(polled_links[i], now));
  }
  return absl::OkStatus();
}

absl::Status TcpCommunicator::JudgeAndBeat(int64_t now_ms) {
  for (auto& link : links_) {
    if (link == nullptr || link->ended) continue;
    const int64_t silent_ms = now_ms - link->last_received_ms;
    if (link->last_received_ms > 0 && !link->paused() && silent_ms > detect_ms_) {
      return Blame(*link, absl::AbortedError(Cat(link->Name(), " silent for ", silent_ms,
                                                 " ms (detect ", detect_ms_, " ms)")));
    }
    if (!link->unsent() && !link->end_sent && now_ms - link->last_sent_ms >= beat_ms_) {
      HF_RETURN_IF_ERROR(Blame(*link, link->Queue(FrameHeader{}, {})));
    }
  }
  return absl::OkStatus();
}

}  // namespace holdfast
