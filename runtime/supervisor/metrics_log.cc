#include "runtime/supervisor/metrics_log.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/base/status.h"

namespace holdfast {

absl::StatusOr<std::unique_ptr<MetricsLog>> MetricsLog::Open(
    const std::string& dir, bool tensorboard,
    const std::function<void(int64_t step, double eval_loss)>& take) {
  std::unique_ptr<MetricsLog> log(new MetricsLog(dir, tensorboard));
  const std::string path = Cat(dir, "/metrics.csv");
  HF_ASSIGN_OR_RETURN(log->csv_, LineFile::Open(path));
  bool header = false;
  ForEachLine(path, [&](std::string_view line) {
    header = true;
    log->last_step_ = std::max(log->last_step_, metrics::CsvStep(line));
    const double eval_loss = metrics::CsvField(line, "eval_loss");
    if (take && !std::isnan(eval_loss)) take(metrics::CsvStep(line), eval_loss);
  });
  if (!header) (void)log->csv_->Append(metrics::CsvHeader());
  return log;
}

absl::Status MetricsLog::CutAfter(int64_t step) {
  if (last_step_ <= step) return absl::OkStatus();
  const std::string path = Cat(dir_, "/metrics.csv");
  std::string kept;
  std::vector<std::string> left;
  int64_t last = -1;
  ForEachLine(path, [&](std::string_view line) {
    const int64_t at = metrics::CsvStep(line);
    if (at > step) {
      left.emplace_back(line);
    } else {
      kept += Cat(line, "\n");
      last = std::max(last, at);
    }
  });
  HF_ASSIGN_OR_RETURN(const auto side, LineFile::Open(Cat(dir_, "/metrics.left.csv")));
  for (const std::string& line : left) {
    if (!side->Append(line)) return absl::ResourceExhaustedError("the disk is full");
  }
  HF_RETURN_IF_ERROR(WriteFileAtomically(path, kept));
  HF_ASSIGN_OR_RETURN(csv_, LineFile::Open(path));
  events_.reset();
  last_step_ = last;
  return absl::OkStatus();
}

void MetricsLog::Append(const metrics::Row& row) {
  if (row.step <= last_step_) return;
  (void)csv_->Append(metrics::CsvLine(row));
  // Also when the line was lost: the event file must not hold a step twice.
  if (tensorboard_) AppendEvents(row);
  last_step_ = row.step;
}

void MetricsLog::AppendEvents(const metrics::Row& row) {
  if (events_ == nullptr) {
    // What an earlier life wrote of steps from here on (a line of the table was lost, its event was
    // not) is void for TensorBoard.
    auto file =
        metrics::EventFile::Create(Cat(dir_, "/tensorboard"), last_step_ < 0 ? 0 : last_step_ + 1);
    if (!file.ok()) {
      tensorboard_ = false;
      warning_ = Cat("no event files for TensorBoard: ", StdView(file.status().message()));
      return;
    }
    events_ = std::move(*file);
  }
  (void)events_->Append(row.step, row.wall_s,
                        {{"loss/train", row.loss},
                         {"loss/held_out", row.eval_loss},
                         {"training/gradient_norm", row.gradient_norm},
                         {"training/learning_rate", row.learning_rate},
                         {"speed/tokens_per_s", row.tokens_per_s},
                         {"speed/flops_per_s", row.flops_per_s},
                         {"workers/world_size", static_cast<double>(row.world_size)},
                         {"workers/generation", static_cast<double>(row.generation)}});
}

int64_t MetricsLog::lost_rows() const {
  return csv_->lost() + (events_ == nullptr ? 0 : events_->lost());
}

std::string MetricsLog::TakeWarning() { return std::exchange(warning_, ""); }

}  // namespace holdfast
