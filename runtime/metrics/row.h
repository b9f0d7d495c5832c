// One logged step in numbers, for other programs: a line of metrics.csv, an event for TensorBoard.
// Plain data; pure functions: any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::metrics {

struct Row {
  int64_t step = 0;
  double wall_s = 0;  // seconds since 1970, when the step became known here
  double loss = NAN, eval_loss = NAN, gradient_norm = NAN, learning_rate = NAN;
  double tokens_per_s = 0, flops_per_s = 0, step_s = 0;
  int64_t tokens = 0;  // of this step
  int64_t world_size = 0, generation = 0, saved_step = -1;
  bool skipped = false;  // not finite: the step was taken without an update
};

// The line of column names, and the line of a row in the same order; no newline. Numbers as JSON
// has them, independent of the locale; an empty field where there is no number.
std::string CsvHeader();
std::string CsvLine(const Row& row);
// The step of a line of metrics.csv; -1 when it is none (the header, a damaged line).
int64_t CsvStep(std::string_view line);

// The number in the column `name` of a line of metrics.csv; NaN where there is none.
double CsvField(std::string_view line, std::string_view name);

// Seconds since 1970 by the wall clock. For files that others plot; no decision reads it.
double WallSeconds();

// Whether the `index`-th row (0, 1, ...) of a run is kept: all of the first 100,000, then every
// second one of as many again, every fourth one of twice as many, and so on. So the files of a run
// of any length stay small, and a resumed run keeps the same rows as one that was never stopped.
bool KeepsRow(int64_t index);

}  // namespace holdfast::metrics
