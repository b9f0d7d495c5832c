// The built-in data source: windows of `context` tokens of a long text and, for each token, the one
// that follows it.
//
// Training sample w of an epoch is the window that starts at token  shift + w * context: windows do
// not overlap as targets, so every token is predicted once per epoch (but for the fewer than
// `context` that are left over at the ends; the shift, different in each epoch, moves that
// remainder about). Which sample stands at which place is a keyed permutation of (seed, epoch); the
// place of sample b of micro-batch j of step s is  (s * micro_batches + j) * micro_batch_size + b,
// its epoch the quotient by the number of samples. Nothing is stored; any step can be asked for at
// any time. A micro-batch may straddle two epochs.
//
// Held-out windows do not overlap and are read in order; the last batch may be smaller.
//
// Fields: tokens int32 [B, T], targets int32 [B, T], with target[i] = the token after token[i].
// Immutable: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/models/data/token_stream.h"
#include "runtime/models/model.h"

namespace holdfast {

struct WindowOptions {
  std::vector<std::string> data = {};
  std::vector<std::string> eval_data = {};  // empty: the last tenth of data is held out
  int64_t context = 64;
  int64_t vocab_size = 0;  // 0: 256, for text only
  DataLimit limit = {};    // of data, before the last tenth is held out
  int64_t micro_batches = 1;
  int64_t micro_batch_size = 1;
  int64_t eval_batches = 0;  // the first so many; 0: all
};

class WindowSource final : public DataSource {
 public:
  static absl::StatusOr<std::unique_ptr<WindowSource>> Open(const WindowOptions& options);

  std::string Fingerprint() const override;
  std::string Summary() const override;
  absl::StatusOr<Batch> Read(uint64_t seed, int64_t step, int64_t micro_batch) override;
  int64_t samples_per_micro_batch() const override { return options_.micro_batch_size; }
  int64_t tokens_per_micro_batch() const override {
    return options_.micro_batch_size * options_.context;
  }
  int64_t eval_batches() const override;
  absl::StatusOr<Batch> ReadEval(int64_t index) override;

  int64_t samples_per_epoch() const { return samples_; }
  // First token of the window at `place`, counted from the beginning of the run.
  int64_t WindowStart(uint64_t seed, int64_t place) const;

 private:
  WindowSource(WindowOptions options, TokenStream data);
  absl::Status Split();
  Batch MakeBatch(const TokenStream& stream, const std::vector<int64_t>& starts) const;

  WindowOptions options_;
  TokenStream data_;
  std::unique_ptr<TokenStream> eval_data_;  // null: the end of data_
  int64_t train_tokens_ = 0;                // data_[0, train_tokens_) is trained on
  int64_t samples_ = 0;                     // training windows
  int64_t eval_first_ = 0, eval_tokens_ = 0, eval_windows_ = 0;
};

}  // namespace holdfast
