// Products of the emulated cuBLASLt against sums in double.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>

#include "kernels/math/half.h"
#include "tests/emulation/cublas_lt/matmul.h"
#include "tests/emulation/faults.h"
#include "tests/emulation/nccl_testing.h"

namespace holdfast::emulation {
namespace {

struct Shape {
  int64_t m = 4, n = 3, k = 5;
  bool ta = false, tb = false, row_a = false, row_b = false, row_d = false;
  cudaDataType_t in = CUDA_R_32F, out = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  int64_t padding = 2;
  int32_t batches = 1;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  float alpha = 1, beta = 0;
};

// A matrix on the device, and what it holds.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, bool row_order, cudaDataType_t type, int64_t padding,
         int32_t batches, uint64_t seed)
      : rows_(rows), row_order_(row_order), type_(type), batches_(batches) {
    ld_ = (row_order ? cols : rows) + padding;
    stride_ = ld_ * (row_order ? rows : cols) + 8;
    (void)cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                     static_cast<uint64_t>(cols), ld_);
    const int32_t order = row_order ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
    const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
      EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value),
                CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATRIX_LAYOUT_ORDER, order);
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batches);
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride_);
    std::mt19937_64 random(seed);
    host_.resize(LayoutOf(layout)->elements() * BytesOf(type));
    for (size_t i = 0; i < host_.size() / BytesOf(type); ++i) {
      const float value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
      const uint16_t half = type == CUDA_R_16F ? kernels::F16Of(value) : kernels::Bf16Of(value);
      if (type == CUDA_R_32F) {
        std::memcpy(&host_[4 * i], &value, 4);
      } else {
        std::memcpy(&host_[2 * i], &half, 2);
      }
    }
    (void)cudaMalloc(&device, host_.size());
    (void)cudaMemcpy(device, host_.data(), host_.size(), cudaMemcpyDefault);
  }
  ~Matrix() {
    (void)cublasLtMatrixLayoutDestroy(layout);
    (void)cudaFree(device);
  }
  Matrix(const Matrix&) = delete;

  void Fetch() { (void)cudaMemcpy(host_.data(), device, host_.size(), cudaMemcpyDefault); }
  double at(int32_t batch, int64_t i, int64_t j) const {
    const auto index =
        static_cast<size_t>(batch * stride_ + (row_order_ ? i * ld_ + j : j * ld_ + i));
    if (type_ == CUDA_R_32F) {
      float value = 0;
      std::memcpy(&value, &host_[4 * index], 4);
      return value;
    }
    uint16_t half = 0;
    std::memcpy(&half, &host_[2 * index], 2);
    return type_ == CUDA_R_16F ? kernels::FloatOfF16(half) : kernels::FloatOfBf16(half);
  }
  const std::vector<char>& bytes() const { return host_; }

  cublasLtMatrixLayout_t layout = nullptr;
  char* device = nullptr;

 private:
  const int64_t rows_;
  const bool row_order_;
  const cudaDataType_t type_;
  const int32_t batches_;
  int64_t ld_ = 0, stride_ = 0;
  std::vector<char> host_;
};

