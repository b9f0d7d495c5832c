#include "storage/records.h"

#include <cstring>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"

namespace holdfast::storage {
namespace {

constexpr size_t kPrefixBytes = 20;
constexpr size_t kMaxMarkBytes = 1 << 20;

void PutBig(std::string* out, uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    out->push_back(static_cast<char>(value >> shift));
  }
}

uint64_t GetBig(std::string_view text, size_t at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(text[at + i]);
  return value;
}

CheckpointId ParsePrefix(std::string_view key) {
  return {static_cast<uint32_t>(GetBig(key, 0, 4)), static_cast<int64_t>(GetBig(key, 4, 8)),
          GetBig(key, 12, 8)};
}

void PutId(ByteWriter* out, const CheckpointId& id) {
  out->Put<uint32_t>(id.branch);
  out->Put<int64_t>(id.step);
  out->Put<uint64_t>(id.generation);
}

CheckpointId GetId(ByteReader* in) {
  CheckpointId id;
  id.branch = in->Get<uint32_t>();
  id.step = in->Get<int64_t>();
  id.generation = in->Get<uint64_t>();
  return id;
}

absl::Status Damaged(std::string_view what, std::string_view why) {
  return absl::DataLossError(Cat(what, " is damaged: ", why));
}

absl::Status TooNew(std::string_view what, int version) {
  return absl::FailedPreconditionError(Cat(what, " has format version ", version,
                                           "; this program reads up to version ", kRecordVersion,
                                           ": use the newer program"));
}

// The eight bytes at the end are the XXH3-64 of all before them.
bool ChecksumFits(std::string_view bytes, std::string_view key = {}) {
  if (bytes.size() < 8) return false;
  uint64_t stored;
  std::memcpy(&stored, bytes.data() + bytes.size() - 8, 8);
  return stored == Hash64(bytes.substr(0, bytes.size() - 8), Hash64(key));
}

}  // namespace

std::string IdPrefix(const CheckpointId& id) {
  std::string key;
  PutBig(&key, id.branch, 4);
  PutBig(&key, static_cast<uint64_t>(id.step), 8);
  PutBig(&key, id.generation, 8);
  return key;
}

std::string ChunkKey(const CheckpointId& id, int64_t owner, int64_t ordinal) {
  std::string key = IdPrefix(id);
  PutBig(&key, static_cast<uint64_t>(owner), 4);
  PutBig(&key, static_cast<uint64_t>(ordinal), 4);
  return key;
}

std::string ShardKey(const CheckpointId& id, int64_t owner) {
  std::string key = IdPrefix(id) + 'S';
  PutBig(&key, static_cast<uint64_t>(owner), 4);
  return key;
}

std::string ManifestKey(const CheckpointId& id) { return IdPrefix(id) + 'M'; }

int64_t ShardKeyOwner(std::string_view shard_key) {
  return static_cast<int64_t>(GetBig(shard_key, kPrefixBytes + 1, 4));
}

std::string MarkKey(std::string_view key, uint64_t sequence) {
  std::string out(key);
  out.push_back('\0');
  PutBig(&out, sequence, 8);
  return out;
}

bool ParseMarkKey(std::string_view bytes, std::string* key, uint64_t* sequence) {
  if (bytes.size() < 10 || bytes.find('\0') != bytes.size() - 9) return false;
  *key = bytes.substr(0, bytes.size() - 9);
  *sequence = GetBig(bytes, bytes.size() - 8, 8);
  return true;
}

std::string PrefixEnd(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (!prefix.empty()) ++prefix.back();
  return prefix;
}

bool ParseChunkKey(std::string_view key, ChunkKeyParts* parts) {
  if (key.size() != kPrefixBytes + 8) return false;
  parts->id = ParsePrefix(key);
  parts->owner = static_cast<int64_t>(GetBig(key, kPrefixBytes, 4));
  parts->ordinal = static_cast<int64_t>(GetBig(key, kPrefixBytes + 4, 4));
  return parts->id.step >= 0 && parts->owner <= kMaxOwner && parts->ordinal < kMaxChunks;
}

