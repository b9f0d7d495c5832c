#include "runtime/models/data/window_source.h"

#include <algorithm>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/models/data/permutation.h"

namespace holdfast {
namespace {

// 1003854 -> "1,003,854"
std::string Grouped(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string Files(int64_t n) { return Cat(n, n == 1 ? " file" : " files"); }

// Salt of the shift of an epoch, so that it has nothing to do with the epoch's permutation.
constexpr uint64_t kShiftSalt = 0x8EBC6AF09C88C6E3ull;

}  // namespace

WindowSource::WindowSource(WindowOptions options, TokenStream data)
    : options_(std::move(options)), data_(std::move(data)) {}

absl::StatusOr<std::unique_ptr<WindowSource>> WindowSource::Open(const WindowOptions& options) {
  if (options.context < 1 || options.micro_batches < 1 || options.micro_batch_size < 1) {
    return absl::InvalidArgumentError(
        "context, micro_batches and micro_batch_size must be at least 1");
  }
  HF_ASSIGN_OR_RETURN(TokenStream data,
                      TokenStream::Open(options.data, "data", options.vocab_size, options.limit));
  std::unique_ptr<WindowSource> source(new WindowSource(options, std::move(data)));
  if (!options.eval_data.empty()) {
    HF_ASSIGN_OR_RETURN(TokenStream held,
                        TokenStream::Open(options.eval_data, "eval_data", options.vocab_size));
    if (held.format() != source->data_.format()) {
      return absl::InvalidArgumentError(
          "data and eval_data must be of one kind: both text or both .bin token files");
    }
    source->eval_data_ = std::make_unique<TokenStream>(std::move(held));
  }
  HF_RETURN_IF_ERROR(source->Split());
  return source;
}

absl::Status WindowSource::Split() {
  const int64_t context = options_.context;
  if (eval_data_ != nullptr) {
    train_tokens_ = data_.size();
    eval_tokens_ = eval_data_->size();
    if (eval_tokens_ < context + 1) {
      return absl::InvalidArgumentError(Cat("eval_data: ", Grouped(eval_tokens_),
                                            " tokens are too few: one sequence with context ",
                                            context, " needs ", Grouped(context + 1)));
    }
  } else {
    train_tokens_ = data_.size() * 9 / 10;  // no window crosses: the two parts share no token
    eval_first_ = train_tokens_;
    eval_tokens_ = data_.size() - train_tokens_;
    if (std::min(eval_tokens_, train_tokens_) < context + 1) {
      return absl::InvalidArgumentError(
          Cat("data: ", Grouped(data_.size()),
              options_.limit.none() ? ""
                                    : Cat(" (of ", Grouped(data_.all_tokens()), ", by limit_data)"),
              " tokens are too few: the last tenth is held out and must hold one "
              "sequence, which with context ",
              context, " needs ", Grouped(context * 10 + 1),
              " tokens in all. Give more data, eval_data of its own, or a smaller context"));
    }
  }
  if (train_tokens_ < context + 1) {
    return absl::InvalidArgumentError(Cat("data: ", Grouped(train_tokens_),
                                          " tokens are too few: one sequence with context ",
                                          context, " needs ", Grouped(context + 1)));
  }
  samples_ = (train_tokens_ - 1) / context;
  eval_windows_ = (eval_tokens_ - 1) / context;
  return absl::OkStatus();
}

std::string WindowSource::Fingerprint() const {
  const Hash128& d = data_.digest();
  const Hash128 e = eval_data_ != nullptr ? eval_data_->digest() : Hash128{};
  return Cat(data_.format() == TokenFormat::kText ? "text" : "bin", "-", Hex64(d.high),
             Hex64(d.low), "-", train_tokens_, "+", eval_tokens_, eval_data_ != nullptr ? "-" : "",
             eval_data_ != nullptr ? Cat(Hex64(e.high), Hex64(e.low)) : std::string());
}

std::string WindowSource::Summary() const {
  const std::string held =
      eval_data_ != nullptr
          ? Cat(Grouped(eval_tokens_), " held-out tokens in ", Files(eval_data_->files()))
          : Cat("the last ", Grouped(eval_tokens_), " held out");
  const std::string limit = options_.limit.none()
                                ? ""
                                : Cat(" (limited to the first ", Grouped(data_.size()), " of ",
                                      Grouped(data_.all_tokens()), ")");
  return Cat(Grouped(train_tokens_), " training tokens in ", Files(data_.files()), limit, ", ",
             held, "; ", Grouped(samples_), samples_ == 1 ? " sample" : " samples", " per epoch");
}

int64_t WindowSource::WindowStart(uint64_t seed, int64_t place) const {
  const auto epoch = static_cast<uint64_t>(place / samples_);
  const Permutation permutation = EpochPermutation(static_cast<uint64_t>(samples_), seed, epoch);
  const auto left_over = static_cast<uint64_t>((train_tokens_ - 1) % options_.context);
  const uint64_t shift = Mix64(Mix64(seed ^ kShiftSalt) ^ epoch) % (left_over + 1);
  const uint64_t window = permutation(static_cast<uint64_t>(place % samples_));
  return static_cast<int64_t>(shift) + static_cast<int64_t>(window) * options_.context;
}

absl::StatusOr<Batch> WindowSource::Read(uint64_t seed, int64_t step, int64_t micro_batch) {
  if (step < 0 || micro_batch < 0 || micro_batch >= options_.micro_batches) {
    return absl::InvalidArgumentError(Cat("no micro-batch ", micro_batch, " of step ", step,
                                          " (micro_batches ", options_.micro_batches, ")"));
  }
  const int64_t first = (step * options_.micro_batches + micro_batch) * options_.micro_batch_size;
  std::vector<int64_t> starts(static_cast<size_t>(options_.micro_batch_size));
  for (size_t b = 0; b < starts.size(); ++b) {
    starts[b] = WindowStart(seed, first + static_cast<int64_t>(b));
  }
  return MakeBatch(data_, starts);
}

int64_t WindowSource::eval_batches() const {
  const int64_t all = (eval_windows_ + options_.micro_batch_size - 1) / options_.micro_batch_size;
  return options_.eval_batches > 0 ? std::min(all, options_.eval_batches) : all;
}

absl::StatusOr<Batch> WindowSource::ReadEval(int64_t index) {
  if (index < 0 || index >= eval_batches()) {
    return absl::InvalidArgumentError(
        Cat("no held-out batch ", index, "; there are ", eval_batches()));
  }
  const int64_t first = index * options_.micro_batch_size;
  const int64_t count = std::min(options_.micro_batch_size, eval_windows_ - first);
  std::vector<int64_t> starts(static_cast<size_t>(count));
  for (int64_t b = 0; b < count; ++b) {
    starts[static_cast<size_t>(b)] = eval_first_ + (first + b) * options_.context;
  }
  return MakeBatch(eval_data_ != nullptr ? *eval_data_ : data_, starts);
}

Batch WindowSource::MakeBatch(const TokenStream& stream, const std::vector<int64_t>& starts) const {
  const int64_t rows = static_cast<int64_t>(starts.size()), context = options_.context;
  auto memory = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(2 * rows * context));
  int32_t* tokens = memory->data();
  int32_t* targets = tokens + rows * context;
  for (int64_t b = 0; b < rows; ++b) {
    stream.Copy(starts[static_cast<size_t>(b)], context, tokens + b * context);
    stream.Copy(starts[static_cast<size_t>(b)] + 1, context, targets + b * context);
  }
  Batch batch;
  for (int32_t* data : {tokens, targets}) {
    batch.fields.push_back(Tensor{
        .data = data, .type = Type::kI32, .device = DeviceKind::kCpu, .shape = {rows, context}});
  }
  batch.owner = std::move(memory);
  return batch;
}

}  // namespace holdfast