class Product {
 public:
  explicit Product(const Shape& shape)
      : s(shape),
        a(s.ta ? s.k : s.m, s.ta ? s.m : s.k, s.row_a, s.in, s.padding, s.batches, 1),
        b(s.tb ? s.n : s.k, s.tb ? s.k : s.n, s.row_b, s.in, s.padding, s.batches, 2),
        c(s.m, s.n, s.row_d, s.out, s.padding, s.batches, 3),
        bias(static_cast<size_t>(std::max(s.m, s.n)), 0.5f),
        aux(static_cast<size_t>((s.m + 1) * s.n), 0.25f),
        workspace(1 << 20) {
    (void)cublasLtCreate(&handle);
    (void)cublasLtMatmulDescCreate(&op, s.compute, CUDA_R_32F);
    Set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{s.ta ? CUBLAS_OP_T : CUBLAS_OP_N});
    Set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{s.tb ? CUBLAS_OP_T : CUBLAS_OP_N});
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, s.epilogue);
    Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(bias.data()));
    Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{CUDA_R_32F});
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(aux.data()));
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.m + 1);
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, int32_t{CUDA_R_32F});
    std::vector<float> values(static_cast<size_t>(std::max(s.m, s.n)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * static_cast<float>(i) - 0.3f;
    bias.Set(values);
  }
  ~Product() {
    (void)cublasLtMatmulDescDestroy(op);
    (void)cublasLtDestroy(handle);
  }

  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(op, attribute, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS);
  }

  std::vector<cublasLtMatmulHeuristicResult_t> Ask(uint32_t mask = CUBLASLT_REDUCTION_SCHEME_MASK,
                                                   uint64_t bytes = 1 << 20,
                                                   uint32_t alignment = 256) {
    cublasLtMatmulPreference_t preference = nullptr;
    (void)cublasLtMatmulPreferenceCreate(&preference);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
                CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, mask);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    std::vector<cublasLtMatmulHeuristicResult_t> results(10);
    int count = 0;
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle, op, a.layout, b.layout, c.layout, c.layout,
                                             preference, 10, results.data(), &count),
              CUBLAS_STATUS_SUCCESS);
    results.resize(static_cast<size_t>(count));
    (void)cublasLtMatmulPreferenceDestroy(preference);
    return results;
  }

  cublasStatus_t Run(const cublasLtMatmulAlgo_t* algo, size_t workspace_bytes = 1 << 20) {
    const cublasStatus_t status = cublasLtMatmul(
        handle, op, &s.alpha, a.device, a.layout, b.device, b.layout, &s.beta, c.device, c.layout,
        c.device, c.layout, algo, workspace.data(), workspace_bytes, stream);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return status;
  }

  double Exact(int32_t batch, int64_t i, int64_t j, double old) const {
    double sum = 0;
    for (int64_t t = 0; t < s.k; ++t) {
      sum += (s.ta ? a.at(batch, t, i) : a.at(batch, i, t)) *
             (s.tb ? b.at(batch, j, t) : b.at(batch, t, j));
    }
    return s.alpha * sum + (s.beta == 0 ? 0 : s.beta * old);
  }

  // Runs, and compares all with `then` of the exact sum.
  template <typename Then>
  void Check(const cublasLtMatmulAlgo_t* algo, double tolerance, Then then) {
    const std::vector<char> before = c.bytes();
    std::vector<double> old;
    for (int32_t batch = 0; batch < s.batches; ++batch) {
      for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j) old.push_back(c.at(batch, i, j));
      }
    }
    ASSERT_EQ(Run(algo), CUBLAS_STATUS_SUCCESS);
    c.Fetch();
    size_t at = 0;
    for (int32_t batch = 0; batch < s.batches; ++batch) {
      for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j) {
          const double right = then(Exact(batch, i, j, old[at++]), i, j);
          ASSERT_NEAR(c.at(batch, i, j), right, tolerance * (1 + std::abs(right)))
              << batch << ", " << i << ", " << j;
        }
      }
    }
  }

  const Shape s;
  Matrix a, b, c;
  DeviceArray<float> bias, aux;
  DeviceArray<char> workspace;
  TestStream stream;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t op = nullptr;
};

double Same(double x, int64_t, int64_t) { return x; }

TEST(CublasLt, EveryOrderTransposeTypeAndAlgorithm) {
  std::set<int> algorithms;
  for (int bits = 0; bits < 32; ++bits) {
    Shape shape;
    shape.ta = bits & 1, shape.tb = bits & 2, shape.row_a = bits & 4, shape.row_b = bits & 8;
    shape.row_d = bits & 16;
    shape.m = 6 + bits % 2, shape.n = 9, shape.k = 530;
    for (const auto& [in, out, tolerance] : {std::tuple{CUDA_R_32F, CUDA_R_32F, 1e-5},
                                             {CUDA_R_16BF, CUDA_R_32F, 1e-5},
                                             {CUDA_R_16F, CUDA_R_32F, 1e-5},
                                             {CUDA_R_16BF, CUDA_R_16BF, 8e-3},
                                             {CUDA_R_16F, CUDA_R_16F, 1e-3}}) {
      shape.in = in, shape.out = out;
      shape.alpha = bits % 3 == 0 ? 1.0f : 0.5f;
      shape.beta = bits % 3 == 1 ? 1.0f : 0.0f;
      shape.batches = bits % 5 == 0 ? 3 : 1;
      Product probe(shape);
      for (const auto& result : probe.Ask()) {
        int32_t id = 0;
        EXPECT_EQ(cublasLtMatmulAlgoConfigGetAttribute(&result.algo, CUBLASLT_ALGO_CONFIG_ID, &id,
                                                       sizeof id, nullptr),
                  CUBLAS_STATUS_SUCCESS);
        algorithms.insert(id);
        Product product(shape);
        product.Check(&result.algo, tolerance, Same);
      }
    }
  }
  EXPECT_EQ(algorithms.size(), 4u);
}

