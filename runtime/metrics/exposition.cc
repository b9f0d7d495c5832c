#include "runtime/metrics/exposition.h"

#include <charconv>
#include <cmath>

#include "runtime/base/text.h"

namespace holdfast::metrics {
namespace {

// In a label: backslash, quote and newline; in a help text: backslash and newline.
std::string Escaped(std::string_view text, bool quote) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quote) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Number(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x > 0 ? "+Inf" : "-Inf";
  char text[40];
  return std::string(text, std::to_chars(text, text + sizeof text, x).ptr);
}

}  // namespace

Exposition& Exposition::Begin(std::string_view name, std::string_view help, std::string_view type) {
  name_ = Cat("holdfast_", name);
  text_ += Cat("# HELP ", name_, " ", Escaped(help, false), "\n# TYPE ", name_, " ", type, "\n");
  return *this;
}

Exposition& Exposition::Sample(const Labels& labels, double value) {
  text_ += name_;
  for (size_t i = 0; i < labels.size(); ++i) {
    text_ += Cat(i == 0 ? "{" : ",", labels[i].first, "=\"", Escaped(labels[i].second, true), "\"",
                 i + 1 == labels.size() ? "}" : "");
  }
  text_ += Cat(" ", Number(value), "\n");
  return *this;
}

Exposition& Exposition::Gauge(std::string_view name, std::string_view help, double value) {
  return Begin(name, help, "gauge").Sample({}, value);
}

Exposition& Exposition::Counter(std::string_view name, std::string_view help, double value) {
  return Begin(name, help, "counter").Sample({}, value);
}

}  // namespace holdfast::metrics
