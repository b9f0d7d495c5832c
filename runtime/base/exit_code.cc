#include "runtime/base/exit_code.h"

namespace holdfast {

const char* ExitCodeText(ExitCode code) {
  switch (code) {
    case ExitCode::kOk:
      return "finished";
    case ExitCode::kFailed:
      return "failed";
    case ExitCode::kUsage:
      return "bad usage or configuration";
    case ExitCode::kData:
      return "bad data";
    case ExitCode::kRefused:
      return "refused: differs from the existing run";
    case ExitCode::kStore:
      return "Redis cannot be used";
    case ExitCode::kStoreLost:
      return "Redis was emptied or replaced; saved and stopped";
    case ExitCode::kBusy:
      return "in use by another process";
    case ExitCode::kInterrupted:
      return "interrupted; saved, resumable";
    case ExitCode::kStopped:
      return "stopped on request; saved, resumable";
    case ExitCode::kLeft:
      return "left on request; the run goes on elsewhere";
    case ExitCode::kTimeUp:
      return "the time of --max-time is used up; saved, resumable";
    case ExitCode::kGaveUp:
      return "gave up: workers keep dying";
    case ExitCode::kNonFinite:
      return "stopped: not finite, deterministically";
    case ExitCode::kCheckpoint:
      return "no usable checkpoint, or saving keeps failing";
    case ExitCode::kCorrupt:
      return "stopped: reports of one step disagree, or its sums stay wrong";
    case ExitCode::kDeviceLost:
      return "the GPU is lost to this process";
  }
  return "unknown";
}

}  // namespace holdfast
