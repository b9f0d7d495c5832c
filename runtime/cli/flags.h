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
    kPrinted
  };
  Kind kind = Kind::kPrinted;
  Config config;                                // kRun, kDryRun
  double link_gbits = 10, price_per_hour = 0;   // kDryRun
  std::string dir;                              // kStatus, kStop, kCheckpoint*
  std::string redis, redis_password_file, run;  // kStatus, kStop: instead of dir
  bool json = false;                            // kStatus, kCheckpointList, kDryRun
  int slot = -1;                                // kWorker
  std::string printed;                          // kPrinted: help or version
};

// Flags over the file of --config over the defaults. An error is a usage error (exit code 2), ready
// to be shown.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments);

inline constexpr char kVersion[] = "0.1.0";

}  // namespace holdfast
