// Token streams and the files they come from: what is accepted, what is refused and how it is said.

#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/models/data/token_stream.h"
#include "tests/models/temp_dir.h"

namespace holdfast {
namespace {

using ::testing::HasSubstr;
using testing_models::LlmcHeader;
using testing_models::SampleText;
using testing_models::TempDir;
using testing_models::Uint16Bytes;

absl::StatusOr<TokenStream> Open(const std::vector<std::string>& entries, int64_t vocab = 0) {
  return TokenStream::Open(entries, "data", vocab);
}

std::vector<int32_t> All(const TokenStream& stream) {
  std::vector<int32_t> out(static_cast<size_t>(stream.size()));
  stream.Copy(0, stream.size(), out.data());
  return out;
}

void ExpectRefused(const absl::StatusOr<TokenStream>& got, absl::StatusCode code,
                   const std::vector<std::string>& parts) {
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code(), code) << got.status();
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(got.status().message()), HasSubstr(part));
  }
}

TEST(TokenStream, TextBytesAreTokens) {
  const TempDir dir;
  const auto stream = Open({dir.Write("a.txt", "ab\xff\n")});
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(All(*stream), (std::vector<int32_t>{'a', 'b', 255, '\n'}));
  EXPECT_EQ(stream->format(), TokenFormat::kText);
}

TEST(TokenStream, FolderInSortedOrderWithoutHiddenAndEmptyFiles) {
  const TempDir dir;
  dir.Write("f/b.txt", "2");
  dir.Write("f/a/z.txt", "1");
  dir.Write("f/c", "3");
  dir.Write("f/.hidden", "x");
  dir.Write("f/.git/x.txt", "y");
  dir.Write("f/empty.txt", "");
  const auto stream = Open({dir.Path("f")});
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(All(*stream), (std::vector<int32_t>{'1', '2', '3'}));
  EXPECT_EQ(stream->files(), 3);
}

TEST(TokenStream, GlobInSortedOrderAcrossFiles) {
  const TempDir dir;
  dir.Write("t_2.bin", Uint16Bytes({3, 4, 5}));
  dir.Write("t_1.bin", LlmcHeader(20240520, 1, 2) + Uint16Bytes({1, 2}));
  dir.Write("other.txt", "no");
  const auto stream = Open({dir.Path("t_*.bin")}, 6);
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(All(*stream), (std::vector<int32_t>{1, 2, 3, 4, 5}));
  std::vector<int32_t> part(3);
  stream->Copy(1, 3, part.data());
  EXPECT_EQ(part, (std::vector<int32_t>{2, 3, 4}));
  stream->Copy(4, 1, part.data());
  EXPECT_EQ(part[0], 5);
}

TEST(TokenStream, ANameThatLooksLikeAGlobIsTakenAsItIs) {
  const TempDir dir;
  const auto stream = Open({dir.Write("a[1].txt", "q")});
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(stream->size(), 1);
}

TEST(TokenStream, HeaderlessTokensNeedNoMagic) {
  const TempDir dir;
  const auto stream = Open({dir.Write("train.bin", Uint16Bytes({50256, 0, 7}))}, 50257);
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(All(*stream), (std::vector<int32_t>{50256, 0, 7}));
}

TEST(TokenStream, RefusesWhatIsNotThereOrNotUsable) {
  const TempDir dir;
  std::filesystem::create_directories(dir.Path("nothing"));
  dir.Write("bins/a.bin", Uint16Bytes({1}));
  dir.Write("onlyempty/a.txt", "");
  const std::string text = dir.Write("a.txt", "text");
  const std::string bin = dir.Write("a.bin", Uint16Bytes({1}));
  ASSERT_EQ(symlink(text.c_str(), dir.Path("again.txt").c_str()), 0);
  ASSERT_EQ(mkfifo(dir.Path("pipe").c_str(), 0600), 0);
  const auto invalid = absl::StatusCode::kInvalidArgument, missing = absl::StatusCode::kNotFound;
  ExpectRefused(Open({}), invalid, {"no data given"});
  ExpectRefused(Open({""}), invalid, {"empty file name"});
  ExpectRefused(Open({dir.Path("gone.txt")}), missing, {"data: ", "gone.txt", "No such file"});
  ExpectRefused(Open({dir.Path("g*.txt")}), missing, {"no file matches", "g*.txt"});
  ExpectRefused(Open({dir.Path("nothing")}), invalid, {"nothing holds no text files"});
  ExpectRefused(Open({dir.Path("onlyempty")}), invalid, {"holds no text files"});
  ExpectRefused(Open({dir.Path("bins")}), invalid, {"holds token files", "/*.bin"});
  ExpectRefused(Open({dir.Write("e.txt", "")}), invalid, {"e.txt", "the file is empty"});
  ExpectRefused(Open({text, bin}, 256), invalid, {"cannot be mixed", "a.txt", "a.bin"});
  ExpectRefused(Open({text, text}), invalid, {"given twice"});
  ExpectRefused(Open({text, dir.Path("again.txt")}), invalid, {"given twice"});
  ExpectRefused(Open({dir.Path("pipe")}), absl::StatusCode::kFailedPrecondition,
                {"not a regular file"});
  ExpectRefused(Open({dir.Write("z.txt", std::string("abc\0d", 5))}), invalid,
                {"zero byte at offset 3", ".bin"});
  ExpectRefused(Open({dir.Write("t.txt", "abcz")}, 120), invalid,
                {"t.txt", "token 122 at token 3", "vocab_size 120"});
}

