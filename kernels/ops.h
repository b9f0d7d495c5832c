// The operations that models and the training session are made of. fp32 unless said otherwise,
// row-major, dense unless a leading dimension is given.
//
// Every function puts work on `stream` and may return before it has run: pointers must stay valid,
// and results must not be read, until the stream is synchronised (on an inline stream that is at
// once). No function allocates; scratch is passed in. Inputs and outputs do not overlap unless the
// comment says "may be the same".
//
// Bits: each function is a pure function of its inputs; every reduction has one fixed order; no
// threads inside. The calling compute thread (inline) must have called SetComputeThread(). Results
// are the same for any alignment. Functions marked [HD bits] give the same bits on the CPU and on a
// GPU.
//
// Streams of a GPU: all pointers are device memory, results of functions that return nothing are in
// device memory too, and the calling thread has called Device::BindThread().
//
// "Overwritten" outputs need no initialisation. Sizes are elements. Wrong arguments are programming
// errors: assert.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace holdfast::kernels {

// ---- Matrix products
// -------------------------------------------------------------------------------------------

// c[m,n] = alpha * op(a)[m,k] op(b)[k,n] + beta * c. op transposes where asked: with transpose_a, a
// is stored [k,m]. Leading dimensions 0 mean dense. beta == 0 overwrites c. k == 0 leaves beta * c.
struct MatMulShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  float alpha = 1.0f, beta = 0.0f;
};
void MatMul(Stream& stream, const MatMulShape& shape, const float* a, const float* b, float* c);

// c[m,n] = op(a) op(b) + bias, bias [n] added to each row: alpha is 1, beta 0.
void MatMulBias(Stream& stream, const MatMulShape& shape, const float* a, const float* b,
                const float* bias, float* c);

// Inputs of 16 bits. kBf16: the upper half of an fp32. kF16: IEEE half precision, largest value
// 65,504 (beyond it a rounded value is infinite).
enum class Half : uint8_t { kBf16, kF16 };
// The same with inputs of 16 bits, fp32 sums and fp32 output; alpha must be 1 and beta 0 or 1; bias
// may be null. Only where HalfAvailable: a GPU multiplies both kinds, a CPU bf16 at most
// (AVX-512 BF16, AMX). Elsewhere the same values come from RoundToHalf and MatMul.
[[nodiscard]] bool HalfAvailable(const Stream& stream, Half half);
[[nodiscard]] bool Bf16Available();  // by this CPU
void MatMulHalf(Stream& stream, Half half, const MatMulShape& shape, const uint16_t* a,
                const uint16_t* b, const float* bias, float* c);
// Rounds to nearest even; NaN stays NaN. [HD bits]
void FloatToHalf(Stream& stream, Half half, int64_t n, const float* from, uint16_t* to);
void HalfToFloat(Stream& stream, Half half, int64_t n, const uint16_t* from, float* to);
// out[i] = the float that FloatToHalf and HalfToFloat make of x[i]; may be the same. [HD bits]
void RoundToHalf(Stream& stream, Half half, int64_t n, const float* x, float* out);
// fp32 products may take inputs rounded to TF32 (10 bits of fraction) on this stream: faster on a
// GPU, nothing on a CPU. Off at first.
void AllowTf32(Stream& stream, bool allow);

// ---- Embedding
// -------------------------------------------------------------------------------------------------

struct EmbeddingShape {
  int64_t batch = 0, context = 0, width = 0, vocab = 0;  // rows = batch * context
};
// out[row] = token_table[tokens[row]] + position_table[row % context]. tokens in [0, vocab).
void EmbeddingForward(Stream& stream, const EmbeddingShape& shape, const int32_t* tokens,
                      const float* token_table, const float* position_table, float* out);
// Adds each row of d_out to its row of d_token_table [vocab, width] (rows ascending; the table must
// be initialised, so a tied head's gradient may be there already) and overwrites d_position_table
// [context, width].
void EmbeddingBackward(Stream& stream, const EmbeddingShape& shape, const int32_t* tokens,
                       const float* d_out, float* d_token_table, float* d_position_table);

