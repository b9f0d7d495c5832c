// Keys and values inside the RocksDB of a slot store. Byte-exact grammar: FORMAT.md. All functions
// are pure. Decoding is bounded and checks everything it reads; errors: kDataLoss (damaged),
// kFailedPrecondition (a newer version).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/digest.h"
#include "storage/checkpoint_store.h"

namespace holdfast::storage {

inline constexpr uint16_t kRecordVersion = 1;
inline constexpr int64_t kMaxOwner = 65'535;
inline constexpr int64_t kMaxChunks = 1 << 24;  // 16 TiB of state

// Values begin with four bytes that say what they are, so that a stray file can be told apart.
inline constexpr std::string_view kChunkMagic = "HFCK";
inline constexpr std::string_view kShardMagic = "HFSH";
inline constexpr std::string_view kManifestMagic = "HFMN";
inline constexpr std::string_view kMarkMagic = "HFMK";

enum class Codec : uint8_t { kRaw = 0 };

// Keys: big-endian, so that bytes sort as numbers: branch u32, step u64, generation u64, then ...
std::string IdPrefix(const CheckpointId& id);  // nothing (20 bytes)
std::string ChunkKey(const CheckpointId& id, int64_t owner,
                     int64_t ordinal);                        // owner u32, ordinal u32
std::string ShardKey(const CheckpointId& id, int64_t owner);  // 'S', owner u32
std::string ManifestKey(const CheckpointId& id);              // 'M'
int64_t ShardKeyOwner(std::string_view shard_key);
std::string MarkKey(std::string_view key, uint64_t sequence);  // key, 0 byte, sequence u64
// The smallest string above every string that begins with `prefix`; empty when there is none.
std::string PrefixEnd(std::string prefix);

struct ChunkKeyParts {
  CheckpointId id;
  int64_t owner = 0, ordinal = 0;
};
bool ParseChunkKey(std::string_view key, ChunkKeyParts* parts);
// Of a shard key or manifest key.
bool ParseMetaKey(std::string_view key, CheckpointId* id, char* kind);

bool ParseMarkKey(std::string_view bytes, std::string* key, uint64_t* sequence);

// In front of every chunk's payload.
struct ChunkHeader {
  Codec codec = Codec::kRaw;
  uint64_t run_hash = 0;  // Hash64 of the run's name
  CheckpointId id;
  int64_t owner = 0, ordinal = 0;
  Chunk chunk;
  uint64_t grid_digest = 0;
  uint64_t state_digest = 0;  // DigestWords of the chunk
  Hash128 content;            // of the raw words
};
inline constexpr size_t kChunkHeaderBytes = 144;

// Writes kChunkHeaderBytes at `out`.
void EncodeChunkHeader(const ChunkHeader& header, char* out);
struct DecodedChunk {
  ChunkHeader header;
  std::string_view payload;  // raw words, inside the given value
};
// Checks header checksum, sizes and the content hash.
absl::StatusOr<DecodedChunk> DecodeChunk(std::string_view value);

// Ingested together with the chunks, all or nothing: says that a shard is complete here.
struct ShardRecord {
  uint64_t run_hash = 0;
  CheckpointId id;
  int64_t owner = 0, first = 0, last = 0;
  uint64_t grid_digest = 0;
  uint64_t state_digest = 0;
  int64_t bytes = 0;
  std::string ToBytes() const;
  static absl::StatusOr<ShardRecord> FromBytes(std::string_view value);
};

// A mark's value with its checksum (which also covers the key). The sequence says which of two is
// the later.
std::string EncodeMark(std::string_view key, uint64_t sequence, std::string_view value);
struct Mark {
  uint64_t sequence = 0;
  std::string value;
};
absl::StatusOr<Mark> DecodeMark(std::string_view key, std::string_view bytes);

// kInvalidArgument unless the shards of the manifest tile all chunks of its regions once and their
// digests add up.
[[nodiscard]] absl::Status CheckComplete(const Manifest& manifest);

}  // namespace holdfast::storage
