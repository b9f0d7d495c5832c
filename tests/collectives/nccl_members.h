// Members with a GPU each, as real processes on the emulated device, which do what their parent
// says line by line: so a test can kill, stop and join them at any point.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/collectives/members.h"

namespace holdfast {

inline constexpr int64_t kReplyMs = 60'000;  // a bound against hanging, never reached in a good run

// The answer to a command: "ok TEXT" or "error CODE MICROSECONDS TEXT".
struct Reply {
  bool ok = false;
  int code = -1;      // absl::StatusCode; -1: the member is gone or silent
  int64_t at_us = 0;  // when it knew, since boot
  std::string text;
};

class NcclWorld {
 public:
  struct Options {
    int64_t detect_ms = 60'000;
    int64_t build_ms = 60'000, abort_ms = 20'000;
  };
  // Starts `members` processes; member m has GPU m.
  NcclWorld(int members, const Options& options);
  explicit NcclWorld(int members) : NcclWorld(members, Options()) {}

  MemberProcess& operator[](int member) { return *members_.at(static_cast<size_t>(member)); }
  int size() const { return static_cast<int>(members_.size()); }

  // Tells `who` (in order of rank) to build the next generation; replies by Heard.
  void SayBuild(const std::vector<int>& who);
  // The same, and expects all to succeed. The text is how they met.
  std::string Build(const std::vector<int>& who);
  void Say(int member, const std::string& command) { (*this)[member].Say(command); }
  Reply Heard(int member, int64_t ms = kReplyMs);
  Reply Ask(int member, const std::string& command) {
    Say(member, command);
    return Heard(member);
  }
  // All of `who` run all operations and compare with plain sums.
  void Check(const std::vector<int>& who);
  // All of `who` start to reduce without end; returns when `victim` is in the middle of it.
  void StartReducing(const std::vector<int>& who, int victim);
  // The end of that: the error of one that reduces.
  Reply ReduceError(int member, int64_t ms = kReplyMs);

 private:
  std::vector<std::unique_ptr<MemberProcess>> members_;
  std::vector<std::string> ports_;
  uint64_t generation_ = 0, checks_ = 0;
};

// The child's side: main() of a member.
int RunNcclMember(int argc, char** argv);

}  // namespace holdfast
