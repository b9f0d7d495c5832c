// Frames of a link between two members. A frame is a header of fixed size and `length` bytes of
// payload; all integers are little-endian. Every field is checked against what the receiver
// expects, so a frame of another generation, attempt or operation is an error, never data. The
// checksum is XXH3 (seeded with the key of this link and direction) over payload and header: it
// finds damage and mixed-up streams; it is no signature.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/collectives/communicator.h"

namespace holdfast {

enum class FrameType : uint8_t {
  kBeat = 1,  // alive; sent when nothing else was
  kAnnounce,  // the sender has queued operation `op` (and all before it): bulk data for it may come
  kDirect,    // the sender's part of a small operation
  kBulk,      // one chunk of a large operation, from the ring predecessor
  kEnd,       // orderly end: the sender's Close is operation `op`; no further frame follows
  kGoodbye,   // the sender gives up: payload says why; the last bytes of the stream, even in the
              // middle of a frame
};

struct FrameHeader {
  uint32_t magic = 0;
  FrameType type = FrameType::kBeat;
  uint8_t kind = 0;  // OpKind
  uint16_t reserved = 0;
  uint64_t nonce = 0;  // of the generation
  int64_t step = 0;
  int32_t attempt = 0;
  int32_t bucket = 0;
  uint64_t op = 0;      // index of the operation, from 1
  uint64_t shape = 0;   // hash of kind, sizes, borders and root: equal on all members
  uint64_t offset = 0;  // kBulk: bytes of this operation sent before on this link
  uint32_t length = 0;
  uint32_t reserved2 = 0;
  uint64_t checksum = 0;
};
static_assert(sizeof(FrameHeader) == 72);

inline constexpr uint32_t kFrameMagic = 0x31434648;  // "HFC1"
inline constexpr size_t kFrameHeaderBytes = sizeof(FrameHeader);
inline constexpr uint32_t kMaxBulkBytes = 256 << 10;
inline constexpr uint32_t kMaxDirectBytes = 32 << 10;

// Fills magic and checksum.
void SealFrame(FrameHeader* header, const void* payload, uint64_t key);
bool FrameIntact(const FrameHeader& header, const void* payload, uint64_t key);

// Why a member gave up. `culprit` is the rank that the error is about (-1: nobody), `witness` the
// one that saw it.
struct Goodbye {
  int32_t culprit = -1;
  int32_t witness = -1;
  std::string text;  // cut to kGoodbyeTextBytes
};
inline constexpr size_t kGoodbyeTextBytes = 240;
inline constexpr uint32_t kGoodbyePayloadBytes = 8 + kGoodbyeTextBytes;
inline constexpr size_t kGoodbyeFrameBytes = kFrameHeaderBytes + kGoodbyePayloadBytes;

// The whole frame, kGoodbyeFrameBytes.
std::string EncodeGoodbye(const Goodbye& goodbye, uint64_t nonce, uint64_t key);
Goodbye DecodeGoodbyePayload(std::string_view payload);
// True when the last bytes of what was received before the end of the stream are a whole goodbye
// frame.
bool FindGoodbye(std::string_view tail, uint64_t nonce, uint64_t key, Goodbye* goodbye);

}  // namespace holdfast
