// The listening side of an endpoint: one thread that accepts connections and goes through the hello
// with each of them, for the whole life of a worker. Everything a stranger can use up is bounded:
// connections in their hello (number and time; the oldest makes room for a new one), held ones
// (number and time), bytes read from each (one message).
//
// Proved connections of the open group go to TakeSeats; those of a later generation are held until
// Open is called for it. Before the first Open there is no secret to prove anything with:
// connections wait for it like any unproved one, and dialers come again.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/collectives/communicator.h"
#include "runtime/collectives/hello.h"
#include "runtime/collectives/link.h"
#include "runtime/collectives/socket.h"

namespace holdfast {

class Acceptor {
 public:
  Acceptor(const TcpEndpoint::Options& options, Fd listener);
  ~Acceptor();

  int port() const { return port_; }

  // All of these: any thread.
  // From now on members of this group are seated. kFailedPrecondition unless its generation is
  // later than every one before.
  absl::Status Open(const TcpEndpoint::GroupOptions& group);
  // Seats nobody more for the open group and drops what was not taken.
  void Shut();
  // The links that were made since the last call.
  std::vector<LinkSeed> TakeSeats();
  // Readable when there are seats to take.
  const WakeFd& seated() const { return seated_; }

 private:
  enum class Phase { kHello, kNoSecret, kProof, kHeld };
  struct Guest {
    Fd fd;
    Phase phase = Phase::kHello;
    int64_t until_ms = 0;
    std::array<char, kHelloBytes> bytes;
    size_t got = 0;
    Hello hello;
    std::string challenge;  // own
  };

  void Run();
  void AcceptAll(int64_t now_ms);
  // These return false when the guest is to be dropped. Under mu_.
  bool Step(Guest* guest, int64_t now_ms);
  bool ReadMessage(Guest* guest, size_t size, bool* whole);
  bool OnHello(Guest* guest);
  bool OnProof(Guest* guest, int64_t now_ms);
  bool Seat(Guest* guest, int64_t now_ms);
  Verdict Judge(const Hello& hello) const;
  void DropDoubles(const Guest& guest);
  void MakeRoom(size_t bound);

  const TcpEndpoint::Options options_;
  Fd listener_;
  int port_ = 0;
  WakeFd wake_, seated_;

  std::mutex mu_;
  bool stop_ = false;
  bool have_group_ = false, open_ = false;
  TcpEndpoint::GroupOptions group_;
  std::vector<bool> taken_;
  std::vector<LinkSeed> seats_;
  bool forget_ = false;   // run or secret changed: held ones must come again
  bool regroup_ = false;  // Open was called: look at the held ones again

  std::vector<Guest> guests_;    // in order of arrival; thread_ only
  int64_t accept_after_ms_ = 0;  // no descriptors left: accept again then
  std::thread thread_;
};

}  // namespace holdfast
