// The training session of one worker: generations one after the other, steps inside a generation,
// saves and evaluations between steps. Reads top to bottom in session.cc; how a generation is
// entered is in regroup.cc; what a verdict means for saves and for the end is in boundary.cc. A
// walk through one step and one recovery: WALKTHROUGH.md in this folder.
//
// Threads: everything here runs on the main thread, except RequestDrain.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rendezvous/membership.h"
#include "runtime/base/exit_code.h"
#include "runtime/collectives/communicator.h"
#include "runtime/collectives/nccl/nccl.h"
#include "runtime/session/best_checkpoint.h"
#include "runtime/session/compute_pool.h"
#include "runtime/session/control_table.h"
#include "runtime/session/held_checkpoints.h"
#include "runtime/session/reporter.h"
#include "runtime/session/saver.h"
#include "runtime/session/start_message.h"
#include "runtime/session/state.h"
#include "runtime/session/step_engine.h"
#include "runtime/session/time_ledger.h"

namespace holdfast {

enum class DrainScope : int { kNone, kWorker, kMachine };

class Session {
 public:
  // Everything that a worker needs before it may meet others: data, model, state, stores, probe.
  // On an error *exit says which code the process ends with.
  static absl::StatusOr<std::unique_ptr<Session>> Create(const StartMessage& start,
                                                         const Trainer& trainer, Channel& channel,
                                                         ExitCode* exit);
  ~Session();

  // Until the run is finished, this worker has left, or an error ends it.
  FinalReport Run();
  // A wish to leave at the next step boundary. From any thread and from signal context.
  void RequestDrain(DrainScope scope);
  // Called several times a second by the worker's control thread: ends a wait for a round that a
  // drain should end.
  void Tick();
  // Progress of the main thread, for the watchdog: the boot time at which it last began a stretch
  // that is over within stall_ms while all is well; 0 while it waits for a round.
  int64_t progress_ms() const { return progress_.load(std::memory_order_relaxed); }
  int64_t stall_ms() const { return stall_ms_.load(std::memory_order_relaxed); }
  const TimeLedger& time() const { return time_; }

 private:
  // What ends a generation, or the session.
  struct Ending {
    enum class Kind { kRegroup, kFinished, kLeft, kError } kind = Kind::kRegroup;
    std::string reason;
    absl::Status status;                 // kError
    EndReason cause = EndReason::kNone;  // kLeft
    bool others_remain = false;          // kLeft
  };
  struct Generation {
    rendezvous::Roster roster;
    std::unique_ptr<Communicator> comm;
    std::vector<int32_t> mine;  // micro-batches of the next attempt
    int attempt = 0;
    int64_t steps = 0;      // applied in this generation
    int recheck_count = 0;  // of the former attempt of this step
    uint64_t recheck_hash = 0;
    int failures = 0;  // attempts of this step that went wrong without a loss
  };
  // A step that is applied but not yet agreed by the next table.
  struct Unagreed {
    bool present = false;
    StepReport report;
  };

  Session(const StartMessage& start, const Trainer& trainer, Channel& channel);
  absl::Status Prepare();
  absl::Status OpenDevice();
  absl::Status MakeNccl();
  std::string ChoicesPath() const;
  void RecordChoices();
  absl::Status PrepareStores();
  absl::Status CheckFingerprint();
  absl::Status ReadLineage();
  absl::Status StartMembership();

  // regroup.cc
  absl::StatusOr<Ending> EnterGeneration(std::string_view reason);
  absl::Status Connect(const rendezvous::Roster& roster);
  absl::Status BuildGeneration(const rendezvous::Roster& roster);
  absl::Status Exchange();
  absl::Status TakeLineage(const rendezvous::Roster& roster);
  void VerifyOwnState();
  rendezvous::Offer MakeOffer();

