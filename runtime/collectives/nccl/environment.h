// The environment variables that NCCL is run with: what makes it fail within seconds instead of
// minutes, opens no port that nobody asked for, and keeps it non-blocking. None of them gives
// detection below a second: that is the links' work. ALGO, PROTO and NVLS are left alone, since
// sums of integers are exact under all of them.
//
// NCCL reads each variable once, at its first use: they are set before its first call. setenv is
// not safe beside a getenv of another thread, so this is done while the program starts. Source of
// the meanings: NCCL's "Environment Variables" page.
#pragma once

#include <string>
#include <vector>

namespace holdfast {

struct NcclSetting {
  std::string name;
  std::string value;  // "": not set at all
  // True where another value of the user breaks what this program relies on: replaced, and said.
  // False: a default, and what the user has set stays.
  bool enforced = false;
  const char* why = "";
};

// The whole table. `loopback`: all workers are on this host; `interface`: else the network
// interface for NCCL's sockets, "" for NCCL's own choice.
std::vector<NcclSetting> NcclSettings(bool loopback, const std::string& interface);

// Applies the table to this process. Returns one sentence for each variable of the user that was
// replaced.
std::vector<std::string> PinNcclEnvironment(const std::vector<NcclSetting>& settings);

}  // namespace holdfast
