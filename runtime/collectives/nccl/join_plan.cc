#include "runtime/collectives/nccl/join_plan.h"

#include "runtime/base/text.h"

namespace holdfast {
namespace {

// Why the members cannot be what is left of one communicator, or "".
std::string NotOneParent(std::span<const JoinRow> rows) {
  const JoinRow& first = rows.front();
  for (size_t r = 0; r < rows.size(); ++r) {
    const JoinRow& row = rows[r];
    if (row.parent_generation == 0) return Cat("rank ", r, " comes from no former communicator");
    if (row.parent_generation != first.parent_generation ||
        row.parent_world != first.parent_world) {
      return Cat("rank ", r, " comes from generation ", row.parent_generation, ", rank 0 from ",
                 first.parent_generation);
    }
    if (row.parent_rank < 0 || row.parent_rank >= row.parent_world)
      return Cat("rank ", r, " does not know its former rank");
    // NCCL numbers those who stay in the order of their former ranks.
    if (r > 0 && row.parent_rank <= rows[r - 1].parent_rank)
      return Cat("rank ", r, " has changed its place");
  }
  return "";
}

}  // namespace

std::string NcclVersionText(int version) {
  return Cat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::Status CheckJoinRows(std::span<const JoinRow> rows) {
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].magic != JoinRow::kMagic) {
      return absl::AbortedError(Cat(
          "rank ", r, " speaks of NCCL in another way: it runs another version of this program"));
    }
    if (rows[r].nccl_version != rows[0].nccl_version) {
      return absl::FailedPreconditionError(
          Cat("rank 0 has NCCL ", NcclVersionText(rows[0].nccl_version), ", rank ", r, " has ",
              NcclVersionText(rows[r].nccl_version),
              ": install the same version on all hosts, or name its folder with --cuda-libs"));
    }
  }
  return absl::OkStatus();
}

JoinPlan DecideJoin(std::span<const JoinRow> rows) {
  JoinPlan plan;
  plan.why = NotOneParent(rows);
  if (!plan.why.empty()) return plan;
  const JoinRow& first = rows.front();
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].can_shrink == 0) plan.why = Cat("rank ", r, " has an NCCL before 2.27");
    if (rows[r].parent_healthy == 0)
      plan.why = Cat("the former communicator of rank ", r, " has failed");
    if (!plan.why.empty()) return plan;
  }
  if (static_cast<int>(rows.size()) == first.parent_world) {
    plan.why = "nobody was lost";
    return plan;
  }
  if (rows.size() == 1) {
    plan.why = "one member is left";
    return plan;
  }
  size_t next = 0;
  for (int parent = 0; parent < first.parent_world; ++parent) {
    if (next < rows.size() && rows[next].parent_rank == parent) {
      ++next;
    } else {
      plan.excluded.push_back(parent);
    }
  }
  plan.shrink = true;
  plan.why = Cat(plan.excluded.size(), " of ", first.parent_world, " members of generation ",
                 first.parent_generation, " were lost");
  return plan;
}

}  // namespace holdfast