TEST(CublasLt, Tf32RoundsItsInputs) {
  Shape shape;
  shape.k = 64;
  Product exact(shape), coarse([&] {
    Shape tf32 = shape;
    tf32.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    return tf32;
  }());
  exact.Check(nullptr, 1e-6, Same);
  coarse.Check(nullptr, 3e-3, Same);
  EXPECT_NE(exact.c.bytes(), coarse.c.bytes());
}

TEST(CublasLt, Epilogues) {
  const auto bias = [](int64_t i) { return 0.1 * static_cast<double>(i) - 0.3; };
  const auto gelu = [](double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  };
  for (const bool row_order : {false, true}) {
    Shape shape;
    shape.row_d = row_order;
    const auto check = [&](uint32_t epilogue, auto then) {
      shape.epilogue = epilogue;
      Product product(shape);
      product.Check(nullptr, 1e-5, then);
      return product.aux.Get();
    };
    check(CUBLASLT_EPILOGUE_BIAS, [&](double x, int64_t i, int64_t) { return x + bias(i); });
    check(CUBLASLT_EPILOGUE_RELU_BIAS,
          [&](double x, int64_t i, int64_t) { return std::max(x + bias(i), 0.0); });
    check(CUBLASLT_EPILOGUE_GELU, [&](double x, int64_t, int64_t) { return gelu(x); });
    if (row_order) continue;  // the auxiliary matrix below is in column order
    std::vector<double> before;
    const auto aux = check(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, [&](double x, int64_t i, int64_t) {
      before.push_back(x + bias(i));
      return gelu(x + bias(i));
    });
    for (int64_t i = 0; i < shape.m; ++i) {
      for (int64_t j = 0; j < shape.n; ++j) {
        EXPECT_NEAR(aux[static_cast<size_t>(j * (shape.m + 1) + i)],
                    before[static_cast<size_t>(i * shape.n + j)], 1e-5);
      }
    }
    const double h = 1e-4, slope = (gelu(0.25 + h) - gelu(0.25 - h)) / (2 * h);
    check(CUBLASLT_EPILOGUE_DGELU, [&](double x, int64_t, int64_t) { return x * slope; });
  }
}

