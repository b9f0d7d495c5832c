#include <algorithm>
#include <cstring>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"
#include "storage/records.h"

namespace holdfast::storage {
namespace {

constexpr uint32_t kManifestVersion = 1;
constexpr size_t kMaxManifestBytes = 64 << 20;
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxScalarBytes = 16 << 20;
constexpr uint32_t kMaxRegions = 1 << 20;
constexpr uint32_t kMaxShards = 1 << 17;        // two per owner
constexpr size_t kFixedBytes = 4 + 4 + 8 + 16;  // magic, version, length; hash at the end

absl::Status Damaged(std::string_view why) {
  return absl::DataLossError(Cat("manifest is damaged: ", why));
}

// Number of chunks; -1 when out of range.
int64_t CountChunks(const std::vector<Region>& regions) {
  int64_t chunks = 0;
  for (const Region& region : regions) {
    if (region.words < 0 || region.words > kMaxChunks * kChunkWords) return -1;
    chunks += (region.words + kChunkWords - 1) / kChunkWords;
    if (chunks > kMaxChunks) return -1;
  }
  return chunks;
}

absl::Status ReadLists(ByteReader* in, Manifest* m) {
  const auto regions = in->Get<uint32_t>();
  if (!in->ok() || regions > kMaxRegions) return Damaged("too many regions");
  for (uint32_t i = 0; i < regions && in->ok(); ++i) {
    Region region;
    region.name = in->GetString(kMaxNameBytes);
    region.words = in->Get<int64_t>();
    m->regions.push_back(std::move(region));
  }
  const auto shards = in->Get<uint32_t>();
  if (!in->ok() || shards > kMaxShards) return Damaged("too many shards");
  for (uint32_t i = 0; i < shards && in->ok(); ++i) {
    ShardInfo shard;
    shard.owner = in->Get<int32_t>();
    shard.machine = in->GetString(kMaxNameBytes);
    shard.slot = in->Get<int32_t>();
    shard.first = in->Get<int64_t>();
    shard.last = in->Get<int64_t>();
    shard.state_digest = in->Get<uint64_t>();
    shard.bytes = in->Get<int64_t>();
    m->shards.push_back(std::move(shard));
  }
  return absl::OkStatus();
}

absl::Status CheckRanges(const Manifest& m) {
  const int64_t chunks = CountChunks(m.regions);
  if (chunks < 0) return Damaged("region sizes are out of range");
  if (m.id.step < 0 || m.branch_step < 0 || m.world_size < 1 || m.world_size > kMaxOwner + 1) {
    return Damaged("step or world size is out of range");
  }
  for (const ShardInfo& shard : m.shards) {
    if (shard.owner < 0 || shard.owner > kMaxOwner || shard.first < 0 || shard.first > shard.last ||
        shard.last > chunks || shard.bytes < 0) {
      return Damaged(Cat("the range of owner ", shard.owner, " is out of range"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string Manifest::ToBytes() const {
  ByteWriter body;
  body.Put<uint8_t>(0);  // kind: full
  body.PutString(run);
  body.PutString(run_uuid);
  body.PutString(fingerprint);
  body.Put<uint32_t>(id.branch);
  body.Put<int64_t>(id.step);
  body.Put<uint64_t>(id.generation);
  body.Put<uint32_t>(parent_branch);
  body.Put<int64_t>(branch_step);
  body.Put<int32_t>(world_size);
  body.Put<uint32_t>(static_cast<uint32_t>(regions.size()));
  for (const Region& region : regions) {
    body.PutString(region.name);
    body.Put<int64_t>(region.words);
  }
  body.Put<uint32_t>(static_cast<uint32_t>(shards.size()));
  for (const ShardInfo& shard : shards) {
    body.Put<int32_t>(shard.owner);
    body.PutString(shard.machine);
    body.Put<int32_t>(shard.slot);
    body.Put<int64_t>(shard.first);
    body.Put<int64_t>(shard.last);
    body.Put<uint64_t>(shard.state_digest);
    body.Put<int64_t>(shard.bytes);
  }
  body.PutString(scalars);
  body.Put<uint64_t>(state_digest);

  ByteWriter out;
  out.PutRaw(kManifestMagic.data(), kManifestMagic.size());
  out.Put<uint32_t>(kManifestVersion);
  out.Put<uint64_t>(body.bytes().size() + kFixedBytes);
  out.PutRaw(body.bytes().data(), body.bytes().size());
  const Hash128 hash = Hash128Of(out.bytes().data(), out.bytes().size());
  out.Put<uint64_t>(hash.low);
  out.Put<uint64_t>(hash.high);
  return out.Take();
}

absl::StatusOr<Manifest> Manifest::FromBytes(std::string_view bytes) {
  if (bytes.size() < kFixedBytes) return Damaged(Cat("only ", bytes.size(), " bytes"));
  if (bytes.size() > kMaxManifestBytes) return Damaged(Cat(bytes.size(), " bytes are too many"));
  if (bytes.substr(0, 4) != kManifestMagic) return Damaged("it does not begin with HFMN");
  const std::string_view hashed = bytes.substr(0, bytes.size() - 16);
  ByteReader tail(bytes.substr(hashed.size()));
  Hash128 stored;
  stored.low = tail.Get<uint64_t>();
  stored.high = tail.Get<uint64_t>();
  // The checksum stands at the same place in every version, so that a flipped version number is not
  // taken for one.
  if (Hash128Of(hashed.data(), hashed.size()) != stored) return Damaged("checksum mismatch");
  ByteReader in(hashed.substr(4));
  if (const auto version = in.Get<uint32_t>(); version > kManifestVersion) {
    return absl::FailedPreconditionError(Cat("manifest has format version ", version,
                                             "; this program reads up to version ",
                                             kManifestVersion, ": use the newer program"));
  }
  if (in.Get<uint64_t>() != bytes.size()) return Damaged("its length is not the announced one");
  if (const auto kind = in.Get<uint8_t>(); kind != 0) {
    return absl::FailedPreconditionError(
        Cat("manifest of kind ", int{kind}, ": this program reads kind 0 (full)"));
  }
  Manifest m;
  m.run = in.GetString(kMaxNameBytes);
  m.run_uuid = in.GetString(kMaxNameBytes);
  m.fingerprint = in.GetString(kMaxNameBytes);
  m.id.branch = in.Get<uint32_t>();
  m.id.step = in.Get<int64_t>();
  m.id.generation = in.Get<uint64_t>();
  m.parent_branch = in.Get<uint32_t>();
  m.branch_step = in.Get<int64_t>();
  m.world_size = in.Get<int32_t>();
  HF_RETURN_IF_ERROR(ReadLists(&in, &m));
  m.scalars = in.GetString(kMaxScalarBytes);
  m.state_digest = in.Get<uint64_t>();
  if (!in.AtEnd()) return Damaged("its fields do not fill it exactly");
  HF_RETURN_IF_ERROR(CheckRanges(m));
  return m;
}

absl::Status CheckComplete(const Manifest& manifest) {
  HF_RETURN_IF_ERROR(CheckRanges(manifest));
  std::vector<std::pair<int64_t, int64_t>> ranges;
  uint64_t digest = 0;
  for (const ShardInfo& shard : manifest.shards) {
    ranges.emplace_back(shard.first, shard.last);
    digest += shard.state_digest;
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t reached = 0;
  for (const auto& [first, last] : ranges) {
    if (first != reached) {
      return absl::InvalidArgumentError(Cat(
          "manifest of ", ToString(manifest.id), ": chunks ", std::min(first, reached), " to ",
          std::max(first, reached), first > reached ? " are in no shard" : " are in two shards"));
    }
    reached = last;
  }
  if (const int64_t chunks = CountChunks(manifest.regions); reached != chunks) {
    return absl::InvalidArgumentError(Cat("manifest of ", ToString(manifest.id), ": chunks ",
                                          reached, " to ", chunks, " are in no shard"));
  }
  if (digest != manifest.state_digest) {
    return absl::InvalidArgumentError(
        Cat("manifest of ", ToString(manifest.id), ": the shards' digests add up to ",
            Hex64(digest), ", the state's digest is ", Hex64(manifest.state_digest)));
  }
  return absl::OkStatus();
}

}  // namespace holdfast::storage
