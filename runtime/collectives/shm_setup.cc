#include "runtime/collectives/shm_setup.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

constexpr int64_t kRetryMs = 5;
constexpr int kFirstFds = 2;  // segment and doorbell, before the blocks

template <size_t N>
void PutText(std::string_view text, char (&to)[N]) {
  std::copy_n(text.begin(), std::min(text.size(), N - 1), to);
}

// Text of a peer: one line, cut, printable.
template <size_t N>
std::string TextOf(const char (&from)[N]) {
  std::string text(from, strnlen(from, N));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7F; }, '?');
  return text;
}

absl::StatusOr<Hash128> HostIdentity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat net = {};
  if (boot.empty() || stat("/proc/self/ns/net", &net) != 0)
    return absl::UnimplementedError("the host cannot be identified: /proc does not tell it");
  const std::string text = Cat(boot, " ", net.st_dev, " ", net.st_ino);
  return Hash128Of(text.data(), text.size());
}

bool IsDoorbell(int fd) {
  char target[64];
  const std::string link = Cat("/proc/self/fd/", fd);
  const ssize_t n = readlink(link.c_str(), target, sizeof target);
  return n > 0 && std::string_view(target, static_cast<size_t>(n)) == "anon_inode:[eventfd]" &&
         (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0;
}

}  // namespace

std::string WhyNoShm(std::span<const ShmOffer> offers) {
  for (size_t r = 0; r < offers.size(); ++r) {
    if (offers[r].wish == static_cast<uint8_t>(Transport::kTcp))
      return Cat("rank ", r, " was started with --transport tcp");
    if (offers[r].able == 0) return Cat("rank ", r, ": ", TextOf(offers[r].why_not));
    if (offers[r].host != offers[0].host)
      return Cat("rank ", r, " is on another host (or in another network namespace) than rank 0");
  }
  return "";
}

std::string ShmLetterText(const TcpEndpoint::GroupOptions& group, int from, int to, uint32_t blocks,
                          std::span<const ShmOffer> offers) {
  ByteWriter letter;
  letter.Put(static_cast<int32_t>(from));
  letter.Put(static_cast<int32_t>(to));
  letter.Put(blocks);
  ByteWriter proven;
  proven.PutString("holdfast shm");
  proven.PutString(group.run);
  proven.Put(group.generation);
  proven.Put(group.nonce);
  proven.PutString(letter.bytes());
  for (const int r : {from, to})
    proven.PutRaw(offers[r].challenge.data(), offers[r].challenge.size());
  const auto mac = HmacSha256(group.secret, proven.bytes());
  letter.PutRaw(reinterpret_cast<const char*>(mac.data()), mac.size());
  return letter.Take();
}

ShmSetup::ShmSetup(const TcpEndpoint::GroupOptions& group, std::vector<std::string> names,
                   ShmGather gather, std::function<absl::Status()> health)
    : group_(group),
      world_(static_cast<int>(group.peers.size())),
      names_(std::move(names)),
      gather_(std::move(gather)),
      health_(std::move(health)),
      offers_(group.peers.size()),
      peers_(group.peers.size()),
      heard_(group.peers.size(), false) {}

absl::Status ShmSetup::Prepare() {
  ShmOffer& offer = offers_[group_.rank];
  HF_ASSIGN_OR_RETURN(offer.host, HostIdentity());
  HF_ASSIGN_OR_RETURN(segment_, MakeShmSegment(group_.nonce, group_.rank, world_));
  HF_ASSIGN_OR_RETURN(ShmDoor door, ShmDoor::Open());
  door_ = std::make_unique<ShmDoor>(std::move(door));
  doorbell_ = std::make_unique<WakeFd>();
  if (doorbell_->fd() < 0) return absl::ResourceExhaustedError("no descriptor left");
  for (const SharedBlock* block : group_.shared) {
    if (block->fd() >= 0 && blocks_.size() < kMaxLetterFds - kFirstFds) blocks_.push_back(block);
  }
  std::copy(door_->name().begin(), door_->name().end(), offer.door);
  const std::string challenge = RandomBytes(kShmProofBytes);
  std::copy(challenge.begin(), challenge.end(), offer.challenge.begin());
  return absl::OkStatus();
}

absl::Status ShmSetup::TakePeer(int from, Letter letter) {
  ShmChannel::Peer peer;
  peer.name = names_[from];
  HF_ASSIGN_OR_RETURN(peer.segment, MapShmSegment(letter.fds[0].get(), group_.nonce, from, world_));
  if (!IsDoorbell(letter.fds[1].get())) return absl::InvalidArgumentError("its doorbell is none");
  peer.doorbell = std::move(letter.fds[1]);
  for (size_t i = kFirstFds; i < letter.fds.size(); ++i) {
    HF_ASSIGN_OR_RETURN(Mapping block, Mapping::ForReading(letter.fds[i].get(), 0));
    peer.blocks.push_back(std::move(block));
  }
  // What it finds here it will compare with its own.
  ControlOf(segment_)->seen[from] = ControlOf(peer.segment)->proof;
  peers_[from] = std::move(peer);
  return absl::OkStatus();
}