bool ParseMetaKey(std::string_view key, CheckpointId* id, char* kind) {
  if (key.size() <= kPrefixBytes) return false;
  *kind = key[kPrefixBytes];
  if (!(*kind == 'S' && key.size() == kPrefixBytes + 5) &&
      !(*kind == 'M' && key.size() == kPrefixBytes + 1)) {
    return false;
  }
  *id = ParsePrefix(key);
  return id->step >= 0;
}

void EncodeChunkHeader(const ChunkHeader& header, char* out) {
  ByteWriter bytes;
  bytes.PutRaw(kChunkMagic.data(), 4);
  bytes.Put<uint16_t>(kRecordVersion);
  bytes.Put<uint8_t>(0);  // kind: a chunk of the state
  bytes.Put<Codec>(header.codec);
  bytes.Put<uint64_t>(header.run_hash);
  PutId(&bytes, header.id);
  bytes.Put<uint32_t>(static_cast<uint32_t>(header.owner));
  bytes.Put<uint32_t>(static_cast<uint32_t>(header.ordinal));
  bytes.Put<uint32_t>(static_cast<uint32_t>(header.chunk.region));
  bytes.Put<int64_t>(header.chunk.first);
  bytes.Put<int64_t>(header.chunk.words);
  bytes.Put<int64_t>(header.chunk.words * 4);  // payload bytes
  bytes.Put<uint64_t>(header.grid_digest);
  bytes.Put<uint64_t>(header.state_digest);
  bytes.Put<uint64_t>(header.content.low);
  bytes.Put<uint64_t>(header.content.high);
  PutId(&bytes, {});       // base chunk: none
  bytes.Put<uint32_t>(0);  // base owner
  bytes.Put<uint32_t>(0);  // base ordinal
  bytes.Put<uint32_t>(0);  // reserved
  bytes.Put<uint64_t>(Hash64(bytes.bytes(), Hash64({})));
  static_assert(kChunkHeaderBytes == 144);
  std::memcpy(out, bytes.bytes().data(), kChunkHeaderBytes);
}

absl::StatusOr<DecodedChunk> DecodeChunk(std::string_view value) {
  constexpr std::string_view kWhat = "chunk record";
  if (value.size() < kChunkHeaderBytes) return Damaged(kWhat, "shorter than its header");
  const std::string_view head = value.substr(0, kChunkHeaderBytes);
  if (head.substr(0, 4) != kChunkMagic) return Damaged(kWhat, "it does not begin with HFCK");
  if (!ChecksumFits(head)) return Damaged(kWhat, "header checksum mismatch");
  ByteReader in(head.substr(4));
  if (const auto version = in.Get<uint16_t>(); version > kRecordVersion) {
    return TooNew(kWhat, version);
  }
  const auto kind = in.Get<uint8_t>();
  DecodedChunk out;
  ChunkHeader& header = out.header;
  header.codec = in.Get<Codec>();
  if (kind != 0 || header.codec != Codec::kRaw) {
    return absl::FailedPreconditionError(Cat("chunk record of kind ", int{kind}, " and codec ",
                                             static_cast<int>(header.codec),
                                             ": this program reads kind 0, codec 0"));
  }
  header.run_hash = in.Get<uint64_t>();
  header.id = GetId(&in);
  header.owner = in.Get<uint32_t>();
  header.ordinal = in.Get<uint32_t>();
  header.chunk.region = in.Get<uint32_t>();
  header.chunk.first = in.Get<int64_t>();
  header.chunk.words = in.Get<int64_t>();
  const auto payload_bytes = in.Get<int64_t>();
  header.grid_digest = in.Get<uint64_t>();
  header.state_digest = in.Get<uint64_t>();
  header.content.low = in.Get<uint64_t>();
  header.content.high = in.Get<uint64_t>();
  out.payload = value.substr(kChunkHeaderBytes);
  if (header.chunk.words < 1 || header.chunk.words > kChunkWords || header.chunk.first < 0 ||
      header.chunk.first % kChunkWords != 0 || payload_bytes != header.chunk.words * 4) {
    return Damaged(kWhat, "its position or size is out of range");
  }
  if (static_cast<int64_t>(out.payload.size()) != payload_bytes) {
    return Damaged(kWhat,
                   Cat("payload of ", out.payload.size(), " bytes, ", payload_bytes, " announced"));
  }
  if (Hash128Of(out.payload.data(), out.payload.size()) != header.content) {
    return Damaged(kWhat, "content hash mismatch");
  }
  return out;
}

