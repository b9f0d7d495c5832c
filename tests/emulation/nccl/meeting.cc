#include "tests/emulation/nccl/meeting.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/emulation/nccl/threads.h"

namespace holdfast::emulation {
namespace {

constexpr uint64_t kMagic = 0x4c43434e554d4546;
constexpr int kRanksMax = 256;
constexpr size_t kGuestsMax = 512;
constexpr auto kHelloTime = std::chrono::seconds(2);

struct Hello {
  MeetingId id;
  RankFacts facts;
};

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

bool Same(const MeetingId& a, const MeetingId& b) {
  return a.magic == b.magic && a.name == b.name && a.secret[0] == b.secret[0] &&
         a.secret[1] == b.secret[1];
}

// In the abstract namespace: nothing stays on the disk.
socklen_t AddressOf(const MeetingId& id, sockaddr_un& address) {
  std::memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  const int length =
      std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                    "holdfast-emulated-nccl-%016llx", static_cast<unsigned long long>(id.name));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

struct Roots {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<MeetingRoot>> by_name;
};
Roots& AllRoots() {
  static auto* roots = new Roots;
  return *roots;
}

constexpr int kDescriptors = 2;

// Facts of a peer, with the two ends of the connections to it.
bool SendIntroduction(int to, const RankFacts& facts, const std::array<int, kDescriptors>& fds) {
  RankFacts copy = facts;
  iovec part{&copy, sizeof copy};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kDescriptors)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * kDescriptors);
  std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * kDescriptors);
  return sendmsg(to, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof copy);
}

// False: the other side is gone.
bool ReceiveIntroduction(int from, PeerConnection& peer) {
  iovec part{&peer.facts, sizeof peer.facts};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kDescriptors)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (got != static_cast<ssize_t>(sizeof peer.facts) || header == nullptr ||
      header->cmsg_len != CMSG_LEN(sizeof(int) * kDescriptors))
    return false;
  int fds[kDescriptors];
  std::memcpy(fds, CMSG_DATA(header), sizeof fds);
  peer.data = Fd(fds[0]);
  peer.bootstrap = Fd(fds[1]);
  return true;
}

