#include "runtime/models/data/overfit_source.h"

#include "runtime/base/status.h"

namespace holdfast {
namespace {

class OverfitSource final : public DataSource {
 public:
  OverfitSource(std::unique_ptr<DataSource> source, int64_t micro_batches, int64_t count)
      : source_(std::move(source)), micro_batches_(micro_batches), count_(count) {}

  std::string Fingerprint() const override { return source_->Fingerprint(); }
  std::string Summary() const override {
    return Cat(source_->Summary(), "; overfit: only the first ", count_,
               count_ == 1 ? " micro-batch" : " micro-batches", ", again and again");
  }
  absl::StatusOr<Batch> Read(uint64_t seed, int64_t step, int64_t micro_batch) override {
    if (micro_batch < 0 || micro_batch >= micro_batches_)
      return source_->Read(seed, step, micro_batch);  // it knows how to say what is wrong
    const int64_t number = (step * micro_batches_ + micro_batch) % count_;
    return source_->Read(seed, number / micro_batches_, number % micro_batches_);
  }
  int64_t samples_per_micro_batch() const override { return source_->samples_per_micro_batch(); }
  int64_t tokens_per_micro_batch() const override { return source_->tokens_per_micro_batch(); }
  int64_t eval_batches() const override { return source_->eval_batches(); }
  absl::StatusOr<Batch> ReadEval(int64_t index) override { return source_->ReadEval(index); }

 private:
  const std::unique_ptr<DataSource> source_;
  const int64_t micro_batches_, count_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DataSource>> Overfit(std::unique_ptr<DataSource> source,
                                                    int64_t micro_batches, int64_t count) {
  if (count == 0) return source;
  if (source->streaming()) {
    return absl::InvalidArgumentError(
        "overfit: this data source is a stream, which is read once; --overfit needs one with "
        "random access");
  }
  return std::unique_ptr<DataSource>(new OverfitSource(std::move(source), micro_batches, count));
}

}  // namespace holdfast
