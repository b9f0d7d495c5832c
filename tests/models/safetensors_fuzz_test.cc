// Seeded random mutations of safetensors headers. Whatever the parser takes must be sound: tensors
// that tile the file, with sizes that fit; and written anew it must read as the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "runtime/base/clock.h"
#include "runtime/models/safetensors_header.h"

namespace holdfast {
namespace {

constexpr int64_t kDataBytes = 84;

SafetensorsHeader Example() {
  return {.tensors = {{.name = "wte.weight", .dtype = "F32", .shape = {4, 2}},
                      {.name = "h.0.ln_1.weight", .dtype = "F16", .shape = {16}},
                      {.name = "h.0.attn.bias", .dtype = "BOOL", .shape = {1, 1, 2, 2}},
                      {.name = "n\xC3\xA9\"\\", .dtype = "I64", .shape = {2}}},
          .metadata = {{"format", "pt"}}};
}

std::string Mutated(std::string bytes, std::mt19937_64* random) {
  static constexpr std::string_view kPieces[] = {"{",
                                                 "}",
                                                 "[",
                                                 "]",
                                                 ",",
                                                 ":",
                                                 "\"",
                                                 "\\",
                                                 "\\u",
                                                 "0",
                                                 "18446744073709551616",
                                                 "-1",
                                                 "F32",
                                                 "null",
                                                 "1e9",
                                                 "\"shape\":[",
                                                 "\"__metadata__\":{"};
  const int edits = 1 + static_cast<int>((*random)() % 4);
  for (int edit = 0; edit < edits && !bytes.empty(); ++edit) {
    const size_t at = (*random)() % bytes.size();
    switch ((*random)() % 6) {
      case 0:
        bytes[at] = static_cast<char>((*random)());
        break;
      case 1:
        bytes[at] = "0123456789"[(*random)() % 10];
        break;
      case 2:
        bytes.insert(at, kPieces[(*random)() % std::size(kPieces)]);
        break;
      case 3:
        bytes.erase(at, 1 + (*random)() % 12);
        break;
      case 4:
        bytes.resize(at);
        break;
      default:
        bytes.insert(at, bytes.substr(at, 1 + (*random)() % 64));
        break;
    }
    if (bytes.size() > (1 << 14)) bytes.resize(1 << 14);
  }
  return bytes;
}

void CheckSound(const SafetensorsHeader& header) {
  int64_t reached = 0;
  for (const FileTensor& t : header.tensors) {
    EXPECT_EQ(t.begin, reached);
    int64_t bytes = DtypeBytes(t.dtype);
    for (const int64_t d : t.shape) {
      ASSERT_GE(d, 0);
      bytes *= d;
    }
    EXPECT_EQ(t.end - t.begin, bytes);
    reached = t.end;
  }
  EXPECT_EQ(reached, kDataBytes);
  SafetensorsHeader copy = header;
  const auto text = MakeSafetensorsHeader(&copy);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size() % 8, 0u);
  const auto again = ParseSafetensorsHeader(std::string_view(*text).substr(8), kDataBytes);
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << *text;
  EXPECT_EQ(again->metadata, header.metadata);
  ASSERT_EQ(again->tensors.size(), header.tensors.size());
  for (size_t i = 0; i < header.tensors.size(); ++i)
    EXPECT_EQ(again->tensors[i].shape.size(), copy.tensors[i].shape.size());
}

TEST(SafetensorsFuzz, Headers) {
  SafetensorsHeader example = Example();
  const auto text = MakeSafetensorsHeader(&example);
  ASSERT_TRUE(text.ok());
  const std::string json = text->substr(8);
  ASSERT_TRUE(ParseSafetensorsHeader(json, kDataBytes).ok());
  std::mt19937_64 random(21);
  const Deadline deadline = Deadline::After(5'000);
  int taken = 0;
  for (int i = 0; i < 100'000 && !deadline.passed(); ++i) {
    const auto header = ParseSafetensorsHeader(Mutated(json, &random), kDataBytes);
    if (!header.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(header.status())) << header.status();
      continue;
    }
    ++taken;
    CheckSound(*header);
  }
  EXPECT_GT(taken, 0) << "a mutation of a name must be taken: else nothing behind it was reached";
}

}  // namespace
}  // namespace holdfast
