// holdfast status --watch: the view of any run, live, until it ends or the watcher leaves. In a
// pipe one line for each change.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "runtime/base/clock.h"
#include "runtime/base/log_sink.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/status_source.h"
#include "runtime/supervisor/exit_status.h"
#include "runtime/view/draw.h"
#include "runtime/view/screen.h"

namespace holdfast {
namespace {

constexpr int64_t kEveryMs = 1000;

// Keys come at once and unseen while this lives.
class Keyboard {
 public:
  Keyboard() { Take(); }
  ~Keyboard() { Restore(); }
  void Take() {
    if (isatty(STDIN_FILENO) != 1 || tcgetpgrp(STDIN_FILENO) != getpgrp()) return;
    if (tcgetattr(STDIN_FILENO, &former_) != 0) return;
    termios keys = former_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    taken_ = tcsetattr(STDIN_FILENO, TCSANOW, &keys) == 0;
  }
  void Restore() {
    if (taken_) (void)tcsetattr(STDIN_FILENO, TCSANOW, &former_);
    taken_ = false;
  }
  int fd() const { return taken_ ? STDIN_FILENO : -1; }

 private:
  termios former_{};
  bool taken_ = false;
};

int BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGWINCH}) sigaddset(&set, number);
  if (sigprocmask(SIG_BLOCK, &set, nullptr) != 0) return -1;
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

class Watch {
 public:
  explicit Watch(const CommandLine& line) : line_(line), signal_fd_(BlockSignals()) {}
  ~Watch() {
    if (signal_fd_ >= 0) close(signal_fd_);
  }

  ExitCode Run() {
    if (signal_fd_ < 0) return Fail(absl::UnavailableError("signalfd"));
    // "Trying again" has a place in the view; lines across it have none.
    if (screen_.usable()) SetLogSink([](std::string_view) { return true; });
    while (!leave_) {
      auto fresh = GatherStatus(line_);
      if (!fresh.ok() && !status_) return Fail(fresh.status());
      Take(std::move(fresh));
      Paint();
      if (!status_->active && !status_->stale) break;
      Pause(Deadline::After(kEveryMs));
    }
    screen_.Leave();
    keyboard_.Restore();
    SetLogSink({});
    if (view::UnderstandsMovement(STDOUT_FILENO)) PrintStatus(*status_);
    return ExitCode::kOk;
  }

 private:
  ExitCode Fail(const absl::Status& status) {
    screen_.Leave();
    std::fprintf(stderr, "holdfast status: %s\n", std::string(status.message()).c_str());
    return ExitCodeOf(status);
  }

  // A run that cannot be asked for a moment is shown as it was, and older.
  void Take(absl::StatusOr<RunStatus> fresh) {
    const int64_t now_ms = BootMs();
    if (fresh.ok()) {
      status_ = std::move(*fresh);
    } else {
      status_->snapshot.Age((now_ms - taken_ms_) / 1000);
      status_->snapshot.notice = Cat("no news: ", StdView(fresh.status().message()));
    }
    taken_ms_ = now_ms;
  }

  void Paint() {
    if (view::UnderstandsMovement(STDOUT_FILENO)) {
      screen_.Show(view::Draw(status_->snapshot, screen_.capabilities()));
      return;
    }
    const std::string line = view::PlainLine(status_->snapshot);
    const std::string mark =
        Cat(status_->snapshot.step, status_->snapshot.phase, status_->snapshot.notice.empty());
    if (mark == printed_) return;
    printed_ = mark;
    if (std::printf("%s\n", line.c_str()) < 0 || std::fflush(stdout) != 0) leave_ = true;
  }

  void Pause(Deadline deadline) {
    while (!leave_ && !deadline.passed()) {
      pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {keyboard_.fd(), POLLIN, 0}};
      if (poll(fds, 2, static_cast<int>(deadline.left_ms()) + 1) <= 0) continue;
      signalfd_siginfo info;
      while (read(signal_fd_, &info, sizeof info) == sizeof info)
        OnSignal(static_cast<int>(info.ssi_signo));
      if (fds[1].revents != 0) OnKey();
    }
  }

  void OnKey() {
    char key = 0;
    if (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q') leave_ = true;
  }

  void OnSignal(int number) {
    if (number == SIGWINCH) return Paint();
    if (number != SIGTSTP) {
      leave_ = true;
      return;
    }
    screen_.Leave();
    keyboard_.Restore();
    (void)raise(SIGSTOP);
    keyboard_.Take();
    Paint();
  }

  const CommandLine& line_;
  const int signal_fd_;
  std::optional<RunStatus> status_;
  int64_t taken_ms_ = 0;
  std::string printed_;
  bool leave_ = false;
  view::Screen screen_{STDOUT_FILENO};
  Keyboard keyboard_;
};

}  // namespace

ExitCode WatchStatus(const CommandLine& line) { return Watch(line).Run(); }

}  // namespace holdfast
