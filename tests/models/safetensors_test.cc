#include "runtime/models/safetensors.h"
#include "kernels/math/half.h"

#include <cmath>
#include <cstring>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/bytes.h"
#include "runtime/base/text.h"
#include "tests/models/temp_dir.h"

namespace holdfast {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_models::TempDir;

std::string FileOf(std::string_view json, const std::string& data) {
  ByteWriter out;
  out.Put<uint64_t>(json.size());
  out.PutRaw(json.data(), json.size());
  return out.Take() + data;
}

TEST(SafetensorsHeader, ReadsTheFormat) {
  const auto header = ParseSafetensorsHeader(
      R"({"b\u00e9\ud83d\ude00\n":{"data_offsets":[8,12],"dtype":"F16","shape":[2,1]} ,
          "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
          "__metadata__":{"format":"pt","k\"":"v\\"},
          "empty":{"dtype":"I64","shape":[0,7],"data_offsets":[12,12]},
          "c":{"dtype":"BOOL","shape":[4],"data_offsets":[4,8]}}   )",
      12);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 4u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].elements(), 1);
  EXPECT_EQ(header->tensors[1].name, "c");
  EXPECT_EQ(header->tensors[2].name, "b\xC3\xA9\xF0\x9F\x98\x80\n");
  EXPECT_THAT(header->tensors[2].shape, ElementsAre(2, 1));
  EXPECT_EQ(header->tensors[3].elements(), 0);
  EXPECT_EQ(header->metadata.at("k\""), "v\\");
}

TEST(SafetensorsHeader, HostileHeadersAreRefused) {
  const auto tensor = [](std::string_view inner) { return Cat("{\"a\":{", inner, "}}"); };
  const std::string bad[] = {
      "",
      "{",
      "[]",
      "null",
      "{}x",
      "{\"a\":1}",
      "{\"a\":{}}",
      "{\"a\"",
      "{\"a\":{\"dtype\":\"F32\"",
      std::string(100'000, '['),
      std::string(100'000, '{'),
      "{\"\\ud800\":{}}",
      "{\"\\q\":{}}",
      "{\"a\nb\":{}}",
      tensor(R"("dtype":"F32","shape":[1])"),
      tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1)"),
      tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,4])"),
      tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0])"),
      tensor(R"("dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4])"),
      tensor(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])"),
      tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"),
      tensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"),
      tensor(R"("dtype":"F32","shape":[01],"data_offsets":[0,4])"),
      tensor(R"("dtype":"F32","shape":[1e0],"data_offsets":[0,4])"),
      tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"),
      tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"),
      tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"),  // behind the end
      tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,3])"),   // a rest that nobody owns
      tensor(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"),   // a gap
      tensor(R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4])"),
      tensor(R"("dtype":"F64","shape":[4294967296,4294967296,0],"data_offsets":[0,4])"),
      tensor(R"("dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
      tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4],"data_offsets":[0,4])"),
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      R"({"__metadata__":{"a":{}},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      R"({"__metadata__":{"a":"1","a":"2"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"};
  for (const std::string& json : bad) {
    const auto header = ParseSafetensorsHeader(json, 4);
    EXPECT_TRUE(absl::IsInvalidArgument(header.status())) << json.substr(0, 120);
  }
  EXPECT_TRUE(
      ParseSafetensorsHeader(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 4).ok());
}

TEST(Safetensors, WhatIsWrittenReadsBack) {
  const TempDir dir;
  const std::string path = dir.Path("w.safetensors");
  SafetensorsHeader header{.tensors = {{.name = "wte.weight", .dtype = "F32", .shape = {3, 2}},
                                       {.name = "b\"\n", .dtype = "F32", .shape = {1}}},
                           .metadata = {{"format", "pt"}}};
  auto writer = SafetensorsWriter::Create(path, header);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const float values[] = {1, -0.0f, 3, NAN, 5, 6, 7};
  uint32_t words[7];
  std::memcpy(words, values, sizeof words);
  ASSERT_TRUE((*writer)->Write(1, 0, std::span(words + 6, 1)).ok());
  ASSERT_TRUE((*writer)->Write(0, 4, std::span(words + 4, 2)).ok());
  EXPECT_FALSE((*writer)->Write(0, 4, std::span(words, 3)).ok()) << "behind the tensor's end";
  EXPECT_FALSE((*writer)->Commit().ok()) << "elements are missing";
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE((*writer)->Write(0, 0, std::span(words, 4)).ok());
  ASSERT_TRUE((*writer)->Commit().ok());

  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->header().metadata.at("format"), "pt");
  const FileTensor* t = (*file)->Find("wte.weight");
  ASSERT_NE(t, nullptr);
  float back[6];
  ASSERT_TRUE((*file)->ReadFloats(*t, 0, back).ok());
  EXPECT_EQ(std::memcmp(back, values, sizeof back), 0);
  EXPECT_FALSE((*file)->ReadFloats(*t, 1, back).ok());
  EXPECT_EQ((*file)->Find("c"), nullptr);
}

TEST(Safetensors, AnInterruptedWriteLeavesTheFormerFile) {
  const TempDir dir;
  const std::string path = dir.Write("w.safetensors", "former");
  {
    auto writer = SafetensorsWriter::Create(
        path, {.tensors = {{.name = "a", .dtype = "F32", .shape = {1}}}, .metadata = {}});
    ASSERT_TRUE(writer.ok());
  }
  EXPECT_EQ(std::filesystem::file_size(path), 6u);
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir.Path("")))
    ++files;
  EXPECT_EQ(files, 1) << "nothing is left beside it";
}

