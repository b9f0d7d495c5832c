// Prometheus' text exposition format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats).
// Pure; one thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace holdfast::metrics {

class Exposition {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string_view>>;

  // One metric with one value. `name` without the prefix "holdfast_"; a counter's name ends in
  // _total.
  Exposition& Gauge(std::string_view name, std::string_view help, double value);
  Exposition& Counter(std::string_view name, std::string_view help, double value);
  // One metric with several values: Begin once, then Sample for each.
  Exposition& Begin(std::string_view name, std::string_view help, std::string_view type);
  Exposition& Sample(const Labels& labels, double value);
  std::string Take() { return std::move(text_); }

 private:
  std::string name_, text_;
};

}  // namespace holdfast::metrics