TEST(TokenStream, RefusesUnreadableFiles) {
  const TempDir dir;
  const std::string path = dir.Write("secret.txt", "text");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  // Root reads everything: be nobody for a moment.
  const bool root = geteuid() == 0;
  if (root) {
    ASSERT_EQ(seteuid(65534), 0);
  }
  const auto stream = Open({path});
  if (root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  ExpectRefused(stream, absl::StatusCode::kFailedPrecondition, {"secret.txt", "Permission denied"});
}

TEST(TokenStream, RefusesDamagedTokenFiles) {
  const TempDir dir;
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const std::string two = Uint16Bytes({1, 2});
  const std::string good = dir.Write("good.bin", two);
  ExpectRefused(Open({good}), invalid, {"give vocab_size", "good.bin"});
  ExpectRefused(Open({dir.Write("odd.bin", "abc")}, 65536), invalid,
                {"odd.bin", "3 bytes are no whole number"});
  ExpectRefused(Open({dir.Write("none.bin", "")}, 9), invalid, {"none.bin", "empty"});
  ExpectRefused(Open({dir.Write("bare.bin", LlmcHeader(20240520, 1, 0))}, 9), invalid,
                {"bare.bin", "no tokens"});
  ExpectRefused(Open({dir.Write("v.bin", LlmcHeader(20240520, 2, 2) + two)}, 9), invalid,
                {"version 2"});
  ExpectRefused(Open({dir.Write("cut.bin", LlmcHeader(20240520, 1, 3) + two)}, 9), invalid,
                {"cut.bin", "announces 3 tokens (6 bytes), but 4"});
  ExpectRefused(Open({dir.Write("neg.bin", LlmcHeader(20240520, 1, -3) + two)}, 9), invalid,
                {"announces -3"});
  ExpectRefused(Open({dir.Write("head.bin", LlmcHeader(20240520, 1, 3).substr(0, 100))}, 9),
                invalid, {"cut short"});
  ExpectRefused(Open({dir.Write("u32.bin", LlmcHeader(20240801, 7, 1) + two)}, 65536), invalid,
                {"32-bit tokens"});
  ExpectRefused(Open({dir.Write("big.bin", Uint16Bytes({1, 2, 300, 4}))}, 256), invalid,
                {"big.bin", "token 300 at token 2 (byte offset 4)", "vocab_size 256"});
  ExpectRefused(Open({dir.Write("bigh.bin", LlmcHeader(20240520, 1, 2) + Uint16Bytes({1, 9}))}, 9),
                invalid, {"token 9 at token 1 (byte offset 1026)"});
  std::vector<uint16_t> many(100'000, 7);
  many[77'777] = 50257;
  ExpectRefused(Open({dir.Write("many.bin", Uint16Bytes(many))}, 50257), invalid,
                {"token 50257 at token 77777"});
}

TEST(TokenStream, DigestFollowsContentsAndOrderNotNames) {
  const TempDir dir;
  const std::string text = SampleText(5000);
  std::string changed = text;
  changed[4321] ^= 1;
  const auto digest = [](const std::vector<std::string>& entries) {
    return Open(entries)->digest();
  };
  const Hash128 base = digest({dir.Write("a.txt", text)});
  EXPECT_EQ(base, digest({dir.Write("b.txt", text)}));
  EXPECT_NE(base, digest({dir.Write("c.txt", changed)}));
  EXPECT_NE(base, digest({dir.Write("d.txt", text + "x")}));
  // The same bytes cut elsewhere, and in another order.
  const std::string head = dir.Write("1.txt", text.substr(0, 100)),
                    tail = dir.Write("2.txt", text.substr(100));
  EXPECT_NE(base, digest({head, tail}));
  EXPECT_NE(digest({head, tail}), digest({tail, head}));
}

}  // namespace
}  // namespace holdfast
