#include "rendezvous/lineage.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/base/text.h"

namespace holdfast::rendezvous {

uint32_t NewestBranch(const Lineage& lineage) {
  return lineage.empty() ? 0 : lineage.back().branch;
}

bool IsPrefix(const Lineage& older, const Lineage& newer) {
  return older.size() <= newer.size() && std::equal(older.begin(), older.end(), newer.begin());
}

int64_t LastStepOn(const Lineage& lineage, uint32_t branch) {
  if (lineage.empty()) return branch == 0 ? INT64_MAX : -1;
  int64_t last = INT64_MAX;
  for (auto fork = lineage.rbegin(); fork != lineage.rend(); ++fork) {
    if (fork->branch == branch) return last;
    last = std::min(last, fork->step);
  }
  return -1;
}

size_t RulerOf(const Lineage& lineage, int64_t step) {
  for (size_t i = lineage.size(); i-- > 1;) {
    if (step > lineage[i].step) return i;
  }
  return 0;
}

std::string EncodeLineage(const Lineage& lineage) {
  std::string text = "lineage 1\n";
  for (const Fork& fork : lineage) {
    const auto lines = std::count(fork.schedule.begin(), fork.schedule.end(), '\n');
    text += Cat("branch ", fork.branch, " ", fork.step, " ", lines, "\n", fork.schedule);
  }
  return text;
}

absl::StatusOr<Lineage> DecodeLineage(std::string_view text) {
  const absl::Status damaged =
      absl::DataLossError("the record of the run's branches cannot be read");
  std::vector<std::string> lines = absl::StrSplit(View(text), '\n');
  if (lines.size() < 2 || lines.front() != "lineage 1" || !lines.back().empty()) return damaged;
  Lineage lineage;
  for (size_t at = 1; at + 1 < lines.size();) {
    const std::vector<std::string> head = absl::StrSplit(lines[at++], ' ');
    Fork fork;
    size_t count = 0;
    if (head.size() != 4 || head[0] != "branch" || !absl::SimpleAtoi(head[1], &fork.branch) ||
        !absl::SimpleAtoi(head[2], &fork.step) || !absl::SimpleAtoi(head[3], &count) ||
        fork.step < 0 || count > lines.size() - 1 - at) {
      return damaged;
    }
    for (; count > 0; --count) fork.schedule += lines[at++] + "\n";
    if (!lineage.empty() && fork.branch <= lineage.back().branch) return damaged;
    lineage.push_back(std::move(fork));
  }
  if (lineage.size() > kMaxBranches) return damaged;
  return lineage;
}

std::string ToString(const Lineage& lineage) {
  if (lineage.size() < 2) return "branch 0 only";
  std::string text;
  for (size_t i = 1; i < lineage.size(); ++i) {
    text += Cat(i == 1 ? "" : ", ", "branch ", lineage[i].branch, " from step ", lineage[i].step);
  }
  return text;
}

}  // namespace holdfast::rendezvous