// ---- Rows x columns
// ----------------------------------------------------------------------------------------------

struct MatrixShape {
  int64_t rows = 0, cols = 0;
};

// out = (x - mean) * rstd * gain + bias, per row; rstd = 1 / sqrt(variance + epsilon). mean, rstd:
// [rows], kept for the backward pass.
struct LayerNormShape {
  int64_t rows = 0, cols = 0;
  float epsilon = 1e-5f;
};
void LayerNormForward(Stream& stream, const LayerNormShape& shape, const float* x,
                      const float* gain, const float* bias, float* out, float* mean, float* rstd);
// d_gain, d_bias [cols] overwritten. dx [rows, cols] overwritten, or added to with add_into_dx; may
// be the same as d_out unless added to.
struct LayerNormGradients {
  float* dx = nullptr;
  float* d_gain = nullptr;
  float* d_bias = nullptr;
  bool add_into_dx = false;
};
void LayerNormBackward(Stream& stream, const LayerNormShape& shape, const float* x,
                       const float* gain, const float* mean, const float* rstd, const float* d_out,
                       const LayerNormGradients& out);

// x[r, c] += bias[c].
void AddBias(Stream& stream, const MatrixShape& shape, const float* bias, float* x);
// d_bias[c] = sum over rows of d_out[r, c]; overwritten. Order: blocks of 64 rows, rows ascending
// inside, blocks ascending.
void BiasGradient(Stream& stream, const MatrixShape& shape, const float* d_out, float* d_bias);
// out = residual + (x + bias). out may be the same as x or residual.
void BiasResidualAdd(Stream& stream, const MatrixShape& shape, const float* x, const float* bias,
                     const float* residual, float* out);
// out = a + b; out may be the same as a or b. [HD bits]
void ResidualAdd(Stream& stream, int64_t n, const float* a, const float* b, float* out);

// u = pre + bias; out = gelu(u), tanh form. `pre` is overwritten with gelu'(u), all that the
// backward pass needs (no tanh is computed twice). pre and out [rows, cols] differ.
void BiasGeluForward(Stream& stream, const MatrixShape& shape, const float* bias, float* pre,
                     float* out);
// d_pre = d_out * derivative, d_bias[c] = sum over rows of d_pre (order as BiasGradient),
// overwritten. d_pre may be the same as d_out or derivative.
void BiasGeluBackward(Stream& stream, const MatrixShape& shape, const float* derivative,
                      const float* d_out, float* d_pre, float* d_bias);

// The same with a result that only products read rounded to 16 bits on its way (FloatToHalf of what
// the functions above write, to the bit), which saves a pass over memory. rounded = FloatToHalf(
// d_out).
void BiasGeluForwardHalf(Stream& stream, Half half, const MatrixShape& shape, const float* bias,
                         float* pre, uint16_t* out);
void BiasGeluBackwardHalf(Stream& stream, Half half, const MatrixShape& shape,
                          const float* derivative, const float* d_out, uint16_t* d_pre,
                          float* d_bias);
void BiasGradientHalf(Stream& stream, Half half, const MatrixShape& shape, const float* d_out,
                      uint16_t* rounded, float* d_bias);

// out = max(x + bias, 0), NaN kept; out may be the same as x. Backward: d_x = out > 0 ? d_out : 0,
// d_bias as above; d_x may be the same as d_out.
void BiasReluForward(Stream& stream, const MatrixShape& shape, const float* bias, const float* x,
                     float* out);
void BiasReluBackward(Stream& stream, const MatrixShape& shape, const float* out,
                      const float* d_out, float* d_x, float* d_bias);

// ---- Dropout and random values: Philox4x32-10 on (key, index)
// ----------------------------------------------------

struct DropoutOptions {
  uint64_t key = 0;    // Random::Key(site)
  float keep = 1.0f;   // probability to keep; 1 copies
  uint64_t first = 0;  // index of element 0
};
// out[i] = keep element first + i ? x[i] / keep : 0. The backward pass is the same function on the
// gradient with the same options: no mask is stored. out may be the same as x. [HD bits]
void Dropout(Stream& stream, const DropoutOptions& options, int64_t n, const float* x, float* out);

