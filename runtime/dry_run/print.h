// The report of a dry run, for people and as JSON. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/dry_run/estimate.h"
#include "runtime/dry_run/facts.h"

namespace holdfast {

struct DryRunReport {
  Config config;
  MachineFacts machine;
  EstimateOptions options;
  std::vector<Check> checks;
  bool measured_known = false;  // the rest is there
  Measured measured;
  Estimate estimate;
};

std::string DryRunText(const DryRunReport& report);
std::string DryRunJson(const DryRunReport& report);

std::string BytesText(int64_t bytes);  // "23.4 MB"
std::string Grouped(int64_t number);   // "834,304"
std::string HoursText(double hours);   // "1 h 12 min", "43 s"

}  // namespace holdfast
