// Nothing may stay behind after a run's end: processes, listening sockets, shared memory, scratch
// files. Take a Residue before the run and ask it afterwards.
//
// Threads: one object belongs to one thread.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/base/clock.h"

namespace holdfast::chaos {

class Residue {
 public:
  // Remembers the /dev/shm entries of the project that are there before the run.
  Residue();

  // What the processes with this mark have left, polled until nothing is left or the deadline
  // passes: living processes (named), listening TCP sockets of them, /dev/shm entries of the
  // project that were not there before, temporary files and those of a run's life (sockets,
  // secrets) below `dir`, unless it is "". Empty: clean.
  std::vector<std::string> Check(const std::string& mark, const std::string& dir,
                                 Deadline deadline) const;

 private:
  std::set<std::string> shm_before_;
};

// TCP ports on which this process listens (from its descriptors and /proc/net/tcp).
std::vector<int> ListeningPorts(int pid);

}  // namespace holdfast::chaos
