#include "runtime/metrics/row.h"

#include <time.h>

#include <algorithm>
#include <charconv>

#include "runtime/base/text.h"

namespace holdfast::metrics {
namespace {

constexpr int64_t kDenseRows = 100'000;

std::string Number(double x) {
  if (!std::isfinite(x)) return "";
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof text, x);
  return error == std::errc() ? std::string(text, end) : "";
}

std::string Rounded(double x, int digits) {
  if (!std::isfinite(x)) return "";
  char text[400];
  const auto [end, error] =
      std::to_chars(text, text + sizeof text, x, std::chars_format::fixed, digits);
  return error == std::errc() ? std::string(text, end) : "";
}

}  // namespace

std::string CsvHeader() {
  return "step,wall_s,loss,eval_loss,gradient_norm,learning_rate,tokens,tokens_per_s,flops_per_s,"
         "step_s,world_size,generation,saved_step,skipped";
}

std::string CsvLine(const Row& r) {
  return Cat(r.step, ",", Rounded(r.wall_s, 3), ",", Number(r.loss), ",", Number(r.eval_loss), ",",
             Number(r.gradient_norm), ",", Number(r.learning_rate), ",", r.tokens, ",",
             Rounded(r.tokens_per_s, 1), ",", Rounded(r.flops_per_s, 0), ",", Rounded(r.step_s, 6),
             ",", r.world_size, ",", r.generation, ",", r.saved_step < 0 ? "" : Cat(r.saved_step),
             ",", r.skipped ? 1 : 0);
}

int64_t CsvStep(std::string_view line) {
  const size_t comma = line.find(',');
  int64_t step = -1;
  if (comma == std::string_view::npos) return -1;
  const auto [end, error] = std::from_chars(line.data(), line.data() + comma, step);
  return error == std::errc() && end == line.data() + comma && step >= 0 ? step : -1;
}

double CsvField(std::string_view line, std::string_view name) {
  static const std::string header = CsvHeader();
  std::string_view names = header;
  while (!names.empty()) {
    const std::string_view value = line.substr(0, line.find(','));
    if (names.substr(0, names.find(',')) == name) {
      double number = NAN;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      return error == std::errc() && end == value.data() + value.size() ? number : NAN;
    }
    names.remove_prefix(std::min(names.size(), names.substr(0, names.find(',')).size() + 1));
    line.remove_prefix(std::min(line.size(), value.size() + 1));
  }
  return NAN;
}

double WallSeconds() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

bool KeepsRow(int64_t index) {
  int64_t every = 1;
  for (int64_t end = kDenseRows; index >= end && end < INT64_MAX / 2; end *= 2) every *= 2;
  return index % every == 0;
}

}  // namespace holdfast::metrics
