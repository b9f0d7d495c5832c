#include "runtime/supervisor/settle_bits.h"

#include "runtime/supervisor/settle_device.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "runtime/models/safetensors_header.h"
#include "runtime/supervisor/exit_status.h"
#include "tests/models/temp_dir.h"

namespace holdfast {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing_models::TempDir;

std::string SmallFile(char value) {
  SafetensorsHeader header{.tensors = {{.name = "a", .dtype = "U8", .shape = {1}}}, .metadata = {}};
  return *MakeSafetensorsHeader(&header) + value;
}

TEST(SettleBits, AutoIsDecidedOnceAndStays) {
  Config wanted;
  wanted.precision = "auto";
  wanted.device = "cpu";
  std::vector<std::string> notes;
  ASSERT_TRUE(SettleBits(nullptr, &wanted, &notes).ok());
  EXPECT_THAT(wanted.precision, AnyOf("fp32", "bf16"));
  EXPECT_TRUE(wanted.precision == "fp32" || kernels::Bf16Available());
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr(wanted.precision));
  // An existing run is not timed again: also the one that would not be chosen here stays.
  for (const char* decided : {"fp32", "bf16"}) {
    Config recorded, resumed;
    recorded.precision = decided;
    resumed.precision = "auto";
    notes.clear();
    ASSERT_TRUE(SettleBits(&recorded, &resumed, &notes).ok());
    EXPECT_EQ(resumed.precision, decided);
    EXPECT_TRUE(notes.empty()) << "said once";
  }
}

TEST(SettleBits, AJoinerTakesThePrecisionOfTheRun) {
  EXPECT_EQ(PrecisionInRecord(R"({"settings":"seed = 1\nprecision = \"bf16\"\nheads = 4\n"})"),
            "bf16");
  EXPECT_EQ(PrecisionInRecord(R"({"settings":"precision = \"fp32\"\n"})"), "fp32");
  EXPECT_EQ(PrecisionInRecord(R"({"exists":false})"), "");
  EXPECT_EQ(PrecisionInRecord("{"), "");
}

TEST(SettleBits, TheDigestOfTheFirstWeightsIsTheRuns) {
  const TempDir dir;
  const std::string one = dir.Write("one", SmallFile('1')),
                    same = dir.Write("same", SmallFile('1')),
                    other = dir.Write("other", SmallFile('2'));
  const auto settle = [](const Config* recorded, const std::string& path) {
    Config wanted;
    wanted.init_from = path;
    std::vector<std::string> notes;
    EXPECT_TRUE(SettleBits(recorded, &wanted, &notes).ok());
    return wanted;
  };
  const Config first = settle(nullptr, one);
  EXPECT_EQ(first.init_digest.size(), 32u);
  EXPECT_EQ(settle(nullptr, same).init_digest, first.init_digest);
  EXPECT_NE(settle(nullptr, other).init_digest, first.init_digest);
  EXPECT_EQ(settle(nullptr, "").init_digest, "");
  // Resumed: without the flag, without the file, with a copy; and with other weights.
  EXPECT_EQ(settle(&first, "").BitsText(), first.BitsText());
  EXPECT_EQ(settle(&first, "").init_from, one);
  EXPECT_EQ(settle(&first, same).BitsText(), first.BitsText());
  EXPECT_NE(settle(&first, other).BitsText(), first.BitsText());
  Config gone = first;
  gone.init_from = dir.Path("gone");
  EXPECT_EQ(settle(&gone, gone.init_from).BitsText(), first.BitsText());
}

TEST(SettleBits, AFileThatCannotBeReadIsSaid) {
  const TempDir dir;
  Config wanted;
  wanted.init_from = dir.Write("bad", "no safetensors");
  std::vector<std::string> notes;
  const absl::Status status = SettleBits(nullptr, &wanted, &notes);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kData) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--init-from"));
}

// Without a GPU (here: without CUDA, or without a driver): said once, when the run begins.
TEST(SettleDevice, AutoIsTheCpuWhereThereIsNoGpuAndSaysSo) {
  Config wanted;
  std::vector<std::string> notes;
  ASSERT_TRUE(SettleDevice(nullptr, &wanted, &notes).ok());
  EXPECT_EQ(wanted.device, "cpu");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("device auto: the CPU ("));

  Config recorded, resumed;  // of a version that knew no devices
  notes.clear();
  ASSERT_TRUE(SettleDevice(&recorded, &resumed, &notes).ok());
  EXPECT_EQ(resumed.device, "cpu");
  EXPECT_TRUE(notes.empty());

  Config cuda;
  cuda.device = "cuda";
  EXPECT_EQ(ExitCodeOf(SettleDevice(nullptr, &cuda, &notes)), ExitCode::kUsage);

  recorded.device = "cuda";
  Config of_gpus;
  EXPECT_EQ(ExitCodeOf(SettleDevice(&recorded, &of_gpus, &notes)), ExitCode::kRefused);
}

}  // namespace
}  // namespace holdfast
