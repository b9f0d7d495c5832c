// Where log lines go instead of standard error, e.g. while a live view owns the terminal.
#pragma once

#include <functional>
#include <string_view>

namespace holdfast {

// Takes whole lines, without the newline; false: not taken, the line is written as usual. Called
// under the log's lock from any thread, so it must not log. An empty function removes it.
// Thread-safe.
void SetLogSink(std::function<bool(std::string_view line)> sink);

}  // namespace holdfast