int64_t SettingOr(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::atoll(text);
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

StopFlag::StopFlag() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void StopFlag::Set() {
  set_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  (void)!write(event_.get(), &one, sizeof one);
}

void StopFlag::Clear() {
  uint64_t count = 0;
  (void)!read(event_.get(), &count, sizeof count);
  set_.store(false, std::memory_order_release);
}

bool Stops::any() const {
  return std::any_of(flags_.begin(), flags_.end(),
                     [](const StopFlag* flag) { return flag->set(); });
}

void Stops::AddTo(std::vector<pollfd>& fds) const {
  for (const StopFlag* flag : flags_) fds.push_back({flag->fd(), POLLIN, 0});
}

bool Stops::Pause(int ms) const {
  std::vector<pollfd> fds;
  AddTo(fds);
  return !any() && poll(fds.data(), fds.size(), ms) <= 0 && !any();
}

MeetingId FreshId() {
  MeetingId id;
  if (getrandom(&id, sizeof id, 0) != static_cast<ssize_t>(sizeof id)) std::abort();
  id.magic = kMagic;
  return id;
}

MeetingId DerivedId(const MeetingId& parent, uint64_t serial) {
  MeetingId id;
  id.magic = kMagic;
  id.name = Mix(Mix(parent.secret[0] ^ serial) + parent.name);
  id.secret[0] = Mix(parent.secret[0] + Mix(serial));
  id.secret[1] = Mix(parent.secret[1] ^ Mix(serial + 1));
  return id;
}

ncclUniqueId ToUniqueId(const MeetingId& id) {
  static_assert(sizeof(MeetingId) <= sizeof(ncclUniqueId));
  ncclUniqueId unique{};
  std::memcpy(unique.internal, &id, sizeof id);
  return unique;
}

bool FromUniqueId(const ncclUniqueId& unique, MeetingId& id) {
  std::memcpy(&id, unique.internal, sizeof id);
  return id.magic == kMagic;
}

// ---- The root

struct MeetingRoot::Guest {
  Fd socket;
  std::chrono::steady_clock::time_point since;
  std::optional<RankFacts> facts;  // once it has proved itself
};

std::shared_ptr<MeetingRoot> MeetingRoot::Open(const MeetingId& id) {
  std::shared_ptr<MeetingRoot> root(new MeetingRoot);
  root->id_ = id;
  root->listening_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t length = AddressOf(id, address);
  if (bind(root->listening_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(root->listening_.get(), kRanksMax) != 0)
    return nullptr;
  {
    Roots& all = AllRoots();
    std::lock_guard lock(all.mutex);
    all.by_name[id.name] = root;
  }
  StartThread("emulated-root", [root] { root->Run(); }).detach();
  return root;
}

std::shared_ptr<MeetingRoot> MeetingRoot::Find(const MeetingId& id) {
  Roots& all = AllRoots();
  std::lock_guard lock(all.mutex);
  const auto found = all.by_name.find(id.name);
  return found == all.by_name.end() ? nullptr : found->second.lock();
}

MeetingRoot::~MeetingRoot() {
  Roots& all = AllRoots();
  std::lock_guard lock(all.mutex);
  all.by_name.erase(id_.name);
}

void MeetingRoot::Run() {
  while (!stop_.set()) {
    std::vector<pollfd> fds = {{stop_.fd(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
    // Who has proved itself says nothing more; its end is not for the root to notice.
    for (const auto& guest : guests_)
      fds.push_back({guest->facts ? -1 : guest->socket.get(), POLLIN, 0});
    (void)poll(fds.data(), fds.size(), 500);
    const auto now = std::chrono::steady_clock::now();
    std::vector<std::unique_ptr<Guest>> staying;
    for (size_t i = 0; i < guests_.size(); ++i) {
      Guest& guest = *guests_[i];
      const bool spoke = fds[i + 2].revents != 0;
      if (!guest.facts && (spoke ? !Hear(guest) : now - guest.since > kHelloTime)) continue;
      staying.push_back(std::move(guests_[i]));
    }
    guests_ = std::move(staying);
    for (;;) {
      Fd guest(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (guest.get() < 0) break;
      ucred who{};
      socklen_t size = sizeof who;
      const bool ours = getsockopt(guest.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
                        who.uid == geteuid();
      if (!ours || guests_.size() >= kGuestsMax) continue;
      guests_.push_back(std::make_unique<Guest>());
      guests_.back()->socket = std::move(guest);
      guests_.back()->since = now;
    }
    const bool complete = !seats_.empty() && std::count(seats_.begin(), seats_.end(), nullptr) == 0;
    if (!complete || broken_) continue;
    Introduce();
    return;
  }
}

bool MeetingRoot::Hear(Guest& guest) {
  Hello hello;
  const ssize_t got = recv(guest.socket.get(), &hello, sizeof hello, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got != static_cast<ssize_t>(sizeof hello) || !Same(hello.id, id_)) return false;
  guest.facts = hello.facts;
  if (!Fits(hello.facts)) {
    broken_ = true;
    return true;
  }
  seats_[static_cast<size_t>(hello.facts.rank)] = &guest;
  return true;
}

bool MeetingRoot::Fits(const RankFacts& facts) {
  if (facts.ranks < 1 || facts.ranks > kRanksMax || facts.rank < 0 || facts.rank >= facts.ranks)
    return false;
  if (seats_.empty()) seats_.resize(static_cast<size_t>(facts.ranks));
  if (static_cast<int>(seats_.size()) != facts.ranks) {
    std::fprintf(stderr, "emulated NCCL: rank %d says that there are %d ranks, others say %zu\n",
                 facts.rank, facts.ranks, seats_.size());
    return false;
  }
  if (seats_[static_cast<size_t>(facts.rank)] == nullptr) return true;
  std::fprintf(stderr, "emulated NCCL: rank %d of %d is there twice\n", facts.rank, facts.ranks);
  return false;
}

// Two connections for each pair. Who has died meanwhile leaves its peers one that is closed.
void MeetingRoot::Introduce() {
  for (size_t a = 0; a < seats_.size(); ++a) {
    for (size_t b = a + 1; b < seats_.size(); ++b) {
      int data[2], bootstrap[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, data) != 0) return;
      const Fd data_a(data[0]), data_b(data[1]);
      if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, bootstrap) != 0) return;
      const Fd bootstrap_a(bootstrap[0]), bootstrap_b(bootstrap[1]);
      (void)SendIntroduction(seats_[a]->socket.get(), *seats_[b]->facts, {data[0], bootstrap[0]});
      (void)SendIntroduction(seats_[b]->socket.get(), *seats_[a]->facts, {data[1], bootstrap[1]});
    }
  }
}

// ---- A rank

ncclResult_t Meet(const MeetingId& id, const RankFacts& me, bool patient, const Stops& stops,
                  std::vector<PeerConnection>& peers) {
  sockaddr_un address;
  const socklen_t length = AddressOf(id, address);
  const int64_t tries = SettingOr("NCCL_SOCKET_RETRY_CNT", 34);
  const int64_t sleep_ms = SettingOr("NCCL_SOCKET_RETRY_SLEEP_MSEC", 100);
  Fd root(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  for (int64_t i = 1; connect(root.get(), reinterpret_cast<sockaddr*>(&address), length) != 0;
       ++i) {
    if (!patient && i > tries) return ncclRemoteError;
    if (!stops.Pause(patient ? 5 : static_cast<int>(i * sleep_ms))) return ncclInternalError;
  }
  const Hello hello{id, me};
  if (send(root.get(), &hello, sizeof hello, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof hello))
    return ncclRemoteError;
  peers.clear();
  peers.resize(static_cast<size_t>(me.ranks));
  for (int met = 1; met < me.ranks; ++met) {
    std::vector<pollfd> fds = {{root.get(), POLLIN, 0}};
    stops.AddTo(fds);
    while (fds[0].revents == 0) {
      if (stops.any()) return ncclInternalError;
      (void)poll(fds.data(), fds.size(), 500);
    }
    PeerConnection peer;
    if (!ReceiveIntroduction(root.get(), peer)) return ncclRemoteError;
    if (peer.facts.rank < 0 || peer.facts.rank >= me.ranks) return ncclInternalError;
    peers[static_cast<size_t>(peer.facts.rank)] = std::move(peer);
  }
  return ncclSuccess;
}

}  // namespace holdfast::emulation