// A letter that does not prove itself is a stranger's: dropped, its descriptors closed.
bool ShmSetup::Take(Letter letter) {
  ByteReader r(letter.text);
  const int from = r.Get<int32_t>(), to = r.Get<int32_t>();
  const uint32_t blocks = r.Get<uint32_t>();
  if (from < 0 || from >= world_ || from == group_.rank || to != group_.rank || heard_[from])
    return false;
  if (!EqualInConstantTime(letter.text, ShmLetterText(group_, from, to, blocks, offers_)))
    return false;
  heard_[from] = true;
  absl::Status taken =
      letter.fds.size() == blocks + kFirstFds
          ? TakePeer(from, std::move(letter))
          : absl::ResourceExhaustedError("its descriptors did not arrive: too many open files?");
  // The others still get their letters: they, too, shall come to the vote soon.
  if (refused_.ok()) refused_ = Annotate(taken, Cat("rank ", from));
  return true;
}

absl::Status ShmSetup::ExchangeLetters(Deadline deadline, const std::atomic<bool>* cancel) {
  std::vector<int> fds = {segment_.fd(), doorbell_->fd()};
  for (const SharedBlock* block : blocks_) fds.push_back(block->fd());
  std::vector<int> unsent;
  for (int r = 0; r < world_; ++r) {
    if (r != group_.rank) unsent.push_back(r);
  }
  int missing = world_ - 1;
  while (missing > 0 || !unsent.empty()) {
    HF_RETURN_IF_ERROR(health_());
    if (cancel != nullptr && cancel->load()) return absl::CancelledError("cancelled");
    if (deadline.passed()) return absl::DeadlineExceededError("descriptors did not come in time");
    for (auto to = unsent.begin(); to != unsent.end();) {
      const absl::Status sent = door_->Send(
          {offers_[*to].door, kDoorNameBytes},
          ShmLetterText(group_, group_.rank, *to, static_cast<uint32_t>(blocks_.size()), offers_),
          fds);
      if (!sent.ok() && !absl::IsUnavailable(sent))
        return Annotate(sent, Cat("sending descriptors to rank ", *to));
      to = sent.ok() ? unsent.erase(to) : to + 1;
    }
    for (auto letter = door_->Receive(); letter.ok(); letter = door_->Receive())
      missing -= Take(std::move(*letter)) ? 1 : 0;
    pollfd polled = {door_->fd(), POLLIN, 0};
    if (missing > 0 || !unsent.empty())
      poll(&polled, 1, static_cast<int>(unsent.empty() ? 4 * kRetryMs : kRetryMs));
  }
  return refused_;
}

absl::Status ShmSetup::SeenByAll() const {
  for (int p = 0; p < world_; ++p) {
    if (p == group_.rank) continue;
    if (ControlOf(peers_[p].segment)->seen[group_.rank] != ControlOf(segment_)->proof)
      return absl::InvalidArgumentError(Cat("rank ", p, " does not see this rank's memory"));
  }
  return absl::OkStatus();
}

absl::Status ShmSetup::Vote(const absl::Status& mine, std::string* why_not) {
  std::vector<ShmVote> votes(static_cast<size_t>(world_));
  votes[group_.rank].yes = mine.ok() ? 1 : 0;
  PutText(StdView(mine.message()), votes[group_.rank].why_not);
  HF_RETURN_IF_ERROR(gather_(std::as_writable_bytes(std::span(votes)), sizeof(ShmVote)));
  for (int r = 0; r < world_ && why_not->empty(); ++r) {
    if (votes[r].yes == 0) *why_not = Cat("seen by rank ", r, ": ", TextOf(votes[r].why_not));
  }
  return absl::OkStatus();
}

absl::Status ShmSetup::Refused(std::string_view why) const {
  if (group_.transport != Transport::kShm || why.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      Cat("--transport shm is not possible here: ", why,
          "; use --transport auto (shared memory where it can be) or tcp"));
}

absl::Status ShmSetup::Run(Deadline deadline, const std::atomic<bool>* cancel,
                           std::unique_ptr<ShmChannel>* channel, std::string* why_not) {
  ShmOffer& offer = offers_[group_.rank];
  offer.wish = static_cast<uint8_t>(group_.transport);
  if (group_.transport != Transport::kTcp) {
    const absl::Status able = Prepare();
    offer.able = able.ok() ? 1 : 0;
    PutText(StdView(able.message()), offer.why_not);
  }
  HF_RETURN_IF_ERROR(gather_(std::as_writable_bytes(std::span(offers_)), sizeof(ShmOffer)));
  *why_not = WhyNoShm(offers_);
  if (!why_not->empty()) return Refused(*why_not);
  // Half of the time that is left: whoever waits in vain still gets to the vote.
  const absl::Status exchanged = ExchangeLetters(Deadline::After(deadline.left_ms() / 2), cancel);
  HF_RETURN_IF_ERROR(health_());
  if (absl::IsCancelled(exchanged)) return exchanged;
  HF_RETURN_IF_ERROR(Vote(exchanged, why_not));
  if (why_not->empty()) HF_RETURN_IF_ERROR(Vote(SeenByAll(), why_not));
  if (!why_not->empty()) return Refused(*why_not);
  *channel =
      std::make_unique<ShmChannel>(RingPosition{group_.rank, world_}, std::move(segment_),
                                   std::move(blocks_), std::move(*doorbell_), std::move(peers_));
  return absl::OkStatus();
}

}  // namespace holdfast
