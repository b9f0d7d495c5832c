// Matrix products by cuBLASLt, with the same bits on every run: the heuristic is asked once for
// each kind of product (never a clock), with the reduction scheme NONE, so that no sum depends on
// which block comes first; the algorithm it names is kept, exported with the run and adopted by
// later workers. Each stream has a workspace of its own.
//
// Products with few results and a long sum (gradients of weights: 768 x 768 results, 16,384 terms)
// leave most of a GPU idle if one block makes one tile. They are cut along the sum into parts, a
// function of the shape alone, that run as one batch; the parts are added in ascending order.
//
// Threads: any; a stream by one thread at a time.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/library.h"
#include "kernels/ops.h"

namespace holdfast::kernels::cuda {

enum class ProductType : uint8_t { kFloat, kTf32, kBf16, kF16 };

// All that an algorithm is chosen by. c[m,n] = op(a) op(b), row-major, leading dimensions as given.
struct Product {
  ProductType type = ProductType::kFloat;
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;
  bool bias = false;
  int alignment = 16;  // of the worst of the pointers, in bytes, 16 at most
  friend auto operator<=>(const Product&, const Product&) = default;
};

// Into how many parts the sum over k is cut: 1, 2, 4 or 8.
[[nodiscard]] int PartsOf(const Product& product);

struct Choice {
  cublasLtMatmulAlgo_t algorithm = {};
  int64_t workspace_bytes = 0;
  bool separate_bias = false;  // cuBLASLt has none with the bias in its epilogue
};

// One line of text for one choice, and back; kInvalidArgument for what is none.
[[nodiscard]] std::string ChoiceText(const Product& product, const Choice& choice);
[[nodiscard]] absl::StatusOr<std::pair<Product, Choice>> ParseChoice(const std::string& line);

struct ProductData {
  const void *a = nullptr, *b = nullptr;
  const float* bias = nullptr;
  float* c = nullptr;
  float alpha = 1, beta = 0;
};

class MatMulLibrary {
 public:
  // compute_class: the GPU's model, SM count and architecture, on which choices depend, too.
  static absl::StatusOr<std::unique_ptr<MatMulLibrary>> Create(const CublasLtTable& table,
                                                               const std::string& compute_class);
  ~MatMulLibrary();

  // product.bias and product.alignment are filled in from `data`.
  void Run(CudaStream& stream, Product product, const ProductData& data);

  // See CudaBackend. The first line names the library's version and the compute class.
  [[nodiscard]] std::string Choices() const;
  [[nodiscard]] absl::Status Adopt(const std::string& text);

 private:
  MatMulLibrary(const CublasLtTable& table, std::string header)
      : table_(table), header_(std::move(header)) {}
  absl::StatusOr<Choice> ChoiceOf(const Product& product, const float* bias);
  absl::StatusOr<Choice> AskHeuristic(const Product& product, const float* bias);
  absl::Status Multiply(CudaStream& stream, const Product& product, const Choice& choice,
                        const ProductData& data);

  const CublasLtTable& table_;
  const std::string header_;
  cublasLtHandle_t handle_ = nullptr;
  mutable std::mutex mutex_;
  std::map<Product, Choice> choices_;
};

// c[m,n] (leading dimension ldc) = beta * c; beta 0 makes zeros.
void ScaleRows(Stream& stream, const Product& product, float beta, float* c);
// c = (add ? c : 0) + the parts, dense [m,n] each, one behind the other, ascending.
void SumParts(Stream& stream, const Product& product, int parts, bool add, const float* partial,
              float* c);
// c[r, i] += bias[i], rows of ldc.
void AddBiasRows(Stream& stream, const Product& product, const float* bias, float* c);

}  // namespace holdfast::kernels::cuda
