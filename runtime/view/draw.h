// The view of a run: (snapshot, size, capabilities) -> lines. Pure: any thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/view/snapshot.h"
#include "runtime/view/styled.h"

namespace holdfast::view {

// At most caps.height lines of at most caps.width columns, without newlines. What matters most
// stays longest as the window shrinks: progress, then the losses, then speed and the age of the
// last good checkpoint, then events, workers, and the curve.
std::vector<std::string> Draw(const Snapshot& snapshot, const Capabilities& caps);

// One line without any escape sequence, for a pipe or a log.
std::string PlainLine(const Snapshot& snapshot);

}  // namespace holdfast::view
