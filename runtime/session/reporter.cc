#include "runtime/session/reporter.h"

#include <cmath>

#include "nlohmann/json.hpp"
#include "runtime/base/clock.h"
#include "runtime/base/digest.h"
#include "runtime/base/log.h"

namespace holdfast {
namespace {

using nlohmann::json;

// JSON has no NaN: null stands for it.
json Number(double x) { return std::isfinite(x) ? json(x) : json(nullptr); }

std::string Text(const json& message) {
  return message.dump(-1, ' ', false, json::error_handler_t::replace);
}

json Seconds(const TimeLedger& time) {
  return {{"compute", time.seconds(TimeKind::kCompute)},
          {"reduce", time.seconds(TimeKind::kReduce)},
          {"wait", time.seconds(TimeKind::kWait)},
          {"checkpoint", time.seconds(TimeKind::kCheckpoint)},
          {"lost", time.seconds(TimeKind::kLost)}};
}

}  // namespace

void Reporter::Joined(const JoinedReport& r) {
  channel_.Post(Text({{"type", "joined"},
                      {"generation", r.generation},
                      {"world_size", r.world_size},
                      {"rank", r.rank},
                      {"step", r.step},
                      {"source", r.source},
                      {"note", r.note},
                      {"carrier", r.carrier},
                      {"branch", r.branch},
                      {"forks", r.forks},
                      {"ms", BootMs()}}));
}

void Reporter::Lost(uint64_t generation, int64_t step, std::string_view cause) {
  LogWarning("generation ", generation, " ended at step ", step, ": ", cause);
  channel_.Post(Text({{"type", "lost"},
                      {"generation", generation},
                      {"step", step},
                      {"cause", cause},
                      {"ms", BootMs()}}));
}

void Reporter::FirstStep(uint64_t generation, int64_t step) {
  channel_.Post(
      Text({{"type", "first_step"}, {"generation", generation}, {"step", step}, {"ms", BootMs()}}));
}

void Reporter::Step(const StepReport& r, const TimeLedger& time) {
  json message = {{"type", "step"},
                  {"step", r.result.step},
                  {"loss", Number(r.result.loss)},
                  {"digest", Hex64(r.digest)},
                  {"world_size", r.world_size},
                  {"generation", r.generation},
                  {"samples", Hex64(r.samples)},
                  {"branch", r.branch},
                  {"gradient_norm", Number(r.result.gradient_norm)},
                  {"learning_rate", r.result.learning_rate},
                  {"step_ms", r.step_ms},
                  {"tokens", r.tokens},
                  {"flops", r.flops},
                  {"skipped", r.result.skipped},
                  {"time", Seconds(time)}};
  if (r.last_backward_us != 0) {
    message["trace"] = {{"first_bucket_queued_us", r.first_bucket_queued_us},
                        {"first_bucket_reduced_us", r.first_bucket_reduced_us},
                        {"last_backward_us", r.last_backward_us}};
  }
  if (!r.result.metrics.empty()) {
    json metrics = json::array();
    for (const double m : r.result.metrics) metrics.push_back(Number(m));
    message["metrics"] = std::move(metrics);
  }
  channel_.Post(Text(message));
}

void Reporter::Eval(int64_t step, double loss, int64_t items) {
  channel_.Post(Text({{"type", "eval"}, {"step", step}, {"loss", Number(loss)}, {"items", items}}));
}

void Reporter::Save(const SaveReport& r) {
  channel_.Post(Text({{"type", "save"},
                      {"phase", r.phase},
                      {"step", r.id.step},
                      {"branch", r.id.branch},
                      {"generation", r.id.generation},
                      {"ms", BootMs()},
                      {"stall_ms", r.stall_ms},
                      {"write_ms", r.write_ms},
                      {"bytes", r.bytes},
                      {"copies", r.copies},
                      {"text", r.text}}));
}

void Reporter::Event(std::string_view kind, int64_t step, std::string_view text) {
  channel_.Post(
      Text({{"type", "event"}, {"kind", kind}, {"step", step}, {"text", text}, {"ms", BootMs()}}));
}

void Reporter::Final(const FinalReport& r, const TimeLedger& time) {
  channel_.Post(Text({{"type", "final"},
                      {"exit", static_cast<int>(r.exit)},
                      {"text", r.text},
                      {"step", r.step},
                      {"digest", r.digest == 0 ? "" : Hex64(r.digest)},
                      {"train_loss", Number(r.train_loss)},
                      {"eval_loss", Number(r.eval_loss)},
                      {"finished", r.finished},
                      {"generation", r.generation},
                      {"steps_lost", 0},
                      {"time", Seconds(time)},
                      {"wall_s", time.wall_s()},
                      {"ms", BootMs()}}));
  // Nobody sends it after this. A supervisor that has ended makes this return at once; one that is
  // stopped shall find the end of the run when it wakes, and not a worker that went without a word.
  channel_.Flush(600'000);
}

}  // namespace holdfast
