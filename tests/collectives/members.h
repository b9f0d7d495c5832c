// Members as real processes, for the tests that kill and stop them. The test binary starts itself
// again with the argument "member"; the parent talks to a member by lines over pipes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace holdfast {

// One started member.
class MemberProcess {
 public:
  // `mode` is passed on to RunMember.
  MemberProcess(int rank, int world, const std::string& mode, int64_t detect_ms);
  MemberProcess(const MemberProcess&) = delete;
  MemberProcess& operator=(const MemberProcess&) = delete;
  ~MemberProcess();  // kills and reaps

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  void Say(const std::string& line) const;
  // The next line, without its end; "" after `ms` or at the end of the stream.
  std::string Hear(int64_t ms);
  // Its exit code; -1: it does not end in time, or was killed.
  int ExitCode(int64_t ms);

 private:
  pid_t pid_ = -1;  // -1: reaped
  int to_ = -1, from_ = -1;
  std::string heard_;
};

// All members of a world, built and ready.
class MemberWorld {
 public:
  MemberWorld(int world, const std::string& mode, int64_t detect_ms);
  MemberProcess& operator[](int rank) { return *members_[static_cast<size_t>(rank)]; }

 private:
  std::vector<std::unique_ptr<MemberProcess>> members_;
};

// The child's side: main() of a member. Modes:
//   "CARRIER reduce BYTES"  all-reduces for ever; says "round K" before each
//   "CARRIER idle"          queues nothing
// CARRIER: "tcp", "shm" (the data lies in a shared block), "staged" (it does not).
// When an error comes it says "error MICROSECONDS text" (since boot) and ends.
int RunMember(int argc, char** argv);

}  // namespace holdfast