  // session.cc
  Ending Train();
  absl::StatusOr<Verdict> OneAttempt(std::vector<ControlRow>* rows, StepFacts* facts);
  absl::StatusOr<Verdict> OneRound(std::vector<ControlRow>* rows);
  absl::Status ActOnStep(const Verdict& verdict, const StepFacts& facts);
  absl::Status Applied(const absl::StatusOr<StepResult>& result, const Verdict& verdict,
                       const StepFacts& facts);
  absl::Status Evaluate();
  ControlRow MakeRow();
  TableExpectation Expect(bool is_step) const;
  void Agreed();
  void DropSave();
  void DealAgain(int rotate);
  int RotationAwayFrom(int rank, int32_t micro_batch) const;
  Ending Failed(const absl::Status& status);
  bool DeviceLost();

  // boundary.cc
  absl::Status ActOnSave(const Verdict& verdict, const std::vector<ControlRow>& rows);
  absl::Status BeginSave();
  absl::StatusOr<bool> Boundary(const Verdict& verdict,
                                Ending* ending);  // true: the generation is over
  Ending Farewell(EndReason cause, bool others_remain);
  absl::Status SettleSaves(int64_t step);
  absl::Status SaveCandidate();
  void TellBest();
  Ending FinishRun();
  absl::Status EndOrderly();
  uint32_t Intents();
  bool SaveDue(int64_t step) const;

  const StartMessage start_;
  const Config& config_;
  const Trainer& trainer_;
  Reporter reporter_;
  TimeLedger time_;
  TimeLedger attempt_mark_;  // when the attempt under way began

  kernels::Device* device_ = nullptr;
  std::unique_ptr<DataSource> data_;
  std::unique_ptr<State> state_;
  std::unique_ptr<ComputePool> pool_;
  std::unique_ptr<StepEngine> engine_;
  std::unique_ptr<storage::SlotStore> store_;
  std::unique_ptr<HeldCheckpoints> held_;
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<rendezvous::SlotMarks> marks_;
  std::unique_ptr<rendezvous::Membership> membership_;
  std::unique_ptr<TcpEndpoint> endpoint_;
  std::unique_ptr<NcclFactory> nccl_;  // GPUs of several workers
  std::string probe_, compute_class_;
  std::string fingerprint_text_;  // of the bits; in manifests and in the slot for good
  std::string join_text_;         // and of what all must have alike now: schedule, steps
  rendezvous::Lineage lineage_;
  std::vector<rendezvous::HeldCheckpoint> offers_;

  Generation generation_;
  Unagreed unagreed_;
  ExitCode exit_ = ExitCode::kFailed;  // of an Ending of kind kError
  bool fatal_ = false;                 // no other round would help
  bool choices_recorded_ = false;
  bool vouched_ = false;      // the held state's digest was agreed in a table
  int64_t agreed_step_ = -1;  // newest (step, digest) seen agreed
  uint64_t agreed_digest_ = 0;
  uint32_t branch_ = 0;
  BestTracker best_;
  int64_t evaluated_step_ = -1;  // newest step whose evaluation this worker knows to be done
  int64_t saved_step_ = -1;      // newest step that was called saved
  storage::CheckpointId saved_id_{0, -1, 0};  // of saved_step_
  bool want_save_ = false;
  int save_failures_ = 0;
  int64_t last_save_ms_ = 0;
  int64_t last_regroup_ms_ = 0, lost_at_ms_ = 0, entered_ms_ = 0;
  double save_stall_ms_ = 0;
  uint32_t adopted_intents_ = 0;  // stop and store-lost, once seen in a table
  int64_t step_started_us_ = 0;
  double train_loss_ = 0, eval_loss_ = 0;
  bool eval_known_ = false;
  std::atomic<int> drain_{0};
  std::atomic<int64_t> drain_since_ms_{0}, joining_since_ms_{0};
  std::atomic<bool> cancel_{false};  // ends waiting in rounds: drain while not in a generation
  std::atomic<int64_t> progress_{0}, stall_ms_{600'000};
};

}  // namespace holdfast
