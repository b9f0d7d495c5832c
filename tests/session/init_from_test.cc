#include "runtime/session/init_from.h"

#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/bytes.h"
#include "runtime/base/text.h"
#include "runtime/models/safetensors.h"
#include "tests/models/temp_dir.h"

namespace holdfast {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_models::TempDir;

struct Entry {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

template <typename T>
std::string Bytes(std::vector<T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string FileBytes(const std::vector<Entry>& entries) {
  SafetensorsHeader header;
  std::string data;
  for (const Entry& e : entries) {
    header.tensors.push_back({.name = e.name, .dtype = e.dtype, .shape = e.shape});
    data += e.bytes;
  }
  const auto head = MakeSafetensorsHeader(&header);
  EXPECT_TRUE(head.ok()) << head.status();
  return *head + data;
}

ModelSpec Spec() {
  ModelSpec spec;
  spec.tensors = {{.name = "wte.weight", .shape = {2, 2}},
                  {.name = "h.0.attn.c_attn.bias", .shape = {2}},
                  {.name = "scale", .shape = {1}, .role = Role::kFrozen}};
  return spec;
}

std::vector<Entry> Good() {
  return {{"wte.weight", "F32", {2, 2}, Bytes<float>({1, 2, 3, 4})},
          {"h.0.attn.c_attn.bias", "F16", {2}, Bytes<uint16_t>({0x3C00, 0xC000})},
          {"scale", "BF16", {1}, Bytes<uint16_t>({0x4040})}};
}

class InitFromTest : public testing::Test {
 protected:
  InitFromTest() {
    auto state = State::Allocate(*MakePlan(Spec(), [](const std::string&) { return 2; }));
    EXPECT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    EXPECT_TRUE(state_->Initialise(1, 0).ok());
  }
  std::string Write(const std::vector<Entry>& entries) {
    return dir_.Write("w.safetensors", FileBytes(entries));
  }
  absl::Status Load(const std::string& path) {
    const auto file = SafetensorsFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    return InitializeFrom(path, *(*file)->Digest(), state_.get());
  }
  std::string Complaint(const std::vector<Entry>& entries) {
    const absl::Status status = CheckInitFile(Write(entries), Spec());
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
  void ExpectLoaded() {
    const float* table = state_->values();
    for (int i = 0; i < 4; ++i) EXPECT_EQ(table[i], static_cast<float>(i + 1));
    const float* bias = state_->values() + state_->plan().trained[1].offset;
    EXPECT_EQ(bias[0], 1.0f);
    EXPECT_EQ(bias[1], -2.0f);
    EXPECT_EQ(state_->others()[0], 3.0f);
    EXPECT_TRUE(state_->valid && !state_->marked);
    const uint64_t digest = state_->Digest();
    EXPECT_TRUE(state_->Redigest().ok());
    EXPECT_EQ(state_->Digest(), digest) << "digested anew after loading";
    EXPECT_EQ(*state_->ParametersDigest(), state_->recorded_parameters());
  }

  TempDir dir_;
  std::unique_ptr<State> state_;
};

TEST_F(InitFromTest, LoadsAllTypesByName) {
  const uint64_t before = state_->Digest();
  ASSERT_TRUE(Load(Write(Good())).ok());
  ExpectLoaded();
  EXPECT_NE(state_->Digest(), before);
}

TEST_F(InitFromTest, WithPrefixMasksAndATiedHead) {
  std::vector<Entry> entries = Good();
  for (Entry& e : entries) e.name = "transformer." + e.name;
  entries.push_back({"lm_head.weight", "F32", {2, 2}, entries[0].bytes});
  entries.push_back({"transformer.h.0.attn.bias", "BOOL", {1, 1, 2, 2}, std::string(4, '\1')});
  entries.push_back({"transformer.h.0.attn.masked_bias", "F32", {}, std::string(4, '\1')});
  const absl::Status loaded = Load(Write(entries));
  ASSERT_TRUE(loaded.ok()) << loaded;
  ExpectLoaded();
}

TEST_F(InitFromTest, EveryDifferenceIsNamed) {
  std::vector<Entry> entries = Good();
  entries[0].shape = {4};
  entries[1].name = "h.1.attn.c_attn.bias";
  entries[2].dtype = "I16";
  EXPECT_THAT(Complaint(entries), AllOf(HasSubstr("wte.weight is [4] in the file and [2, 2] here"),
                                        HasSubstr("h.0.attn.c_attn.bias [2] is missing"),
                                        HasSubstr("h.1.attn.c_attn.bias [2] is not in this model"),
                                        HasSubstr("scale is of type I16")));
}

TEST_F(InitFromTest, AHeadThatWasTrainedApartIsRefused) {
  std::vector<Entry> entries = Good();
  entries.push_back({"lm_head.weight", "F32", {2, 2}, Bytes<float>({1, 2, 3, 5})});
  EXPECT_THAT(Complaint(entries), HasSubstr("lm_head.weight differs from wte.weight"));
}

TEST_F(InitFromTest, ATensorUnderBothNamesIsRefused) {
  std::vector<Entry> entries = Good();
  entries.push_back(entries[2]);
  entries.back().name = "transformer.scale";
  EXPECT_THAT(Complaint(entries), HasSubstr("transformer.scale"));
}

TEST_F(InitFromTest, AChangedFileIsRefused) {
  const std::string path = Write(Good());
  const absl::Status status = InitializeFrom(path, std::string(32, '0'), state_.get());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::IsNotFound(CheckInitFile(dir_.Path("none"), Spec())));
}

}  // namespace
}  // namespace holdfast
