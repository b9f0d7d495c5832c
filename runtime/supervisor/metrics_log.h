// DIR/metrics.csv and the TensorBoard event files in DIR/tensorboard: each logged step once,
// whoever lives to see it. Steps that are computed again after a restore have the same bits and are
// not written again; the curve of a run that was killed ten times is that of one that was not.
// Neither file ever holds up or ends the run: what cannot be written is lost, and counted. One
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/metrics/row.h"
#include "runtime/metrics/tfevents.h"
#include "runtime/supervisor/line_file.h"

namespace holdfast {

class MetricsLog {
 public:
  // Opens DIR/metrics.csv (a torn end is cut) and finds the last step in it; `take`, where given,
  // hears the evaluations in it. The event file of this life is made by the first Append.
  static absl::StatusOr<std::unique_ptr<MetricsLog>> Open(
      const std::string& dir, bool tensorboard,
      const std::function<void(int64_t step, double eval_loss)>& take = {});

  // Nothing when the row's step is on record.
  void Append(const metrics::Row& row);

  // The run goes on from `step`, in another branch: rows of later steps move to metrics.left.csv,
  // and the next event file tells TensorBoard to drop them. An error leaves the table as it was.
  [[nodiscard]] absl::Status CutAfter(int64_t step);

  int64_t last_step() const { return last_step_; }
  int64_t lost_rows() const;
  // Why there is no event file, once; "" when there is one or none is wanted.
  std::string TakeWarning();

 private:
  MetricsLog(std::string dir, bool tensorboard) : dir_(std::move(dir)), tensorboard_(tensorboard) {}
  void AppendEvents(const metrics::Row& row);

  const std::string dir_;
  bool tensorboard_;
  std::unique_ptr<LineFile> csv_;
  std::unique_ptr<metrics::EventFile> events_;
  std::string warning_;
  int64_t last_step_ = -1;
};

}  // namespace holdfast
