// Values that move the result and that `holdfast run` finds out by itself: once, when a run begins.
// From then on they stay with the run (config.toml), whatever the next command or machine would
// find.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/config/config.h"

namespace holdfast {

// recorded: the configuration of the run that --dir holds already; null: a new one begins.
//   init_digest  of the file that --init-from names. An existing run needs neither flag nor file.
//   precision    auto becomes that of the run, of a new one the faster one on this machine.
// notes: what was decided, for people. Errors carry an exit code: kData for a file that cannot be
// read.
[[nodiscard]] absl::Status SettleBits(const Config* recorded, Config* wanted,
                                      std::vector<std::string>* notes);

// The precision that a run which other machines have begun already is at; "" when the record of the
// run (rendezvous::Observer::StatusJson) does not tell.
std::string PrecisionInRecord(std::string_view status_json);

}  // namespace holdfast
