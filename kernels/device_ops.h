// The operations of a backend other than the CPU: one function for each operation of ops.h, with
// its signature and its contract. ops.h calls these when the stream has them (Stream::ops()).
#pragma once

#include "kernels/ops.h"

namespace holdfast::kernels {

// Every operation of ops.h that works on a stream, by name.
// clang-format off
#define HOLDFAST_DEVICE_OPS(X) \
  X(MatMul) X(MatMulBias) X(HalfAvailable) X(MatMulHalf) X(FloatToHalf) X(HalfToFloat) \
  X(RoundToHalf) X(AllowTf32) X(EmbeddingForward) X(EmbeddingBackward) X(LayerNormForward) \
  X(LayerNormBackward) X(AddBias) X(BiasGradient) X(BiasResidualAdd) X(ResidualAdd) \
  X(BiasGeluForward) X(BiasGeluBackward) X(BiasGeluForwardHalf) X(BiasGeluBackwardHalf) \
  X(BiasGradientHalf) X(BiasReluForward) X(BiasReluBackward) X(Dropout) X(RandomNormal) \
  X(RandomUniform) X(AttentionForward) X(AttentionBackward) X(SoftmaxCrossEntropy) \
  X(CrossEntropyLoss) X(ArgMaxHits) X(AdamW) X(AdamWFixed) X(Sgd) X(SquaredNormChunks) \
  X(AccumulateFixed) X(StoreFixed) X(FixedToFloat) X(AddWords) X(SumWords) X(Digest) \
  X(AccumulateFloat) X(ScaleFloat) X(Fill) X(FillWords) X(CopyFloat)
// clang-format on

struct DeviceOps {
#define HOLDFAST_DEVICE_OP(name) decltype(&kernels::name) name = nullptr;
  HOLDFAST_DEVICE_OPS(HOLDFAST_DEVICE_OP)
#undef HOLDFAST_DEVICE_OP
};

}  // namespace holdfast::kernels
