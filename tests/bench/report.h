// What every benchmark prints: rows of (name, value, unit), with the goal where there is one, as an
// aligned table or, with --json, as one JSON object a benchmark: {"bench": NAME, "rows": [{"name",
// "value", "unit", "goal", "met"}]}. Figures only: a benchmark fails when it cannot measure, never
// because a goal is missed.
//
// Threads: one owner.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace holdfast {

// The upper one of the two middle values where the count is even. 0 for none.
double Median(std::vector<double> values);
// The value below which `share` (0..1) of the values lie.
double Quantile(std::vector<double> values, double share);

class BenchReport {
 public:
  BenchReport(std::string bench, int argc, char** argv);  // looks for --json
  bool json() const { return json_; }
  // The value after `flag` on the command line, else `otherwise`.
  double Number(std::string_view flag, double otherwise) const;

  // Goals: "<= 3" or ">= 60"; empty for none. `note` stands behind the row for people.
  void Add(std::string_view name, double value, std::string_view unit, std::string_view goal = "",
           std::string_view note = "");
  // A line for people, at once, above the table (standard error with --json).
  void Say(std::string_view text) const;
  // Prints everything. Returns 0, for `return report.Print();`.
  int Print() const;

 private:
  struct Row {
    std::string name, unit, goal, note;
    double value;
  };
  std::string bench_;
  std::vector<std::string> arguments_;
  bool json_ = false;
  std::vector<Row> rows_;
};

}  // namespace holdfast
