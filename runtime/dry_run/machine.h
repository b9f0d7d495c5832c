// What this machine has: cores, memory, disk. Reads /proc and the control group; any thread.
#pragma once

#include <string>

#include "runtime/dry_run/facts.h"

namespace holdfast {

// `dir` need not exist: the file system of its nearest parent that does counts.
MachineFacts LookAtMachine(const std::string& dir);
// Memory of this process in bytes, anonymous and shared; mapped files are not counted. 0 when
// unknown.
int64_t AnonymousBytes();
// The nearest existing folder of `path`, itself included.
std::string NearestFolder(const std::string& path);

}  // namespace holdfast
