#include "tests/gpu/check_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "runtime/base/text.h"

namespace holdfast {
namespace {

std::string OneLine(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\t' || c == '\n' || c == '\r'; }, ' ');
  return line;
}

}  // namespace

std::string FigureText(double value) {
  if (!std::isfinite(value)) return "not finite";
  char text[64];
  if (std::fabs(value) < 1000) {
    const double size = std::fabs(value);
    std::snprintf(text, sizeof text, "%.*f", size < 10 ? 2 : size < 100 ? 1 : 0, value);
    return text;
  }
  std::snprintf(text, sizeof text, "%.0f", value);
  std::string digits = text;
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

CheckRows::CheckRows(const std::string& path, bool emulated)
    : file_(path.empty() ? stdout : std::fopen(path.c_str(), "a")), emulated_(emulated) {
  if (file_ != nullptr) return;
  std::perror(path.c_str());
  std::exit(2);
}

CheckRows::~CheckRows() {
  if (file_ != stdout) std::fclose(file_);
}

void CheckRows::Begin(std::string_view what) {
  std::fprintf(file_, "begin\t%s\n", OneLine(what).c_str());
  std::fflush(file_);
}

void CheckRows::Row(std::string_view what, std::string_view result, std::string_view goal,
                    std::string_view verdict) {
  std::fprintf(file_, "row\t%s\t%s\t%s\t%s\n", OneLine(what).c_str(), OneLine(result).c_str(),
               OneLine(goal).c_str(), OneLine(verdict).c_str());
  std::fflush(file_);
}

void CheckRows::Ok(std::string_view what, std::string_view result) { Row(what, result, "", "ok"); }

void CheckRows::Fail(std::string_view what, std::string_view why) {
  failed_ = true;
  Row(what, why, "", "FAILED");
}

void CheckRows::Judge(std::string_view what, const absl::Status& status, std::string_view result) {
  if (status.ok()) {
    Ok(what, result);
  } else {
    Fail(what, StdView(status.message()));
  }
}

void CheckRows::Skip(std::string_view what, std::string_view why) {
  Row(what, "", "", Cat("skipped: ", why));
}

void CheckRows::Measure(std::string_view what, double value, std::string_view unit, double goal,
                        std::string_view note) {
  std::string result = Cat(FigureText(value), " ", unit);
  if (!note.empty()) result += Cat(", ", note);
  if (emulated_) {
    Row(what, Cat(result, " (of the emulation: says nothing)"), "", "measured");
    return;
  }
  const std::string wanted = goal > 0 ? Cat(">= ", FigureText(goal), " ", unit) : "";
  Row(what, result, wanted, goal <= 0 ? "measured" : value >= goal ? "ok" : "missed");
}

void CheckRows::Part(std::string_view what, double times, double ms) {
  std::fprintf(file_, "part\t%s\t%.2f\t%.6f\n", OneLine(what).c_str(), times, ms);
  std::fflush(file_);
}

}  // namespace holdfast
