// Compiles every function of kernels/math for the device, unchanged: one small kernel for each.
// Nothing here is run; the CUDA backend itself launches the same functions. It is built wherever
// CUDA is found, so that a function that only a host compiler accepts does not stay unnoticed.
#include "kernels/math/activation.h"
#include "kernels/math/fixed.h"
#include "kernels/math/half.h"
#include "kernels/math/optimizer.h"
#include "kernels/math/philox.h"
#include "kernels/math/scalar.h"

namespace holdfast::kernels {
namespace {

__device__ int64_t Index() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

}  // namespace

__global__ void CheckScalar(int64_t n, const float* x, float* out) {
  const int64_t i = Index();
  if (i >= n) return;
  float sine, cosine;
  SinCosTurn(x[i], &sine, &cosine);
  out[i] = Exp(x[i]) + Log(x[i]) + Tanh(x[i]) + sine + cosine;
}

__global__ void CheckActivation(int64_t n, const float* x, float* out, uint16_t* half) {
  const int64_t i = Index();
  if (i >= n) return;
  const Gelu gelu = Gelu::Of(x[i]);
  const float x_hat = Normalise(x[i], gelu.value, gelu.derivative);
  half[i] = Bf16Of(Relu(x_hat));
  out[i] = LayerNormValue(x_hat, 1.5f, 0.5f) + LayerNormSlope(x[i], x_hat, 0.1f, 0.2f, 0.3f) +
           SoftmaxValue(x[i], 1.0f) + FloatOfBf16(half[i]) + FloatOfF16(F16Of(x_hat));
}

// Integer atomics are free of order; float atomics are not used anywhere.
__global__ void CheckFixed(int64_t n, double scale, int64_t micro_batches, const float* x,
                           unsigned long long* acc, float* back, unsigned long long* flagged) {
  const int64_t i = Index();
  if (i >= n) return;
  int64_t fixed;
  if (!ToFixed(x[i], scale, FixedBound(micro_batches), &fixed)) atomicAdd(flagged, 1ull);
  atomicAdd(acc + i, static_cast<unsigned long long>(fixed));
  back[i] = static_cast<float>(DoubleOfFixed(fixed) * PowerOfTwo(-40));
}

__global__ void CheckRandom(int64_t n, uint64_t key, float keep, float* out) {
  const int64_t i = Index();
  if (i >= n) return;
  const Philox4 words = PhiloxBlock(key, static_cast<uint64_t>(i));
  float first, second;
  NormalPair(words.lane[0], words.lane[1], &first, &second);
  out[i] = words.lane[2] < KeepThreshold(keep) ? first + UniformOf(words.lane[3]) : second;
}

__global__ void CheckOptimizer(int64_t n, AdamWStep adamw, SgdStep sgd, const float* gradient,
                               float* value, float* m, float* v) {
  const int64_t i = Index();
  if (i >= n) return;
  adamw.Apply(gradient[i], value + i, m + i, v + i);
  value[i] = sgd.Apply(gradient[i], value[i]) * static_cast<float>(IntegerPower(0.5, i));
}

}  // namespace holdfast::kernels
