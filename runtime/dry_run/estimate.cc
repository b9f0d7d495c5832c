#include "runtime/dry_run/estimate.h"

#include <algorithm>

#include "runtime/dry_run/measure.h"

namespace holdfast {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

double ReduceMs(const Config& config, const Measured& m, int workers, double gbits,
                double latency_ms) {
  if (workers < 2) return 0;
  const double bytes = config.reduction == "fast" ? 8 : 12;
  const double share = static_cast<double>(workers - 1) / workers;
  const double wire_ms =
      share * bytes * static_cast<double>(m.model.parameters) / (gbits * 1e9 / 8) * 1e3;
  return wire_ms + 2.0 * (workers - 1) * latency_ms;
}

// Rounds of --threads micro-batches that the busiest of `workers` computes in a step.
int64_t Rounds(const Config& config, int workers) {
  return CeilDiv(CeilDiv(config.micro_batches, workers), config.threads);
}

int64_t Evaluations(const Config& config, const Measured& m) {
  if (m.model.eval_batches == 0) return 0;
  const int64_t regular = config.eval_every > 0 ? config.steps / config.eval_every : 0;
  const bool last_is_regular = config.eval_every > 0 && config.steps % config.eval_every == 0;
  return regular + (last_is_regular ? 0 : 1);
}

double Hours(const Config& config, const Measured& m, double step_ms, double eval_round_ms,
             int workers) {
  const double evals = static_cast<double>(
      Evaluations(config, m) * CeilDiv(CeilDiv(m.model.eval_batches, workers), config.threads));
  return (static_cast<double>(config.steps) * step_ms + evals * eval_round_ms) / 3.6e6;
}

// --workers at once on this machine's cores: what was timed alone is slower by as much as the cores
// are asked for more than once.
WorldEstimate Here(const Config& config, const Measured& m, const MachineFacts& machine,
                   const EstimateOptions& options) {
  WorldEstimate w;
  w.workers = std::max(1, config.workers);
  const int computing =
      static_cast<int>(std::min<int64_t>(w.workers, config.micro_batches));  // others are spares
  const auto asked = [&](int threads) {
    return std::max(1.0, static_cast<double>(threads) / machine.cores);
  };
  const double slower = asked(computing * config.threads) / asked(config.threads);
  w.compute_ms = static_cast<double>(Rounds(config, computing)) * m.round_ms * slower;
  w.reduce_ms = ReduceMs(config, m, computing, options.local_gbits, options.latency_ms);
  w.step_ms = w.compute_ms + m.apply_ms * asked(computing) + w.reduce_ms;
  w.hours = Hours(config, m, w.step_ms, m.eval_round_ms * slower, computing);
  return w;
}

}  // namespace

WorldEstimate EstimateWorld(const Config& config, const Measured& m, int workers,
                            const EstimateOptions& options) {
  WorldEstimate w;
  w.workers = workers;
  const int computing = static_cast<int>(std::min<int64_t>(workers, config.micro_batches));
  w.compute_ms = static_cast<double>(Rounds(config, workers)) * m.round_ms;
  w.reduce_ms = ReduceMs(config, m, computing, options.link_gbits, options.latency_ms);
  w.step_ms = w.compute_ms + m.apply_ms + w.reduce_ms;
  w.hours = Hours(config, m, w.step_ms, m.eval_round_ms, computing);
  w.cost = w.hours * workers * options.price_per_hour;
  return w;
}

Estimate EstimateRun(const Config& config, const Measured& m, const MachineFacts& machine,
                     const EstimateOptions& options) {
  Estimate e;
  e.step_ms_one = EstimateWorld(config, m, 1, options).step_ms;
  if (m.fast_round_ms >= 0) {
    const double fast_ms =
        static_cast<double>(Rounds(config, 1)) * m.fast_round_ms + m.fast_apply_ms;
    e.fixed_share = std::max(0.0, (e.step_ms_one - fast_ms) / e.step_ms_one);
  }
  for (const int workers : kWorlds) {
    WorldEstimate w = EstimateWorld(config, m, workers, options);
    w.speed_up = e.step_ms_one / w.step_ms;
    w.efficiency = w.speed_up / workers;
    e.worlds.push_back(w);
  }
  for (int i = 0; i < static_cast<int>(e.worlds.size()); ++i) {
    if (e.fastest < 0 || e.worlds[i].hours < e.worlds[e.fastest].hours) e.fastest = i;
    if (options.price_per_hour <= 0) continue;
    if (e.cheapest < 0 || e.worlds[i].cost < e.worlds[e.cheapest].cost) e.cheapest = i;
  }
  e.here = Here(config, m, machine, options);
  e.here.speed_up = e.step_ms_one / e.here.step_ms;
  e.here.efficiency = e.here.speed_up / e.here.workers;
  const auto memory = [&](int64_t workers) {
    return ResidentBytes(m.model.parameters, m.model.state_bytes, config.threads,
                         static_cast<int>(workers), true) +
           m.other_bytes;
  };
  e.memory_worker = memory(e.here.workers);
  e.memory_all = e.memory_worker * e.here.workers;
  if (machine.memory_free >= 0) {
    e.fitting_workers = 0;
    while (e.fitting_workers < 1024 &&
           (e.fitting_workers + 1) * memory(e.fitting_workers + 1) <= machine.memory_free)
      ++e.fitting_workers;
  }
  e.checkpoint_bytes = m.model.state_bytes;
  // The newest ones, the best one, and the one that is being written.
  e.disk_needed = (config.keep + config.keep_best + 1) * e.checkpoint_bytes;
  e.evaluations = Evaluations(config, m);
  return e;
}

}  // namespace holdfast