TEST(CublasLt, BiasGradientsAreSumsOfAFactor) {
  for (const uint32_t epilogue : {CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
    Shape shape;
    shape.epilogue = epilogue;
    shape.ta = true;
    Product product(shape);
    product.Check(nullptr, 1e-5, Same);
    const auto got = product.bias.Get();
    const bool of_a = epilogue == CUBLASLT_EPILOGUE_BGRADA;
    for (int64_t i = 0; i < (of_a ? shape.m : shape.n); ++i) {
      double sum = 0;
      for (int64_t t = 0; t < shape.k; ++t)
        sum += of_a ? product.a.at(0, t, i) : product.b.at(0, t, i);
      EXPECT_NEAR(got[static_cast<size_t>(i)], sum, 1e-5);
    }
  }
}

TEST(CublasLt, AlgorithmsDifferInBitsAndRepeatTheirOwn) {
  Shape shape;
  shape.m = 16, shape.n = 16, shape.k = 2048;
  std::set<std::vector<char>> results;
  Product probe(shape);
  const auto offered = probe.Ask();
  ASSERT_EQ(offered.size(), 4u);
  for (const auto& result : offered) {
    std::vector<char> first;
    for (int repeat = 0; repeat < 3; ++repeat) {
      Product product(shape);
      ASSERT_EQ(product.Run(&result.algo), CUBLAS_STATUS_SUCCESS);
      product.c.Fetch();
      if (repeat == 0) first = product.c.bytes();
      EXPECT_EQ(product.c.bytes(), first);
    }
    results.insert(first);
  }
  EXPECT_EQ(results.size(), offered.size());
}

TEST(CublasLt, PreferencesAreKept) {
  Shape shape;
  shape.m = 16, shape.n = 16, shape.k = 2048;
  Product product(shape);
  const auto schemes = [&](const auto& results) {
    std::set<int32_t> all;
    for (const auto& result : results) {
      int32_t scheme = 0;
      (void)cublasLtMatmulAlgoConfigGetAttribute(
          &result.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, nullptr);
      all.insert(scheme);
    }
    return all;
  };
  EXPECT_EQ(schemes(product.Ask()), (std::set<int32_t>{0, 2}));
  EXPECT_EQ(schemes(product.Ask(CUBLASLT_REDUCTION_SCHEME_NONE)), std::set<int32_t>{0});
  for (const auto& result : product.Ask(CUBLASLT_REDUCTION_SCHEME_MASK, 0))
    EXPECT_EQ(result.workspaceSize, 0u);
  EXPECT_EQ(product.Ask(CUBLASLT_REDUCTION_SCHEME_NONE, 1 << 20, 4).size(), 2u);
}

TEST(CublasLt, AnAlgorithmOfSomethingElseIsRefused) {
  Shape shape;
  shape.k = 600;
  Product product(shape);
  const auto offered = product.Ask(CUBLASLT_REDUCTION_SCHEME_NONE);
  const auto check = [&](const cublasLtMatmulAlgo_t& algo, Product& with) {
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoCheck(with.handle, with.op, with.a.layout, with.b.layout,
                                   with.c.layout, with.c.layout, &algo, &result);
  };
  EXPECT_EQ(check(offered[0].algo, product), CUBLAS_STATUS_SUCCESS);
  for (size_t byte = 0; byte < 40; ++byte) {
    cublasLtMatmulAlgo_t damaged = offered[0].algo;
    reinterpret_cast<char*>(&damaged)[byte] ^= 4;
    EXPECT_EQ(check(damaged, product), CUBLAS_STATUS_NOT_SUPPORTED) << byte;
    EXPECT_EQ(product.Run(&damaged), CUBLAS_STATUS_NOT_SUPPORTED);
  }
  Shape other = shape;
  other.in = CUDA_R_16BF;
  Product narrow(other);
  EXPECT_EQ(check(offered[0].algo, narrow), CUBLAS_STATUS_NOT_SUPPORTED);
  // One that wants a workspace, without it.
  ASSERT_GT(offered[0].workspaceSize, 0u);
  EXPECT_EQ(product.Run(&offered[0].algo, offered[0].workspaceSize - 1),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST(CublasLt, TheWorkspaceIsWrittenInStreamOrder) {
  Product product(Shape{});
  product.workspace.Set(std::vector<char>(1 << 20, 1));
  ASSERT_EQ(product.Run(nullptr), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(product.workspace.Get()[0], static_cast<char>(0xff));
}

TEST(CublasLt, WhatDoesNotFitIsRefused) {
  Product product(Shape{});
  const auto run = [&](const Product& a, const Product& d, char* to) {
    return cublasLtMatmul(product.handle, product.op, &product.s.alpha, a.a.device, a.a.layout,
                          product.b.device, product.b.layout, &product.s.beta, to, d.c.layout, to,
                          d.c.layout, nullptr, nullptr, 0, product.stream);
  };
  EXPECT_EQ(run(product, product, product.c.device), CUBLAS_STATUS_SUCCESS);
  Shape longer;
  longer.k = 6;
  EXPECT_EQ(run(Product(longer), product, product.c.device), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(product, product, product.c.device + 4), CUBLAS_STATUS_INVALID_VALUE)
      << "it would write behind its memory";
  Shape mixed;
  mixed.in = CUDA_R_16BF;
  EXPECT_EQ(run(Product(mixed), product, product.c.device), CUBLAS_STATUS_NOT_SUPPORTED);
  int32_t wrong = 1;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(product.op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &wrong,
                                           sizeof wrong),
            CUBLAS_STATUS_INVALID_VALUE)
      << "an attribute of another size";
  EXPECT_EQ(cudaStreamSynchronize(product.stream), cudaSuccess);
}

#if defined(__SANITIZE_THREAD__)
TEST(CublasLt, AForgottenWaitIsARace) {
  const int forgotten = RunChild({{"FORGET", "1"}}, "Child.ProductAfterWork");
  ASSERT_TRUE(WIFEXITED(forgotten));
  EXPECT_EQ(WEXITSTATUS(forgotten), 66) << "ThreadSanitizer's own code for a race";
  EXPECT_EQ(RunChild({}, "Child.ProductAfterWork"), 0);
}
TEST(Child, ProductAfterWork) {
  if (!IsChild()) return;
  Product product(Shape{});
  const TestStream other;
  const TestEvent event;
  Enqueue(other, [a = product.a.device] { *a = 1; });
  ASSERT_EQ(cudaEventRecord(event, other), cudaSuccess);
  if (std::getenv("FORGET") == nullptr) {
    ASSERT_EQ(cudaStreamWaitEvent(product.stream, event), cudaSuccess);
  }
  ASSERT_EQ(product.Run(nullptr), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
}
#endif

TEST(CublasLt, AFailedLaunchIsAFailedProduct) {
  Product product(Shape{});
  ASSERT_TRUE(SetFaults("cuda.launch.error").ok());
  EXPECT_EQ(product.Run(nullptr), CUBLAS_STATUS_EXECUTION_FAILED);
  ASSERT_TRUE(SetFaults("").ok());
}

}  // namespace
}  // namespace holdfast::emulation