TEST(Safetensors, OnlyARegularFileIsReplaced) {
  const TempDir dir;
  const SafetensorsHeader header = {.tensors = {{.name = "a", .dtype = "F32", .shape = {1}}},
                                    .metadata = {}};
  const std::string pipe = dir.Path("pipe");  // stands for any device, too
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, dir.Path("")}) {
    const absl::Status status = SafetensorsWriter::Create(path, header).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no regular file"));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(Safetensors, FilesThatAreNone) {
  const TempDir dir;
  const auto open = [&](const std::string& bytes) {
    return SafetensorsFile::Open(dir.Write("f", bytes)).status();
  };
  const std::string json = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  EXPECT_TRUE(open(FileOf(json, "1234")).ok());
  EXPECT_FALSE(open("").ok());
  EXPECT_FALSE(open("1234567").ok());
  EXPECT_FALSE(open(FileOf(json, "123")).ok()) << "cut short";
  EXPECT_FALSE(open(FileOf(json, "12345")).ok());
  EXPECT_FALSE(open(std::string(16, '\xff')).ok()) << "an impossible length";
  EXPECT_THAT(std::string(open(FileOf("{\"a\":}", "")).message()), HasSubstr("byte 5"));
  EXPECT_TRUE(absl::IsNotFound(SafetensorsFile::Open(dir.Path("none")).status()));
  EXPECT_FALSE(SafetensorsFile::Open(dir.Path("")).ok()) << "a folder";
}

TEST(Safetensors, TheDigestIsOfEveryByte) {
  const TempDir dir;
  const std::string json = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  const auto digest = [&](const std::string& name, const std::string& bytes) {
    const auto file = SafetensorsFile::Open(dir.Write(name, bytes));
    EXPECT_TRUE(file.ok()) << file.status();
    return *(*file)->Digest();
  };
  const std::string one = digest("1", FileOf(json, "1234"));
  EXPECT_EQ(one, digest("2", FileOf(json, "1234")));
  EXPECT_NE(one, digest("3", FileOf(json, "1235")));
  EXPECT_NE(one, digest("4", FileOf(json + " ", "1234")));
}

TEST(Safetensors, HalvesAreReadExactly) {
  EXPECT_EQ(kernels::FloatOfF16(0x3C00), 1.0f);
  EXPECT_EQ(kernels::FloatOfF16(0xC000), -2.0f);
  EXPECT_EQ(kernels::FloatOfF16(0x7BFF), 65504.0f);
  EXPECT_EQ(kernels::FloatOfF16(0x0400), 0x1p-14f);  // the smallest normal one
  EXPECT_EQ(kernels::FloatOfF16(0x0001), 0x1p-24f);  // the smallest one
  EXPECT_EQ(kernels::FloatOfF16(0x8001), -0x1p-24f);
  EXPECT_EQ(kernels::FloatOfF16(0x3555), 0.333251953125f);
  EXPECT_TRUE(std::isinf(kernels::FloatOfF16(0x7C00)));
  EXPECT_TRUE(std::isnan(kernels::FloatOfF16(0x7E00)));
  EXPECT_TRUE(std::signbit(kernels::FloatOfF16(0x8000)));
  const TempDir dir;
  const auto file = SafetensorsFile::Open(
      dir.Write("h", FileOf(R"({"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},)"
                            R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]},)"
                            R"("i":{"dtype":"U8","shape":[1],"data_offsets":[6,7]}})",
                            std::string("\x00\x3C\x00\xC0\x80\x3F\x01", 7))));
  ASSERT_TRUE(file.ok()) << file.status();
  float two[2], one[1];
  ASSERT_TRUE((*file)->ReadFloats(*(*file)->Find("h"), 0, two).ok());
  EXPECT_THAT(two, ElementsAre(1.0f, -2.0f));
  ASSERT_TRUE((*file)->ReadFloats(*(*file)->Find("b"), 0, one).ok());
  EXPECT_EQ(one[0], 1.0f);
  EXPECT_FALSE((*file)->ReadFloats(*(*file)->Find("i"), 0, one).ok());
}

}  // namespace
}  // namespace holdfast
