// The command line. CLI11 and its exceptions stay in flags.cc. Called before anything is touched.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/config/config.h"

namespace holdfast {

struct CommandLine {
  enum class Kind {
    kRun,
    kDryRun,
    kWorker,
    kStatus,
    kStop,
    kCheckpointList,
    kCheckpointVerify,
    kCheckpointExport,
    kSample,
    kPrinted
  };
  Kind kind = Kind::kPrinted;
  Config config;                                // kRun, kDryRun
  double link_gbits = 10, price_per_hour = 0;   // kDryRun
  std::string dir;                              // kStatus, kStop, kCheckpoint*
  std::string redis, redis_password_file, run;  // kStatus, kStop: instead of dir
  bool json = false;                            // kStatus, kCheckpointList, kDryRun
  bool watch = false;                           // kStatus
  int slot = -1;                                // kWorker
  int64_t step = -1;                            // kCheckpointExport, kSample; -1: the newest
  bool best = false;                            // kCheckpointExport, kSample
  std::string format, out;                      // kCheckpointExport
  std::string prompt, vocab;                    // kSample
  int64_t tokens = 200, top_k = 0;              // kSample
  double temperature = 1;                       // kSample
  uint64_t seed = 1;                            // kSample
  std::string printed;                          // kPrinted: help or version
};

// Flags over the file of --config over the defaults. An error is a usage error (exit code 2), ready
// to be shown. default_model: the value of the key `model` where neither flags nor file name one.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const std::string& default_model = "gpt");

inline constexpr char kVersion[] = "0.1.0";

}  // namespace holdfast
