#include "runtime/supervisor/metrics_page.h"

#include <cmath>

#include "runtime/metrics/exposition.h"

namespace holdfast {
namespace {

using metrics::Exposition;

double D(int64_t value) { return static_cast<double>(value); }

void Training(const view::Snapshot& s, const RunCounters& c, Exposition* out) {
  out->Gauge("step", "Last step that is part of the run.", D(s.step));
  out->Gauge("target_step", "Last step of the run as configured.", D(s.steps));
  out->Counter("steps_total", "Steps taken since this supervisor started.", D(c.steps));
  out->Counter("skipped_steps_total", "Steps taken without an update, as they were not finite.",
               D(c.skipped));
  out->Counter("tokens_total", "Tokens trained on since this supervisor started.", D(c.tokens));
  out->Counter("floating_point_operations_total",
               "Floating-point operations of the model since this supervisor started.", c.flops);
  if (s.step_s > 0) {
    out->Gauge("step_duration_seconds", "Time of a step, as a moving average.", s.step_s);
  }
  if (s.seconds_left >= 0) {
    out->Gauge("remaining_seconds", "Estimate of the time left to the last step.",
               D(s.seconds_left));
  }
  // A value that is not there is no sample; one that is not a number is said to be none.
  if (s.step > 0) out->Gauge("train_loss", "Loss of the last step.", s.loss);
  if (s.eval_step >= 0) {
    out->Gauge("eval_loss", "Loss on held-out data.", s.eval_loss);
    out->Gauge("eval_step", "Step of holdfast_eval_loss.", D(s.eval_step));
  }
  if (!std::isnan(s.gradient_norm))
    out->Gauge("gradient_norm", "Global norm of the gradient before clipping.", s.gradient_norm);
  if (!std::isnan(s.learning_rate))
    out->Gauge("learning_rate", "Learning rate of the last step.", s.learning_rate);
}

void Membership(const view::Snapshot& s, const RunCounters& c,
                const std::map<std::string, int64_t>& states, Exposition* out) {
  out->Gauge("world_size", "Workers that take part, all machines together.", D(s.world_size));
  out->Gauge("generation", "Number of the present generation of workers.", D(s.generation));
  out->Begin("workers", "Worker slots of this machine by state.", "gauge");
  for (const auto& [state, count] : states) out->Sample({{"state", state}}, D(count));
  out->Counter("worker_deaths_total", "Workers of this machine that died.", D(c.workers_lost));
  out->Counter("recoveries_total", "Recoveries from a loss.", D(c.recoveries));
  out->Counter("recovery_seconds_total", "Time from a loss to the next step, all recoveries.",
               c.recovery_s);
  out->Begin("worker_seconds_total", "Time of this machine's workers by what they did.", "counter");
  for (size_t i = 0; i < view::kActivities.size(); ++i)
    out->Sample({{"activity", view::kActivities[i]}}, c.worker_s[i]);
}

void Checkpoints(const view::Snapshot& s, const RunCounters& c, Exposition* out) {
  if (s.saved_step >= 0) {
    out->Gauge("checkpoint_step", "Step of the newest checkpoint that counts.", D(s.saved_step));
    out->Gauge("checkpoint_age_seconds", "Time since the newest checkpoint counted.",
               D(s.saved_age_s));
  }
  out->Counter("checkpoints_total", "Checkpoints that came to count.", D(c.checkpoints));
  out->Counter("checkpoint_failures_total", "Saves that failed on a worker of this machine.",
               D(c.checkpoint_failures));
  out->Counter("checkpoint_written_bytes_total", "Bytes written by this machine's workers.",
               D(c.checkpoint_bytes));
  out->Counter("checkpoint_stall_seconds_total",
               "Time that training stood still for saving, all workers of this machine.",
               c.checkpoint_stall_s);
}

}  // namespace

std::string MetricsPage(const view::Snapshot& s, const RunCounters& c,
                        const std::map<std::string, int64_t>& states) {
  Exposition out;
  out.Begin("run_info", "The run and the machine that this page is about.", "gauge")
      .Sample({{"run", s.run}, {"machine", s.machine}}, 1);
  out.Gauge("uptime_seconds", "Time since this supervisor started.", D(s.up_s));
  Training(s, c, &out);
  Membership(s, c, states, &out);
  Checkpoints(s, c, &out);
  return out.Take();
}

}  // namespace holdfast
