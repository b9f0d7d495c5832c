// Event files, read back by a decoder that shares nothing with the writer: framing, checksums (a
// bitwise CRC), field numbers and wire types.
#include "runtime/metrics/tfevents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "runtime/metrics/crc32c.h"

namespace holdfast::metrics {
namespace {

namespace fs = std::filesystem;

uint32_t SlowCrc32c(const std::string& bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool odd = ((crc ^ (static_cast<uint32_t>(static_cast<uint8_t>(c)) >> bit)) & 1) != 0;
      crc = (crc >> 1) ^ (odd ? 0x82F63B78u : 0);
    }
  }
  return ~crc;
}
uint32_t SlowMasked(const std::string& bytes) {
  const uint32_t crc = SlowCrc32c(bytes);
  return (crc / 32768u + crc * 131072u) + 0xA282EAD8u;  // rotated right by 15
}

template <typename T>
T At(const std::string& bytes, size_t offset) {
  T value;
  EXPECT_LE(offset + sizeof value, bytes.size());
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::vector<std::string> Records(const std::string& bytes) {
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size();) {
    const auto length = At<uint64_t>(bytes, at);
    EXPECT_EQ(At<uint32_t>(bytes, at + 8), SlowMasked(bytes.substr(at, 8)));
    const std::string data = bytes.substr(at + 12, length);
    EXPECT_EQ(data.size(), length);
    EXPECT_EQ(At<uint32_t>(bytes, at + 12 + length), SlowMasked(data));
    records.push_back(data);
    at += 16 + length;
  }
  return records;
}

// Fields of a message by number; each as its wire type and its bytes (a varint as 8 bytes).
struct Field {
  int type;
  std::string bytes;
};
std::multimap<int, Field> Fields(const std::string& message) {
  std::multimap<int, Field> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0; at < message.size(); shift += 7) {
      const auto byte = static_cast<uint8_t>(message[at++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    ADD_FAILURE() << "a varint that does not end";
    return value;
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    const int type = static_cast<int>(key & 7);
    size_t size = type == 1 ? 8 : type == 5 ? 4 : 0;
    std::string bytes;
    if (type == 0) {
      const uint64_t value = varint();
      bytes.assign(reinterpret_cast<const char*>(&value), 8);
    } else {
      if (type == 2) size = varint();
      bytes = message.substr(at, size);
      EXPECT_EQ(bytes.size(), size);
      at += size;
    }
    fields.emplace(static_cast<int>(key >> 3), Field{type, bytes});
  }
  return fields;
}

const Field& Only(const std::multimap<int, Field>& fields, int number, int type) {
  EXPECT_EQ(fields.count(number), 1u) << number;
  EXPECT_EQ(fields.find(number)->second.type, type);
  return fields.find(number)->second;
}

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class EventFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = (fs::temp_directory_path() / "holdfast-events-XXXXXX").string();
    dir_ = mkdtemp(path.data());
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::string dir_;
};

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);            // the usual check value
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(MaskedCrc32c("abc"), SlowMasked("abc"));
}

TEST_F(EventFiles, AnIndependentDecoderReadsThemBack) {
  auto file = EventFile::Create(dir_ + "/tensorboard", 271);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->path(), ::testing::HasSubstr("/events.out.tfevents."));
  ASSERT_TRUE((*file)->Append(280, 1.5e9, {{"loss/train", 2.25}, {"loss/held_out", NAN}}));
  ASSERT_TRUE((*file)->Append(int64_t{1} << 40, 1.6e9, {{"loss/train", INFINITY}, {"x", -1.0}}));
  const auto records = Records(Slurp((*file)->path()));
  ASSERT_EQ(records.size(), 4u);
  const auto version = Fields(records[0]);
  EXPECT_EQ(Only(version, 3, 2).bytes, "brain.Event:2");
  EXPECT_GT(At<double>(Only(version, 1, 1).bytes, 0), 1.5e9);
  const auto session = Fields(records[1]);
  EXPECT_EQ(At<uint64_t>(Only(session, 2, 0).bytes, 0), 271u);
  EXPECT_EQ(At<uint64_t>(Only(Fields(Only(session, 7, 2).bytes), 1, 0).bytes, 0), 1u);  // START
  const auto event = Fields(records[2]);
  EXPECT_EQ(At<double>(Only(event, 1, 1).bytes, 0), 1.5e9);
  EXPECT_EQ(At<uint64_t>(Only(event, 2, 0).bytes, 0), 280u);
  const auto value = Fields(Only(Fields(Only(event, 5, 2).bytes), 1, 2).bytes);  // NaN is left out
  EXPECT_EQ(Only(value, 1, 2).bytes, "loss/train");
  EXPECT_EQ(At<float>(Only(value, 2, 5).bytes, 0), 2.25f);
  const auto late = Fields(records[3]);
  EXPECT_EQ(At<uint64_t>(Only(late, 2, 0).bytes, 0), uint64_t{1} << 40);
  EXPECT_EQ(Only(Fields(Only(Fields(Only(late, 5, 2).bytes), 1, 2).bytes), 1, 2).bytes, "x");
}

TEST_F(EventFiles, EveryLifeHasAFileOfItsOwnInOrder) {
  std::string last;
  for (int life = 0; life < 3; ++life) {
    auto file = EventFile::Create(dir_, life);
    ASSERT_TRUE(file.ok());
    EXPECT_LT(last, (*file)->path());
    last = (*file)->path();
  }
}

TEST_F(EventFiles, AFolderThatCannotBeMadeIsSaid) {
  std::ofstream(dir_ + "/file") << "x";
  const auto file = EventFile::Create(dir_ + "/file/tensorboard", 0);
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()), ::testing::HasSubstr(dir_ + "/file"));
}

}  // namespace
}  // namespace holdfast::metrics
