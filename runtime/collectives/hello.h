// The hello: how two members of a generation recognise each other on a fresh TCP connection. Four
// messages of fixed size:
//   dialer -> listener   Hello      run, generation, nonce, from rank, to rank, world size,
//   dialer's challenge listener -> dialer   Challenge  listener's challenge dialer -> listener
//   Proof      HMAC-SHA256(secret, "dialer", transcript) listener -> dialer   Answer     verdict,
//   HMAC-SHA256(secret, "listener", transcript, verdict)
// The transcript is everything in the Hello and both challenges (32 random bytes each, fresh for
// every connection), so a recorded hello is worth nothing on another connection, and a proof of one
// side never serves as a proof of the other. Keys for the checksums of the frames that follow come
// from the same transcript, one for each direction. The hello authenticates who is there; what
// follows is not encrypted. Pure functions, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/digest.h"

namespace holdfast {

inline constexpr size_t kChallengeBytes = 32;
inline constexpr size_t kHelloBytes = 88;
inline constexpr size_t kChallengeMessageBytes = 8 + kChallengeBytes;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kAnswerBytes = 4 + kProofBytes;

struct Hello {
  Hash128 run;  // of the run's id: finds a mistake early; the id itself is in the proofs
  uint64_t generation = 0, nonce = 0;
  int32_t from = 0, to = 0, world = 0;
  std::string challenge;  // kChallengeBytes
};

enum class Verdict : uint32_t {
  kAccepted = 0,
  kEarlierGeneration,
  kOtherNonce,
  kOtherRoster,
  kSeatTaken
};

// For messages: why the other side refused.
std::string_view VerdictText(Verdict verdict);

std::string EncodeHello(const Hello& hello);
// False when these are not kHelloBytes of a hello of this version.
bool DecodeHello(std::string_view bytes, Hello* hello);

std::string EncodeChallenge(std::string_view challenge);
bool DecodeChallenge(std::string_view bytes, std::string* challenge);

// What both sides know once both challenges are exchanged.
struct Transcript {
  std::string_view run;
  const Hello& hello;
  std::string_view listener_challenge;
};

std::string DialerProof(std::string_view secret, const Transcript& t);
std::string EncodeAnswer(std::string_view secret, const Transcript& t, Verdict verdict);
// False when the answer was not made with the secret for this transcript.
bool DecodeAnswer(std::string_view bytes, std::string_view secret, const Transcript& t,
                  Verdict* verdict);

struct LinkKeys {
  uint64_t from_dialer = 0, from_listener = 0;
};
LinkKeys DeriveLinkKeys(std::string_view secret, const Transcript& t);

}  // namespace holdfast
