// How the members of a generation agree to share memory, over their authenticated links:
//   1. All tell all what they want (`transport`), on which host they are, and where their door is.
//      When one wants tcp, cannot, or is elsewhere, all go on over tcp: the table is the same for
//      all. The host is the boot id of its kernel and the network namespace of the process.
//   2. Each sends its segment, shared blocks and doorbell to each (shm_door.h), and maps theirs.
//      Into its own segment it writes, for each peer, the random proof that it found in that
//      peer's: memory is the same on both sides, or it does not show up there.
//   3. All tell all whether that went well; then, whether they found their own proof in all peers'
//      segments. One "no" means tcp for all, in this generation.
// So a host identity that is wrong (cloned machines, odd containers) costs speed, nothing else.
//
// Threads: one; used during a build.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/digest.h"
#include "runtime/collectives/communicator.h"
#include "runtime/collectives/shm_channel.h"
#include "runtime/collectives/shm_door.h"

namespace holdfast {

inline constexpr size_t kShmWhyBytes = 120;

// What a member tells all others first. Plain bytes; equal layout on all (same build, same host
// class).
struct ShmOffer {
  uint8_t wish = 0;  // Transport
  uint8_t able = 0;
  char why_not[kShmWhyBytes] = {};  // when not able
  Hash128 host;
  char door[kDoorNameBytes] = {};
  ShmProof challenge = {};
};

struct ShmVote {
  uint8_t yes = 0;
  char why_not[kShmWhyBytes] = {};
};

// Blocks until all parts of `all` (one for each rank, of `each` bytes) are there.
using ShmGather = std::function<absl::Status(std::span<std::byte> all, size_t each)>;

// "" when all may share memory, else why not, naming the rank. Pure.
std::string WhyNoShm(std::span<const ShmOffer> offers);

// The letter that brings `blocks` + 2 descriptors: segment, doorbell, blocks.
std::string ShmLetterText(const TcpEndpoint::GroupOptions& group, int from, int to, uint32_t blocks,
                          std::span<const ShmOffer> offers);

class ShmSetup {
 public:
  // `names`: index = rank, for messages. `health` ends the waiting when a member has died.
  ShmSetup(const TcpEndpoint::GroupOptions& group, std::vector<std::string> names, ShmGather gather,
           std::function<absl::Status()> health);

  // OK: *channel is made, or null and *why_not says why all go on over tcp. kFailedPrecondition:
  // this member insists on shm and it is not possible. Else the error of the links.
  absl::Status Run(Deadline deadline, const std::atomic<bool>* cancel,
                   std::unique_ptr<ShmChannel>* channel, std::string* why_not);

 private:
  absl::Status Prepare();
  absl::Status ExchangeLetters(Deadline deadline, const std::atomic<bool>* cancel);
  bool Take(Letter letter);  // true: it is from a member that has not written before
  absl::Status TakePeer(int from, Letter letter);
  absl::Status SeenByAll() const;
  // Gathers this member's vote; `why_not` is that of the first rank that says no.
  absl::Status Vote(const absl::Status& mine, std::string* why_not);
  absl::Status Refused(std::string_view why) const;

  const TcpEndpoint::GroupOptions& group_;
  const int world_;
  const std::vector<std::string> names_;
  const ShmGather gather_;
  const std::function<absl::Status()> health_;
  std::vector<ShmOffer> offers_;
  SharedBlock segment_;
  std::unique_ptr<ShmDoor> door_;
  std::unique_ptr<WakeFd> doorbell_;
  std::vector<const SharedBlock*> blocks_;  // that can be shared
  std::vector<ShmChannel::Peer> peers_;
  std::vector<bool> heard_;
  absl::Status refused_;  // what was wrong with the first letter that this member cannot accept
};

}  // namespace holdfast
