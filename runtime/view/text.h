// Texts for people: short numbers and times, and text of others made safe for a terminal. Pure: any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::view {

// "41.2k", "3.8G"; "?" when it is not finite.
std::string ShortNumber(double value);
// "43.7 GFLOP/s", "912 FLOP/s"
std::string WithUnit(double value, std::string_view unit);
// "2d 3h", "2m 10s"; "?" below zero.
std::string ShortTime(int64_t seconds);
// "1,234,567"
std::string Grouped(int64_t value);
// "2.3141"; "?" when it is not finite.
std::string Fixed(double value, int digits);
// "1 worker", "4 workers"
std::string Counted(int64_t count, std::string_view noun);

// Text as it may be printed on a terminal: control characters (the escape among them), characters
// that turn the direction of writing, and broken UTF-8 become '?'. Without `utf8` everything beyond
// ASCII does. Such text comes from file names, log lines of workers, other machines.
std::string Clean(std::string_view text, bool utf8);
// Columns that clean text takes on a terminal: 2 for the wide characters of East Asia.
int Columns(std::string_view clean);
// The longest beginning of clean text that takes at most `columns`.
std::string Cut(std::string_view clean, int columns);

}  // namespace holdfast::view