struct RandomOptions {
  uint64_t key = 0;
  uint64_t first = 0;  // index of element 0: any split of a tensor gives the same values
};
// out[i] = mean + deviation * N(0,1). [HD bits]
void RandomNormal(Stream& stream, const RandomOptions& options, float mean, float deviation,
                  int64_t n, float* out);
// Uniform in [low, high). [HD bits]
void RandomUniform(Stream& stream, const RandomOptions& options, float low, float high, int64_t n,
                   float* out);

// ---- Attention
// -----------------------------------------------------------------------------------------------------

// Causal multi-head attention on packed qkv [batch, context, 3 * width] (q, k, v; inside each,
// head-major), out [batch, context, width], width = heads * head_dim, scores scaled by 1 /
// sqrt(head_dim). log_sum_exp [batch, heads, context] is kept for the backward pass. Memory is
// linear in context: blocks of 64 x 64 scores, online softmax (Milakov, Gimelshein 2018; Dao et al.
// 2022). Scratch does not depend on batch or heads. head_dim <= 256.
struct AttentionShape {
  int64_t batch = 0, context = 0, heads = 0, head_dim = 0;
  // A GPU rounds the factors of all products inside (q, k, v, weights, gradients) to bf16 and sums
  // in fp32, where head_dim <= 128; the log-sum-exp is that of the rounded factors, so forward and
  // backward pass must agree. The CPU ignores it.
  bool half_products = false;
};
[[nodiscard]] int64_t AttentionScratchBytes(
    const AttentionShape& shape);  // for either direction; 64-byte aligned
void AttentionForward(Stream& stream, const AttentionShape& shape, const float* qkv, float* out,
                      float* log_sum_exp, void* scratch);
// d_qkv [batch, context, 3 * width], overwritten.
void AttentionBackward(Stream& stream, const AttentionShape& shape, const float* qkv,
                       const float* out, const float* log_sum_exp, const float* d_out, float* d_qkv,
                       void* scratch);

// ---- Loss
// --------------------------------------------------------------------------------------------------------

struct LogitsShape {
  int64_t rows = 0, vocab = 0;
  int64_t leading = 0;  // elements from row to row; 0 = vocab
};
// losses[row] = log(sum exp(logits[row])) - logits[row][target]; a negative target is ignored (loss
// 0, gradient 0). logits is overwritten with (softmax - one_hot) * scale; columns vocab..leading-1
// are left alone.
void SoftmaxCrossEntropy(Stream& stream, const LogitsShape& shape, const int32_t* targets,
                         float scale, float* logits, float* losses);
// The same losses (same bits); logits is only read.
void CrossEntropyLoss(Stream& stream, const LogitsShape& shape, const int32_t* targets,
                      const float* logits, float* losses);
// hits[row] = 1 where the first largest logit is the target, else 0 (0 for an ignored row).
void ArgMaxHits(Stream& stream, const LogitsShape& shape, const int32_t* targets,
                const float* logits, float* hits);

// ---- Optimizer [HD bits]
// -------------------------------------------------------------------------------------------

// Decoupled weight decay (Loshchilov, Hutter 2019). g = gradient * gradient_scale (the clip factor;
// 1 = none); m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; value = value (1 - lr *
// decay) - lr / correction1 * m / (sqrt(v) / sqrt(correction2) + epsilon).
struct AdamWOptions {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
  int64_t step =
      1;  // 1 for the first update: gives correction_i = 1 - beta_i^step, computed in double
  float gradient_scale = 1.0f;
};
void AdamW(Stream& stream, const AdamWOptions& options, int64_t n, const float* gradient,
           float* value, float* m, float* v);
// The same with gradient[i] = float(double(sums[i]) * factor): FixedToFloat and AdamW in one pass,
// with their bits.
void AdamWFixed(Stream& stream, const AdamWOptions& options, int64_t n, double factor,
                const int64_t* sums, float* value, float* m, float* v);
