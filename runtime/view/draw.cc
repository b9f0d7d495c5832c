#include "runtime/view/draw.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "runtime/base/text.h"
#include "runtime/view/plot.h"
#include "runtime/view/text.h"

namespace holdfast::view {
namespace {

constexpr int kChartRowsMin = 6, kChartRowsMax = 20, kTwoChartsColumns = 90;
constexpr int64_t kQuietSteps = 20, kQuietSecondsMin = 5;

Style StyleOf(Tone tone) {
  switch (tone) {
    case Tone::kQuiet:
      return Style::kPlain;
    case Tone::kGood:
      return Style::kGood;
    case Tone::kWarn:
      return Style::kWarn;
    case Tone::kBad:
      return Style::kBad;
  }
  return Style::kPlain;
}

double Share(const Snapshot& s) {
  if (s.steps <= 0) return 0;
  return std::clamp(static_cast<double>(s.step) / static_cast<double>(s.steps), 0.0, 1.0);
}

std::string Percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.0f%%", std::floor(share * 100));
  return text;
}

std::string Bar(double share, int cells, bool utf8) {
  const double filled = share * cells;
  const int full = static_cast<int>(filled);
  std::string bar;
  if (!utf8)
    return Cat("[", std::string(static_cast<size_t>(full), '#'),
               std::string(static_cast<size_t>(cells - full), '.'), "]");
  static const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  for (int i = 0; i < full; ++i) bar += "█";
  const int eighths = static_cast<int>((filled - full) * 8);
  bar += kEighths[eighths];
  for (int i = full + (eighths > 0 ? 1 : 0); i < cells; ++i) bar += "░";
  return bar;
}

StyledLine Title(const Snapshot& s) {
  StyledLine line;
  line.Add("holdfast ", Style::kDim).Add(s.run, Style::kBold).Add("  ");
  line.Add(s.phase, s.tone == Tone::kQuiet ? Style::kBold : StyleOf(s.tone));
  line.Add(Cat("  ", Counted(s.world_size, "worker"), "  generation ", s.generation));
  if (!s.ended && s.up_s > 0) line.Add(Cat("  up ", ShortTime(s.up_s)), Style::kDim);
  return line;
}

StyledLine Progress(const Snapshot& s, const Capabilities& caps) {
  StyledLine line;
  const int cells = std::clamp(caps.width / 3, 4, 40);
  if (caps.width >= 30) line.Add(Bar(Share(s), cells, caps.utf8), Style::kGood).Add(" ");
  line.Add(Percent(Share(s)), Style::kBold);
  line.Add(Cat("  step ", Grouped(s.step), caps.width >= 60 ? Cat(" of ", Grouped(s.steps)) : ""));
  if (s.ended) return line;
  if (s.seconds_left >= 0 && s.step < s.steps)
    line.Add(Cat("  ", ShortTime(s.seconds_left), " left"), Style::kBold);
  // Silence is worth a word when it is longer than steps usually are.
  const auto usual =
      static_cast<int64_t>(std::min(1e9, std::ceil(s.step_s * static_cast<double>(kQuietSteps))));
  if (s.step_age_s > std::max(kQuietSecondsMin, usual))
    line.Add(Cat("  no step for ", ShortTime(s.step_age_s)), Style::kWarn);
  return line;
}

StyledLine Losses(const Snapshot& s) {
  StyledLine line("loss ", Style::kDim);
  line.Add(Fixed(s.loss, 4), std::isfinite(s.loss) || s.step == 0 ? Style::kBold : Style::kBad);
  if (s.eval_step >= 0) {
    line.Add("  held-out ", Style::kDim).Add(Fixed(s.eval_loss, 4), Style::kBold);
    line.Add(Cat(" at step ", Grouped(s.eval_step)), Style::kDim);
  }
  if (std::isfinite(s.gradient_norm))
    line.Add("  gradient norm ", Style::kDim).Add(Fixed(s.gradient_norm, 3));
  if (std::isfinite(s.learning_rate)) {
    char rate[32];
    std::snprintf(rate, sizeof rate, "%.2e", s.learning_rate);
    line.Add("  learning rate ", Style::kDim).Add(rate);
  }
  return line;
}

StyledLine Speed(const Snapshot& s) {
  StyledLine line;
  line.Add(Cat(ShortNumber(s.tokens_per_s), " tokens/s  ", WithUnit(s.flops_per_s, "FLOP/s")));
  if (s.step_s > 0)
    line.Add(s.step_s < 10 ? Cat("  ", Fixed(s.step_s * 1000, s.step_s < 0.1 ? 1 : 0), " ms a step")
                           : Cat("  ", Fixed(s.step_s, 1), " s a step"));
  return line;
}

StyledLine Saved(const Snapshot& s) {
  StyledLine line("checkpoint ", Style::kDim);
  if (s.saved_step < 0) {
    line.Add("none saved yet", Style::kWarn);
  } else {
    line.Add(Cat("step ", Grouped(s.saved_step)), Style::kBold);
    if (s.saved_age_s >= 0) line.Add(Cat(", ", ShortTime(s.saved_age_s), " ago"));
  }
  if (s.save_failures > 0)
    line.Add(Cat("  ", Counted(s.save_failures, "save"), " failed since"), Style::kBad);
  if (s.workers_lost > 0) {
    line.Add(Cat("  ", Counted(s.workers_lost, "worker"), " lost"));
    if (s.recovery_ms >= 0) line.Add(Cat(", last recovery ", s.recovery_ms, " ms"));
    if (s.steps_lost > 0) line.Add(Cat(", ", Counted(s.steps_lost, "step"), " computed again"));
  }
  return line;
}

StyledLine Time(const Snapshot& s) {
  StyledLine line("time ", Style::kDim);
  double total = 0;
  for (const double seconds : s.time_s) total += seconds;
  if (!(total > 0)) return line.Add("no account yet");
  for (size_t i = 0; i < kActivities.size(); ++i) {
    const double share = s.time_s[i] / total;
    const Style style = i + 1 == kActivities.size() && share >= 0.05 ? Style::kWarn : Style::kPlain;
    line.Add(Cat(i == 0 ? "" : "  ", kActivities[i], " "), Style::kDim);
    line.Add(Cat(Fixed(share * 100, share < 0.1 ? 1 : 0), "%"), style);
  }
  return line;
}

// The next column of a table: at `begin`, or behind what was too long for the one before.
StyledLine& Column(StyledLine& line, int begin) {
  return line.columns() >= begin ? line.Add("  ") : line.Pad(begin);
}

StyledLine Worker(const WorkerLine& w, bool machines) {
  const int shift = machines ? 24 : 0;
  StyledLine line(Cat("  worker ", w.slot), Style::kDim);
  if (machines) line.Add(Cat(" on ", w.machine), Style::kDim);
  Column(line, 12 + shift).Add(w.state, StyleOf(w.tone));
  Column(line, 26 + shift);
  if (w.rank >= 0) line.Add(Cat("rank ", w.rank));
  Column(line, 36 + shift);
  if (w.step >= 0) line.Add(Cat("step ", Grouped(w.step)));
  Column(line, 54 + shift);
  if (w.pid > 0) line.Add(Cat("pid ", w.pid), Style::kDim);
  if (w.deaths > 0)
    line.Add(Cat("  died ", w.deaths == 1 ? "once" : Cat(w.deaths, " times")), Style::kWarn);
  return line;
}

// The workers in `rows` lines: each one, or the first ones and how many more are in which state.
void AddWorkers(const Snapshot& s, int rows, std::vector<StyledLine>* lines) {
  const int count = static_cast<int>(s.workers.size());
  const bool machines = std::any_of(s.workers.begin(), s.workers.end(), [&](const WorkerLine& w) {
    return w.machine != s.workers.front().machine;
  });
  // Those in trouble first, so that no summary hides them.
  std::vector<const WorkerLine*> order;
  for (const WorkerLine& w : s.workers) order.push_back(&w);
  if (count > rows) {
    std::stable_sort(order.begin(), order.end(),
                     [](const WorkerLine* a, const WorkerLine* b) { return a->tone > b->tone; });
  }
  const int shown = count <= rows ? count : std::max(0, rows - 1);
  for (int i = 0; i < shown; ++i)
    lines->push_back(Worker(*order[static_cast<size_t>(i)], machines));
  if (shown == count || rows == 0) return;
  std::map<std::string, int> states;
  for (size_t i = static_cast<size_t>(shown); i < order.size(); ++i) ++states[order[i]->state];
  std::string rest;
  for (const auto& [state, n] : states) rest += Cat(rest.empty() ? "" : ", ", n, " ", state);
  lines->push_back(
      StyledLine(Cat(shown == 0 ? "  workers: " : Cat("  and ", count - shown, " more: "), rest)));
}

void AddEvents(const Snapshot& s, int rows, std::vector<StyledLine>* lines) {
  const size_t first = s.events.size() - std::min(s.events.size(), static_cast<size_t>(rows));
  for (size_t i = first; i < s.events.size(); ++i) {
    const EventLine& e = s.events[i];
    const std::string age = ShortTime(e.age_s);
    StyledLine line(std::string(static_cast<size_t>(std::max(0, 8 - Columns(age))), ' '));
    lines->push_back(line.Add(Cat(age, " ago  "), Style::kDim).Add(e.text, StyleOf(e.tone)));
  }
}

void AddChart(const Snapshot& s, const Capabilities& caps, int rows,
              std::vector<StyledLine>* lines) {
  // The newest steps get a picture of their own where they are a part of the whole only.
  const bool two = caps.width >= kTwoChartsColumns && s.recent.size() >= 2 && !s.losses.empty() &&
                   s.recent.front().step > s.losses.front().step + 1;
  const int left = two ? caps.width * 3 / 5 : caps.width;
  const auto whole = Plot({s.losses, s.evals, s.evals.empty() ? "loss" : "loss, o held-out"}, left,
                          rows, caps.utf8);
  if (!two) {
    lines->insert(lines->end(), whole.begin(), whole.end());
    return;
  }
  const auto newest =
      Plot({s.recent, s.evals, "newest steps"}, caps.width - left - 2, rows, caps.utf8);
  for (size_t i = 0; i < whole.size(); ++i) {
    StyledLine line = whole[i];
    if (i < newest.size()) line.Pad(left + 2).Append(newest[i]);
    lines->push_back(line);
  }
}

// How many rows each part below the head gets.
struct Rows {
  int chart = 0, workers = 0, events = 0, blank = 0;
};
Rows Deal(const Snapshot& s, const Capabilities& caps, int rest) {
  const int workers = static_cast<int>(s.workers.size()),
            events = static_cast<int>(s.events.size());
  Rows r;
  const auto take = [&rest](int wanted) {
    const int taken = std::clamp(wanted, 0, std::max(0, rest));
    rest -= taken;
    return taken;
  };
  r.events = take(std::min(events, std::clamp(rest / 5, rest > 0 ? 1 : 0, 4)));
  r.workers = take(std::min(workers, std::min(rest / 2, 6)));
  const bool chart = s.losses.size() >= 2 && caps.width >= kPlotColumnsMin && rest >= kChartRowsMin;
  if (chart) r.chart = take(std::min(rest, kChartRowsMax));
  // A tall window: everything that there is, then air between the parts.
  r.workers += take(workers - r.workers);
  r.events += take(events - r.events);
  r.blank = take(3);
  return r;
}

}  // namespace

