#include "runtime/collectives/shm_door.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "runtime/base/digest.h"
#include "runtime/base/status.h"

namespace holdfast {
namespace {

// An abstract name: a zero byte, then "holdfast-" and the random part in hexadecimal.
socklen_t AbstractAddress(std::string_view name, sockaddr_un* address) {
  const std::string text = Cat("holdfast-", Hex(name));
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, text.data(), text.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

}  // namespace

absl::StatusOr<ShmDoor> ShmDoor::Open() {
  Fd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::UnimplementedError(Cat("no local sockets: ", ErrnoText(errno)));
  std::string name = RandomBytes(kDoorNameBytes);
  sockaddr_un address;
  const socklen_t size = AbstractAddress(name, &address);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0)
    return absl::UnimplementedError(Cat("no abstract socket names: ", ErrnoText(errno)));
  return ShmDoor(std::move(fd), std::move(name));
}

absl::Status ShmDoor::Send(std::string_view to, std::string_view text,
                           const std::vector<int>& fds) const {
  sockaddr_un address;
  msghdr message = {};
  message.msg_name = &address;
  message.msg_namelen = AbstractAddress(to, &address);
  iovec part = {const_cast<char*>(text.data()), text.size()};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxLetterFds * sizeof(int))] = {};
  if (!fds.empty()) {
    const size_t bytes = fds.size() * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(head), fds.data(), bytes);
  }
  if (sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return absl::OkStatus();
  // ETOOMANYREFS: too many descriptors of this user are on their way.
  const bool full = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS ||
                    errno == ETOOMANYREFS;
  return full ? absl::UnavailableError("full") : absl::AbortedError(ErrnoText(errno));
}

absl::StatusOr<Letter> ShmDoor::Receive() const {
  char text[kMaxLetterBytes];
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxLetterFds * sizeof(int))];
  iovec part = {text, sizeof text};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return absl::NotFoundError("no letter");
  Letter letter;
  letter.text.assign(text, static_cast<size_t>(n));
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
      letter.fds.emplace_back(fd);
    }
  }
  return letter;
}

}  // namespace holdfast