struct SgdOptions {
  double learning_rate = 0, weight_decay = 0;
  float gradient_scale = 1.0f;
};
// value -= lr * (gradient * gradient_scale + decay * value)
void Sgd(Stream& stream, const SgdOptions& options, int64_t n, const float* gradient, float* value);

// Sum of squares of each chunk of kNormChunk elements (the last may be short), in double:
// chunks[SquaredNormCount(n)]. The caller adds chunks in index order of the *whole* tensor; a shard
// must start on a chunk border. [HD bits]
inline constexpr int64_t kNormChunk = 4096;
[[nodiscard]] constexpr int64_t SquaredNormCount(int64_t n) {
  return (n + kNormChunk - 1) / kNormChunk;
}
void SquaredNormChunks(Stream& stream, int64_t n, const float* x, double* chunks);

// ---- Order-free sums: fixed point in int64 [HD bits]
// ---------------------------------------------------------------

// value * 2^exponent, rounded to nearest even. In range: |x| * 2^exponent < min(2^51, 2^62 /
// micro_batches), so that the sum over all micro-batches cannot wrap.
struct FixedScale {
  int exponent = 40;          // -200 .. 200
  int64_t micro_batches = 1;  // 1 .. 4096
};
// Added to, never cleared, by the functions below: one record can serve several tensors of one
// micro-batch. An element that is flagged contributes 0. It lies in the stream's memory.
struct FixedFlags {
  int64_t nonfinite = 0;     // NaN or infinite
  int64_t out_of_range = 0;  // finite, but too large for the scale
  float max_abs = 0;         // largest finite |x|
};
// acc[i] += fixed(x[i]), wrapping arithmetic. Not atomic: one thread at a time on one range of acc.
void AccumulateFixed(Stream& stream, const FixedScale& scale, int64_t n, const float* x,
                     int64_t* acc, FixedFlags* flags);
// acc[i] = fixed(x[i]): for the first micro-batch, without a memset.
void StoreFixed(Stream& stream, const FixedScale& scale, int64_t n, const float* x, int64_t* acc,
                FixedFlags* flags);
// out[i] = float(double(acc[i]) * factor); the conversion to double is the hardware's (round to
// nearest).
void FixedToFloat(Stream& stream, int64_t n, double factor, const int64_t* acc, float* out);
// acc[i] += other[i], wrapping.
void AddWords(Stream& stream, int64_t n, const int64_t* other, int64_t* acc);
// *sum = sum of words mod 2^64 (overwritten): linear, so the sums of the parts add up to the sum of
// the whole. `sum` lies in the stream's memory.
void SumWords(Stream& stream, int64_t n, const int64_t* words, uint64_t* sum);
// *digest = DigestWords(words, count, region, first) of runtime/base/digest.h. `words` and `digest`
// lie in the stream's memory.
void Digest(Stream& stream, const void* words, int64_t count, uint64_t region, int64_t first,
            uint64_t* digest);

// Scalars, on the host, at once. Losses and metrics: terms are added in index order in double, then
// converted with kTermsExponent; |sum| < 2^62 / micro_batches / 2^24 (2^26 at 4,096 micro-batches),
// resolution 6e-8.
inline constexpr int kTermsExponent = 24;
[[nodiscard]] double SumTerms(int64_t n, const float* terms);
// False (and *fixed = 0) when x is not finite or out of range.
[[nodiscard]] bool ScalarToFixed(double x, const FixedScale& scale, int64_t* fixed);
[[nodiscard]] double FixedToScalar(int64_t fixed, int exponent);

// ---- `--reduction fast` and plain array work
// -------------------------------------------------------------------------

void AccumulateFloat(Stream& stream, int64_t n, const float* x, float* acc);  // acc += x
void ScaleFloat(Stream& stream, int64_t n, float factor, float* x);           // x *= factor
void Fill(Stream& stream, int64_t n, float value, float* x);
void FillWords(Stream& stream, int64_t n, int64_t value, int64_t* words);
void CopyFloat(Stream& stream, int64_t n, const float* from, float* to);

}  // namespace holdfast::kernels
