#include "tests/bench/report.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "nlohmann/json.hpp"

namespace holdfast {
namespace {

bool Met(const std::string& goal, double value) {
  const double bound = std::strtod(goal.c_str() + 2, nullptr);
  return goal[0] == '<' ? value <= bound : value >= bound;
}

}  // namespace

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(std::lround(last * share))];
}

double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

BenchReport::BenchReport(std::string bench, int argc, char** argv) : bench_(std::move(bench)) {
  for (int i = 1; i < argc; ++i) {
    arguments_.emplace_back(argv[i]);
    json_ |= arguments_.back() == "--json";
  }
}

double BenchReport::Number(std::string_view flag, double otherwise) const {
  for (size_t i = 0; i + 1 < arguments_.size(); ++i) {
    if (arguments_[i] == flag) return std::strtod(arguments_[i + 1].c_str(), nullptr);
  }
  return otherwise;
}

void BenchReport::Add(std::string_view name, double value, std::string_view unit,
                      std::string_view goal, std::string_view note) {
  assert(goal.empty() || goal.starts_with("<= ") || goal.starts_with(">= "));
  rows_.push_back(
      {std::string(name), std::string(unit), std::string(goal), std::string(note), value});
}

void BenchReport::Say(std::string_view text) const {
  std::FILE* out = json_ ? stderr : stdout;
  std::fprintf(out, "%.*s\n", static_cast<int>(text.size()), text.data());
  std::fflush(out);
}

int BenchReport::Print() const {
  if (json_) {
    nlohmann::ordered_json all = {{"bench", bench_}, {"rows", nlohmann::ordered_json::array()}};
    for (const Row& r : rows_) {
      nlohmann::ordered_json row = {{"name", r.name}, {"value", r.value}, {"unit", r.unit}};
      if (!r.goal.empty()) row["goal"] = r.goal, row["met"] = Met(r.goal, r.value);
      if (!r.note.empty()) row["note"] = r.note;
      all["rows"].push_back(std::move(row));
    }
    std::printf("%s\n", all.dump().c_str());
    return 0;
  }
  size_t width = 0;
  for (const Row& r : rows_) width = std::max(width, r.name.size());
  for (const Row& r : rows_) {
    std::printf("  %-*s %10.*f %-9s", static_cast<int>(width), r.name.c_str(),
                std::fabs(r.value) < 10 ? 2 : 1, r.value, r.unit.c_str());
    if (!r.goal.empty())
      std::printf("  goal %-8s %s", r.goal.c_str(), Met(r.goal, r.value) ? "met   " : "missed");
    if (!r.note.empty()) std::printf("  %s", r.note.c_str());
    std::printf("\n");
  }
  return 0;
}

}  // namespace holdfast