std::string ShardRecord::ToBytes() const {
  ByteWriter out;
  out.PutRaw(kShardMagic.data(), 4);
  out.Put<uint16_t>(kRecordVersion);
  out.Put<uint16_t>(0);  // reserved
  out.Put<uint64_t>(run_hash);
  PutId(&out, id);
  out.Put<uint32_t>(static_cast<uint32_t>(owner));
  out.Put<int64_t>(first);
  out.Put<int64_t>(last);
  out.Put<uint64_t>(grid_digest);
  out.Put<uint64_t>(state_digest);
  out.Put<int64_t>(bytes);
  out.Put<uint64_t>(Hash64(out.bytes(), Hash64({})));
  return out.Take();
}

absl::StatusOr<ShardRecord> ShardRecord::FromBytes(std::string_view value) {
  constexpr std::string_view kWhat = "shard record";
  if (value.substr(0, 4) != kShardMagic) return Damaged(kWhat, "it does not begin with HFSH");
  if (!ChecksumFits(value)) return Damaged(kWhat, "checksum mismatch");
  ByteReader in(value.substr(4));
  if (const auto version = in.Get<uint16_t>(); version > kRecordVersion) {
    return TooNew(kWhat, version);
  }
  in.Get<uint16_t>();
  ShardRecord record;
  record.run_hash = in.Get<uint64_t>();
  record.id = GetId(&in);
  record.owner = in.Get<uint32_t>();
  record.first = in.Get<int64_t>();
  record.last = in.Get<int64_t>();
  record.grid_digest = in.Get<uint64_t>();
  record.state_digest = in.Get<uint64_t>();
  record.bytes = in.Get<int64_t>();
  in.Get<uint64_t>();
  if (!in.AtEnd()) return Damaged(kWhat, "wrong length");
  if (record.owner > kMaxOwner || record.first < 0 || record.first > record.last ||
      record.last > kMaxChunks || record.id.step < 0) {
    return Damaged(kWhat, "a number is out of range");
  }
  return record;
}

std::string EncodeMark(std::string_view key, uint64_t sequence, std::string_view value) {
  ByteWriter out;
  out.PutRaw(kMarkMagic.data(), 4);
  out.Put<uint16_t>(kRecordVersion);
  out.Put<uint16_t>(0);  // reserved
  out.Put<uint64_t>(sequence);
  out.PutString(value);
  out.Put<uint64_t>(Hash64(out.bytes(), Hash64(key)));
  return out.Take();
}

absl::StatusOr<Mark> DecodeMark(std::string_view key, std::string_view bytes) {
  const std::string what = Cat("mark '", key, "'");
  if (bytes.substr(0, 4) != kMarkMagic) return Damaged(what, "it does not begin with HFMK");
  if (!ChecksumFits(bytes, key)) return Damaged(what, "checksum mismatch");
  ByteReader in(bytes.substr(4));
  if (const auto version = in.Get<uint16_t>(); version > kRecordVersion) {
    return TooNew(what, version);
  }
  in.Get<uint16_t>();
  Mark mark;
  mark.sequence = in.Get<uint64_t>();
  mark.value = in.GetString(kMaxMarkBytes);
  in.Get<uint64_t>();
  if (!in.AtEnd()) return Damaged(what, "wrong length");
  return mark;
}

}  // namespace holdfast::storage
