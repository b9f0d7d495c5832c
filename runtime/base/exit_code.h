// The exit codes of `holdfast`: a contract, repeated in README.md (a test compares the two).
#pragma once

namespace holdfast {

enum class ExitCode : int {
  kOk = 0,  // the run is finished: last step reached and its checkpoint durable (or the command did
            // its work)
  kFailed = 1,     // an error that has no code of its own; the message says which
  kUsage = 2,      // command line or config file: refused before anything was touched
  kData = 3,       // training data missing, unreadable, too short, or out of range
  kRefused = 4,    // this run exists with other bits-moving settings, data or compute class: named
  kStore = 5,      // Redis: not there, wrong password, a read-only replica
  kStoreLost = 6,  // Redis was emptied or replaced in mid-run: saved and stopped
  kBusy = 7,       // another process uses this --dir or the --metrics-port
  kInterrupted = 10,  // Ctrl-C or SIGTERM: saved, resumable with the same command
  kStopped = 11,      // `holdfast stop`: saved, resumable
  kLeft = 12,         // this machine left on request; the run goes on elsewhere
  kTimeUp = 13,       // the time of --max-time is used up: saved, resumable with the same command
  kGaveUp = 20,       // workers keep dying: the last cause is in the message
  kNonFinite = 21,    // the loss or gradient is not finite, again with the same bits: step and
                      // micro-batch named
  kCheckpoint =
      22,  // checkpoints exist but none is usable, or saving failed checkpoint_max_failures times
  kCorrupt = 23,     // reports of one step disagree, or its sums stay wrong after every retry
  kDeviceLost = 24,  // a worker's GPU is unusable, or NCCL did not let itself be aborted in time:
                     // the worker ends and is replaced
};

const char* ExitCodeText(ExitCode code);  // one line for people

}  // namespace holdfast
