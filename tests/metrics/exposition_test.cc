// The text format for Prometheus.
#include "runtime/metrics/exposition.h"

#include <gtest/gtest.h>

#include <cmath>

namespace holdfast::metrics {
namespace {

TEST(Exposition, HelpTypeAndSamples) {
  Exposition out;
  out.Gauge("step", "Last step.", 450).Counter("steps_total", "Steps\\taken\nso far.", 1e15);
  out.Begin("workers", "By state.", "gauge")
      .Sample({{"state", "training"}, {"machine", "a\"b\\c\nd"}}, 3)
      .Sample({{"state", "dead"}}, NAN)
      .Sample({}, -INFINITY);
  EXPECT_EQ(out.Take(),
            "# HELP holdfast_step Last step.\n"
            "# TYPE holdfast_step gauge\n"
            "holdfast_step 450\n"
            "# HELP holdfast_steps_total Steps\\\\taken\\nso far.\n"
            "# TYPE holdfast_steps_total counter\n"
            "holdfast_steps_total 1e+15\n"
            "# HELP holdfast_workers By state.\n"
            "# TYPE holdfast_workers gauge\n"
            "holdfast_workers{state=\"training\",machine=\"a\\\"b\\\\c\\nd\"} 3\n"
            "holdfast_workers{state=\"dead\"} NaN\n"
            "holdfast_workers -Inf\n");
}

}  // namespace
}  // namespace holdfast::metrics
