#include "runtime/collectives/hello.h"

#include <cstring>

#include "runtime/base/bytes.h"

namespace holdfast {
namespace {

constexpr uint64_t kHelloMagic = 0x314F4C4C45484648;      // "HFHELLO1"
constexpr uint64_t kChallengeMagic = 0x314C414843464648;  // "HFFCHAL1"
constexpr uint32_t kVersion = 1;

std::string Mac(std::string_view secret, std::string_view label, const Transcript& t,
                uint32_t extra) {
  ByteWriter w;
  w.PutString(label);
  w.PutString(t.run);
  w.PutString(EncodeHello(t.hello));
  w.PutString(t.listener_challenge);
  w.Put(extra);
  const auto mac = HmacSha256(secret, w.bytes());
  return std::string(reinterpret_cast<const char*>(mac.data()), mac.size());
}

}  // namespace

std::string_view VerdictText(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAccepted:
      return "accepted";
    case Verdict::kEarlierGeneration:
      return "it is in a later generation";
    case Verdict::kOtherNonce:
      return "its generation of this number has another nonce";
    case Verdict::kOtherRoster:
      return "its roster of this generation is another one";
    case Verdict::kSeatTaken:
      return "this rank is connected already";
  }
  return "unknown verdict";
}

std::string EncodeHello(const Hello& hello) {
  ByteWriter w;
  w.Put(kHelloMagic);
  w.Put(kVersion);
  w.Put(hello.world);
  w.Put(hello.run.low);
  w.Put(hello.run.high);
  w.Put(hello.generation);
  w.Put(hello.nonce);
  w.Put(hello.from);
  w.Put(hello.to);
  w.PutRaw(hello.challenge.data(), hello.challenge.size());
  return w.Take();
}

bool DecodeHello(std::string_view bytes, Hello* hello) {
  ByteReader r(bytes);
  if (r.Get<uint64_t>() != kHelloMagic || r.Get<uint32_t>() != kVersion) return false;
  hello->world = r.Get<int32_t>();
  hello->run.low = r.Get<uint64_t>();
  hello->run.high = r.Get<uint64_t>();
  hello->generation = r.Get<uint64_t>();
  hello->nonce = r.Get<uint64_t>();
  hello->from = r.Get<int32_t>();
  hello->to = r.Get<int32_t>();
  hello->challenge = std::string(r.GetRaw(kChallengeBytes));
  return r.AtEnd();
}

std::string EncodeChallenge(std::string_view challenge) {
  ByteWriter w;
  w.Put(kChallengeMagic);
  w.PutRaw(challenge.data(), challenge.size());
  return w.Take();
}

bool DecodeChallenge(std::string_view bytes, std::string* challenge) {
  ByteReader r(bytes);
  if (r.Get<uint64_t>() != kChallengeMagic) return false;
  *challenge = std::string(r.GetRaw(kChallengeBytes));
  return r.AtEnd();
}

std::string DialerProof(std::string_view secret, const Transcript& t) {
  return Mac(secret, "holdfast dialer", t, 0);
}

std::string EncodeAnswer(std::string_view secret, const Transcript& t, Verdict verdict) {
  ByteWriter w;
  w.Put(verdict);
  const std::string mac = Mac(secret, "holdfast listener", t, static_cast<uint32_t>(verdict));
  w.PutRaw(mac.data(), mac.size());
  return w.Take();
}

bool DecodeAnswer(std::string_view bytes, std::string_view secret, const Transcript& t,
                  Verdict* verdict) {
  ByteReader r(bytes);
  const uint32_t value = r.Get<uint32_t>();
  const std::string_view mac = r.GetRaw(kProofBytes);
  if (!r.AtEnd() || !EqualInConstantTime(mac, Mac(secret, "holdfast listener", t, value)))
    return false;
  *verdict = static_cast<Verdict>(value);
  return true;
}

LinkKeys DeriveLinkKeys(std::string_view secret, const Transcript& t) {
  const std::string mac = Mac(secret, "holdfast frame keys", t, 0);
  LinkKeys keys;
  std::memcpy(&keys.from_dialer, mac.data(), sizeof keys.from_dialer);
  std::memcpy(&keys.from_listener, mac.data() + 8, sizeof keys.from_listener);
  return keys;
}

}  // namespace holdfast
