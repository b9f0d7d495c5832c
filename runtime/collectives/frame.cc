#include "runtime/collectives/frame.h"

#define XXH_INLINE_ALL  // compiled here with this build's vector instructions; the distribution's
                        // library has SSE2 only
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/bytes.h"

namespace holdfast {
namespace {

uint64_t Checksum(const FrameHeader& header, const void* payload, uint64_t key) {
  const uint64_t seed = header.length > 0 ? XXH3_64bits_withSeed(payload, header.length, key) : key;
  return XXH3_64bits_withSeed(&header, offsetof(FrameHeader, checksum), seed);
}

}  // namespace

void SealFrame(FrameHeader* header, const void* payload, uint64_t key) {
  header->magic = kFrameMagic;
  header->checksum = Checksum(*header, payload, key);
}

bool FrameIntact(const FrameHeader& header, const void* payload, uint64_t key) {
  return header.checksum == Checksum(header, payload, key);
}

std::string EncodeGoodbye(const Goodbye& goodbye, uint64_t nonce, uint64_t key) {
  ByteWriter payload;
  payload.Put(goodbye.culprit);
  payload.Put(goodbye.witness);
  std::string text = goodbye.text.substr(0, kGoodbyeTextBytes);
  text.resize(kGoodbyeTextBytes, '\0');
  payload.PutRaw(text.data(), text.size());
  FrameHeader header;
  header.type = FrameType::kGoodbye;
  header.nonce = nonce;
  header.length = kGoodbyePayloadBytes;
  SealFrame(&header, payload.bytes().data(), key);
  std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
  return frame + payload.bytes();
}

Goodbye DecodeGoodbyePayload(std::string_view payload) {
  ByteReader r(payload);
  Goodbye goodbye;
  goodbye.culprit = r.Get<int32_t>();
  goodbye.witness = r.Get<int32_t>();
  const std::string_view text = r.GetRaw(kGoodbyeTextBytes);
  goodbye.text = std::string(text.substr(0, text.find('\0')));
  // It goes into logs: one line of printable text, whatever came.
  std::replace_if(
      goodbye.text.begin(), goodbye.text.end(),
      [](unsigned char c) { return c < 0x20 || c == 0x7F; }, '?');
  return goodbye;
}

bool FindGoodbye(std::string_view tail, uint64_t nonce, uint64_t key, Goodbye* goodbye) {
  if (tail.size() < kGoodbyeFrameBytes) return false;
  tail.remove_prefix(tail.size() - kGoodbyeFrameBytes);
  FrameHeader header;
  std::memcpy(&header, tail.data(), sizeof header);
  const std::string_view payload = tail.substr(kFrameHeaderBytes);
  if (header.magic != kFrameMagic || header.type != FrameType::kGoodbye || header.nonce != nonce ||
      header.length != kGoodbyePayloadBytes || !FrameIntact(header, payload.data(), key)) {
    return false;
  }
  *goodbye = DecodeGoodbyePayload(payload);
  return true;
}

}  // namespace holdfast