std::vector<std::string> Draw(const Snapshot& s, const Capabilities& caps) {
  struct Head {
    int importance;  // 0: stays longest
    StyledLine line;
  };
  std::vector<Head> head = {{3, Title(s)}, {0, Progress(s, caps)}, {2, Losses(s)},
                            {5, Speed(s)}, {4, Saved(s)},          {6, Time(s)}};
  if (!s.notice.empty()) head.insert(head.begin(), {1, StyledLine(s.notice, Style::kBad)});
  if (s.ended && !s.end_text.empty())
    head.push_back({1, StyledLine(s.end_text.substr(0, s.end_text.find('\n')), StyleOf(s.tone))});
  std::vector<int> importance;
  for (const Head& h : head) importance.push_back(h.importance);
  std::sort(importance.begin(), importance.end());
  const int height = std::max(1, caps.height);
  const int bound =
      importance[static_cast<size_t>(std::min<int>(height, static_cast<int>(head.size())) - 1)];
  std::vector<StyledLine> lines;
  for (const Head& h : head) {
    if (h.importance <= bound && static_cast<int>(lines.size()) < height) lines.push_back(h.line);
  }
  Rows rows = Deal(s, caps, height - static_cast<int>(lines.size()));
  const auto blank = [&] {
    if (rows.blank-- > 0) lines.emplace_back();
  };
  if (rows.chart > 0) {
    blank();
    AddChart(s, caps, rows.chart, &lines);
  }
  if (rows.workers > 0) {
    blank();
    AddWorkers(s, rows.workers, &lines);
  }
  if (rows.events > 0) {
    blank();
    AddEvents(s, rows.events, &lines);
  }
  std::vector<std::string> texts;
  for (const StyledLine& line : lines) texts.push_back(line.Text(caps));
  return texts;
}

std::string PlainLine(const Snapshot& s) {
  std::string line =
      Cat(s.run, ": ", s.phase, "  step ", s.step, "/", s.steps, "  loss ", Fixed(s.loss, 4), "  ",
          ShortNumber(s.tokens_per_s), " tokens/s  ", WithUnit(s.flops_per_s, "FLOP/s"), "  ",
          Counted(s.world_size, "worker"), "  generation ", s.generation);
  if (s.seconds_left >= 0 && !s.ended) line += Cat("  ", ShortTime(s.seconds_left), " left");
  if (s.saved_step >= 0) line += Cat("  saved step ", s.saved_step);
  if (!s.notice.empty()) line += Cat("  ", s.notice);
  return Clean(line, true);
}

}  // namespace holdfast::view
