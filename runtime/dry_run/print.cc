#include "runtime/dry_run/print.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "runtime/base/text.h"

namespace holdfast {
namespace {

using Json = nlohmann::json;

const char* OutcomeText(Check::Outcome outcome) {
  switch (outcome) {
    case Check::Outcome::kOk:
      return "ok";
    case Check::Outcome::kWarning:
      return "note";
    case Check::Outcome::kFailed:
      return "FAILED";
  }
  return "";
}

std::string Row(std::string_view name, std::string_view text) {
  return absl::StrFormat("  %-16s %s\n", View(name), View(text));
}

std::string MsText(double ms) {
  return ms >= 1e4 ? HoursText(ms / 3.6e6) : absl::StrFormat(ms >= 100 ? "%.0f ms" : "%.1f ms", ms);
}

std::string MemoryText(const DryRunReport& r) {
  const ModelFacts& model = r.measured.model;
  const Estimate& e = r.estimate;
  const int64_t own = model.resident_bytes - 8 * model.parameters;
  const double per =
      static_cast<double>(own) / static_cast<double>(std::max<int64_t>(1, model.parameters));
  const int64_t threads = r.config.threads;
  std::string text = "\nMemory\n";
  text += Row("parameters", Cat(Grouped(model.parameters), " in ", model.tensors, " tensors"));
  text += Row(
      "state",
      Cat(BytesText(own), absl::StrFormat(": %.0f B a parameter", per),
          " (value, moments, gradient, 64-bit sum, and a gradient for ",
          threads == 1 ? std::string("the thread") : Cat("each of ", threads, " threads"), ")"));
  text += Row("slices", Cat("8 / N B a parameter of reduced sums, ", BytesText(model.state_bytes),
                            " / N while a checkpoint is under way (N workers)"));
  text += Row("the rest", Cat(BytesText(r.measured.other_bytes),
                              ": activations, workspace and the program, measured"));
  text += Row("each worker", Cat(BytesText(e.memory_worker), " as one of ", e.here.workers,
                                 ", a checkpoint under way"));
  text += Row("this machine",
              r.machine.memory_free < 0
                  ? std::string("free memory unknown")
                  : Cat(BytesText(e.memory_all), " for --workers ", e.here.workers, " of ",
                        BytesText(r.machine.memory_free), " free; ",
                        e.fitting_workers >= 1024 ? "1024 and more" : Cat(e.fitting_workers),
                        " would fit"));
  return text;
}

std::string TimeText(const DryRunReport& r) {
  const Measured& m = r.measured;
  const Estimate& e = r.estimate;
  const double tokens = static_cast<double>(m.model.tokens_per_step);
  std::string text = "\nTime on this machine\n";
  text += Row("one worker",
              Cat(MsText(e.step_ms_one), " a step (best of ", m.steps,
                  m.units < r.config.micro_batches
                      ? Cat(" with ", m.units, " of ", r.config.micro_batches, " micro-batches")
                      : std::string(),
                  "), ", Grouped(static_cast<int64_t>(tokens / e.step_ms_one * 1e3)), " tokens/s"));
  text +=
      Row("fixed point",
          e.fixed_share < 0
              ? std::string(r.config.reduction == "fast" ? "none (--reduction fast)"
                                                         : "not measured (memory)")
              : absl::StrFormat("%.1f%% of a step, against --reduction fast, step by step in turn",
                                100 * e.fixed_share));
  text +=
      Row(Cat("--workers ", e.here.workers),
          Cat(MsText(e.here.step_ms), " a step on ", r.machine.cores,
              r.machine.cores == 1 ? " core" : " cores", "; ", Grouped(r.config.steps),
              " steps and ", e.evaluations,
              e.evaluations == 1 ? " evaluation: " : " evaluations: ", HoursText(e.here.hours)));
  if (e.here.workers > 1) {
    text += Row("", absl::StrFormat("(cores shared evenly, %g GB/s between the workers: assumed)",
                                    r.options.local_gbits / 8));
  }
  return text;
}

std::string WorldsText(const DryRunReport& r) {
  const Estimate& e = r.estimate;
  const bool priced = r.options.price_per_hour > 0;
  std::string text = "\nMore workers, each on a machine like this one\n";
  text +=
      absl::StrFormat("  %7s %12s %12s %12s %9s %10s %14s%s\n", "workers", "compute", "reduce",
                      "step", "speed-up", "efficiency", "whole run", priced ? "        cost" : "");
  for (size_t i = 0; i < e.worlds.size(); ++i) {
    const WorldEstimate& w = e.worlds[i];
    text += absl::StrFormat("  %7d %12s %12s %12s %8.2fx %9.0f%% %14s", w.workers,
                            MsText(w.compute_ms), MsText(w.reduce_ms), MsText(w.step_ms),
                            w.speed_up, 100 * w.efficiency, HoursText(w.hours));
    if (priced) text += absl::StrFormat(w.cost < 1 ? " %11.4f" : " %11.2f", w.cost);
    if (static_cast<int>(i) == e.fastest) text += "  fastest";
    if (static_cast<int>(i) == e.cheapest) text += "  cheapest";
    text += "\n";
  }
  text +=
      Cat("  Assumed: a step = ceil(ceil(", r.config.micro_batches, " micro-batches / workers) / ",
          r.config.threads, r.config.threads == 1 ? " thread)" : " threads)", " rounds of ",
          MsText(r.measured.round_ms), " + ", MsText(r.measured.apply_ms),
          " that every worker spends on digests and the optimizer\n  + ",
          r.config.reduction == "fast" ? "8" : "12", " B a parameter over links of ",
          r.options.link_gbits, " Gbit/s (--link-gbits), ", r.options.latency_ms,
          " ms a hop, nothing hidden behind the backward pass.\n");
  if (r.config.micro_batches < 64) {
    text += Cat("  With ", r.config.micro_batches,
                r.config.micro_batches == 1 ? " micro-batch" : " micro-batches",
                " a step no more than ", r.config.micro_batches,
                r.config.micro_batches == 1 ? " worker computes" : " workers compute",
                ": to use more, raise --micro-batches (it is part of the result).\n");
  }
  return text;
}

std::string SameText(const std::string& differs) {
  return differs.empty() ? "same bits" : Cat("DIFFERENT BITS, first in ", differs);
}

std::string BitsText(const DryRunReport& r) {
  const Measured& m = r.measured;
  std::string text = "\nDeterminism (micro-batch 0 of step 0)\n";
  if (!m.determinism_known)
    return text + Row("not checked", "too little memory for a second model");
  text += Row("twice", SameText(m.differs_again));
  text += Row("in two threads", SameText(m.differs_threads));
  if (!m.differs_again.empty() || !m.differs_threads.empty()) {
    text +=
        "  The bits of a run would depend on chance: the model must be a pure function of\n"
        "  parameters, micro-batch and Pass::random().\n";
  }
  return text;
}

Json WorldJson(const WorldEstimate& w, bool priced) {
  Json json = {{"workers", w.workers}, {"compute_ms", w.compute_ms}, {"reduce_ms", w.reduce_ms},
               {"step_ms", w.step_ms}, {"speed_up", w.speed_up},     {"efficiency", w.efficiency},
               {"hours", w.hours}};
  if (priced) json["cost"] = w.cost;
  return json;
}

Json Finite(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

}  // namespace

std::string BytesText(int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (b < 1e6) return absl::StrFormat("%.1f kB", b / 1e3);
  if (b < 1e9) return absl::StrFormat("%.1f MB", b / 1e6);
  if (b < 1e12) return absl::StrFormat("%.1f GB", b / 1e9);
  return absl::StrFormat("%.1f TB", b / 1e12);
}

std::string Grouped(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t left = digits.size() - i;
    if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') text += ',';
    text += digits[i];
  }
  return text;
}

std::string HoursText(double hours) {
  const double s = hours * 3600;
  if (s < 10) return absl::StrFormat("%.1f s", s);
  if (s < 120) return absl::StrFormat("%.0f s", s);
  if (s < 600) return absl::StrFormat("%.1f min", s / 60);
  if (s < 7200) return absl::StrFormat("%.0f min", s / 60);
  if (s < 172'800)
    return absl::StrFormat("%d h %02d min", static_cast<int>(s / 3600),
                           static_cast<int>(s / 60) % 60);
  return absl::StrFormat("%.1f days", s / 86'400);
}

std::string DryRunText(const DryRunReport& r) {
  std::string text = "dry run: no run was started, and nothing was changed\n\nChecks\n";
  for (const Check& c : r.checks) {
    text += absl::StrFormat("  %-16s %-7s %s\n", c.name, OutcomeText(c.outcome), c.text);
  }
  if (!r.measured_known) return text;
  const Estimate& e = r.estimate;
  text += MemoryText(r);
  text += TimeText(r);
  text += WorldsText(r);
  text += "\nCheckpoints\n";
  text += Row("size", Cat(BytesText(e.checkpoint_bytes), " each (12 B a parameter with AdamW)"));
  text += Row("disk", Cat(BytesText(e.disk_needed), " for --keep ", r.config.keep,
                          r.config.keep_best > 0 ? ", the best one" : "",
                          " and the one being written, all workers together; ",
                          r.machine.disk_free < 0 ? "free space unknown"
                                                  : Cat(BytesText(r.machine.disk_free), " free")));
  return text + BitsText(r);
}

std::string DryRunJson(const DryRunReport& r) {
  Json json = {{"checks", Json::array()},
               {"machine",
                {{"cores", r.machine.cores},
                 {"memory_free", r.machine.memory_free},
                 {"disk_free", r.machine.disk_free}}}};
  for (const Check& c : r.checks) {
    json["checks"].push_back(
        {{"name", c.name}, {"outcome", OutcomeText(c.outcome)}, {"text", c.text}});
  }
  if (r.measured_known) {
    const Measured& m = r.measured;
    const Estimate& e = r.estimate;
    const bool priced = r.options.price_per_hour > 0;
    json["memory"] = {{"parameters", m.model.parameters}, {"state_bytes", m.model.resident_bytes},
                      {"other_bytes", m.other_bytes},     {"worker_bytes", e.memory_worker},
                      {"all_bytes", e.memory_all},        {"fitting_workers", e.fitting_workers}};
    json["time"] = {{"step_ms", e.step_ms_one},
                    {"round_ms", m.round_ms},
                    {"rest_ms", m.apply_ms},
                    {"fixed_point_share", e.fixed_share < 0 ? Json(nullptr) : Json(e.fixed_share)},
                    {"tokens_per_step", m.model.tokens_per_step},
                    {"first_loss", Finite(m.first_loss)},
                    {"here", WorldJson(e.here, false)}};
    json["worlds"] = Json::array();
    for (const WorldEstimate& w : e.worlds) json["worlds"].push_back(WorldJson(w, priced));
    json["fastest"] = e.worlds[static_cast<size_t>(e.fastest)].workers;
    if (e.cheapest >= 0) json["cheapest"] = e.worlds[static_cast<size_t>(e.cheapest)].workers;
    json["assumed"] = {{"link_gbits", r.options.link_gbits}, {"latency_ms", r.options.latency_ms}};
    json["checkpoint"] = {{"bytes", e.checkpoint_bytes}, {"disk_needed", e.disk_needed}};
    json["determinism"] = {{"checked", m.determinism_known},
                           {"again", m.differs_again},
                           {"threads", m.differs_threads}};
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace holdfast
