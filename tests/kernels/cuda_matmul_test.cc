// Matrix products of the CUDA backend: layouts, epilogues, the cut of long sums, and the record of
// choices. The products themselves are those of the stand-in of cuBLASLt.
#include "kernels/cuda/matmul.h"

#include "kernels/math/half.h"
#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/reference/reference.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

struct Case {
  int64_t m, n, k;
  float alpha = 1, beta = 0;
  int64_t more = 0;  // added to each leading dimension
};
constexpr Case kCases[] = {{1, 1, 1},
                           {5, 7, 3},
                           {64, 48, 32},
                           {33, 17, 129, -0.5f, 2.0f},
                           {12, 40, 20, 1, 1, 4},
                           {9, 2, 31, 0.25f, 0, 3},
                           {4, 8, 4096},
                           {6, 12, 2048, 1, 1, 4},
                           {0, 4, 4},
                           {4, 0, 4},
                           {3, 5, 0, 1, 0.5f, 2},
                           {3, 5, 0}};

MatMulShape ShapeOf(const Case& c, bool ta, bool tb) {
  MatMulShape shape{c.m, c.n, c.k, ta, tb};
  if (c.more > 0) {
    shape.lda = (ta ? c.m : c.k) + c.more;
    shape.ldb = (tb ? c.k : c.n) + c.more;
    shape.ldc = c.n + c.more;
  }
  shape.alpha = c.alpha;
  shape.beta = c.beta;
  return shape;
}

int64_t SizeOf(int64_t rows, int64_t dense, int64_t leading) {
  return rows * std::max(dense, leading);
}

// rows x cols out of an array with a leading dimension.
Doubles Dense(const Floats& x, int64_t rows, int64_t cols, int64_t leading) {
  Doubles out;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < cols; ++i) out.push_back(x[r * std::max(cols, leading) + i]);
  }
  return out;
}

Doubles Wanted(const MatMulShape& s, const Floats& a, const Floats& b, const Floats* bias,
               const Floats& c) {
  const Doubles left = s.transpose_a ? Dense(a, s.k, s.m, s.lda) : Dense(a, s.m, s.k, s.lda);
  const Doubles right = s.transpose_b ? Dense(b, s.n, s.k, s.ldb) : Dense(b, s.k, s.n, s.ldb);
  Doubles want = Dense(c, s.m, s.n, s.ldc);
  if (s.beta == 0) want.assign(want.size(), 0.0);
  reference::MatMul(s.m, s.n, s.k, s.transpose_a, s.transpose_b, s.alpha, left, right, s.beta,
                    want);
  for (size_t i = 0; bias != nullptr && i < want.size(); ++i) want[i] += (*bias)[i % s.n];
  return want;
}

Floats ToFloats(const Doubles& x) { return Floats(x.begin(), x.end()); }

template <typename Fn>
void ForAllCases(const Fn& fn) {
  for (const Case& c : kCases) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) fn(ShapeOf(c, ta, tb));
    }
  }
}

struct Inputs {
  Floats a, b, bias, c;
};
Inputs InputsOf(const MatMulShape& s) {
  return {Normal(1, SizeOf(s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k, s.lda)),
          Normal(2, SizeOf(s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n, s.ldb)),
          Normal(3, s.n), Normal(4, SizeOf(s.m, s.n, s.ldc))};
}

// What lies between the rows of c stays.
void ExpectGapsKept(const MatMulShape& s, const Floats& before, const Floats& after) {
  for (int64_t i = 0; i < static_cast<int64_t>(before.size()); ++i) {
    if (s.ldc > s.n && i % s.ldc >= s.n) {
      ASSERT_EQ(before[i], after[i]) << "between rows, at " << i;
    }
  }
}

TEST(CudaMatMul, FloatsWithAllLayouts) {
  ForAllCases([](const MatMulShape& s) {
    const Inputs in = InputsOf(s);
    const Work work = [&](Stream& stream, const Arrays& p) {
      MatMul(stream, s, p.at<float>(0), p.at<float>(1), p.at<float>(2));
    };
    const Memories arrays = {Of(in.a), Of(in.b), Of(in.c)};
    const Doubles want = Wanted(s, in.a, in.b, nullptr, in.c);
    const Floats cpu = As<float>(OnCpu(arrays, work)[2]);
    for (const int64_t shift : {0, 1, 2}) {
      const Floats got = As<float>(OnDevice(arrays, work, {shift})[2]);
      const Floats dense = ToFloats(Dense(got, s.m, s.n, s.ldc));
      EXPECT_LT(NormError(dense, want), 1e-5) << s.m << " " << s.n << " " << s.k;
      EXPECT_LT(NormError(dense, Dense(cpu, s.m, s.n, s.ldc)), 1e-5);
      ExpectGapsKept(s, in.c, got);
    }
  });
}

TEST(CudaMatMul, BiasIsAddedToEachRow) {
  ForAllCases([](MatMulShape s) {
    s.alpha = 1;
    s.beta = 0;
    if (s.ldc > 0) s.ldc = s.n;  // AddBias, the CPU's second step, takes dense rows
    const Inputs in = InputsOf(s);
    const Floats got = As<float>(OnDevice({Of(in.a), Of(in.b), Of(in.bias), Of(in.c)},
                                          [&](Stream& stream, const Arrays& p) {
                                            MatMulBias(stream, s, p.at<float>(0), p.at<float>(1),
                                                       p.at<float>(2), p.at<float>(3));
                                          },
                                          {0})[3]);
    EXPECT_LT(NormError(got, Wanted(s, in.a, in.b, &in.bias, in.c)), 1e-5);
  });
}

TEST(CudaMatMul, HalvesHaveFloatSums) {
  for (const Half half : {Half::kBf16, Half::kF16}) {
    ForAllCases([&](MatMulShape s) {
      s.alpha = 1;
      if (s.beta != 0) s.beta = 1;
      Inputs in = InputsOf(s);
      std::vector<uint16_t> a(in.a.size()), b(in.b.size());
      for (auto [from, to] : {std::pair{&in.a, &a}, std::pair{&in.b, &b}}) {
        for (size_t i = 0; i < from->size(); ++i) {
          (*to)[i] = half == Half::kBf16 ? Bf16Of((*from)[i]) : F16Of((*from)[i]);
          (*from)[i] = half == Half::kBf16 ? FloatOfBf16((*to)[i]) : FloatOfF16((*to)[i]);
        }
      }
      for (const bool with_bias : {false, true}) {
        if (with_bias && s.beta != 0) continue;
        const Floats got =
            As<float>(OnDevice({Of(a), Of(b), Of(in.bias), Of(in.c)},
                               [&](Stream& stream, const Arrays& p) {
                                 ASSERT_TRUE(HalfAvailable(stream, half));
                                 MatMulHalf(stream, half, s, p.at<uint16_t>(0), p.at<uint16_t>(1),
                                            with_bias ? p.at<float>(2) : nullptr, p.at<float>(3));
                               },
                               {0, 1})[3]);
        const Doubles want = Wanted(s, in.a, in.b, with_bias ? &in.bias : nullptr, in.c);
        EXPECT_LT(NormError(ToFloats(Dense(got, s.m, s.n, s.ldc)), want), 1e-5);
        ExpectGapsKept(s, in.c, got);
      }
    });
  }
}

TEST(CudaMatMul, Tf32IsAKindOfItsOwnAndOffAtFirst) {
  const std::unique_ptr<Stream> stream = Gpu().NewStream();
  EXPECT_FALSE(cuda::ToCuda(*stream).allow_tf32);
  AllowTf32(*stream, true);
  EXPECT_TRUE(cuda::ToCuda(*stream).allow_tf32);
  const MatMulShape s{21, 22, 23};
  const Inputs in = InputsOf(s);
  const Floats got =
      As<float>(OnDevice({Of(in.a), Of(in.b), Of(in.c)},
                         [&](Stream& on, const Arrays& p) {
                           AllowTf32(on, true);
                           MatMul(on, s, p.at<float>(0), p.at<float>(1), p.at<float>(2));
                         },
                         {0})[2]);
  EXPECT_LT(NormError(got, Wanted(s, in.a, in.b, nullptr, in.c)), 1e-3);
  EXPECT_THAT(FindCudaBackend().MatMulChoices(Gpu()), ::testing::HasSubstr("\ntf32 nn 21 22 23 "));
}

TEST(CudaMatMul, SameBitsBesideABusyStream) {
  const MatMulShape s{16, 24, 4096, true, false};
  const Inputs in = InputsOf(s);
  Device& device = Gpu();
  const std::unique_ptr<Stream> busy = device.NewStream();
  auto memory = device.Allocate(4096 * 4);
  ASSERT_TRUE(memory.ok());
  Floats first;
  for (int repeat = 0; repeat < 10; ++repeat) {
    for (int i = 0; i < 8; ++i) {
      MatMul(*busy, {.m = 32, .n = 32, .k = 32}, memory->as<float>(), memory->as<float>() + 1024,
             memory->as<float>() + 2048);
    }
    const Floats got =
        As<float>(OnDevice({Of(in.a), Of(in.b), Of(in.c)},
                           [&](Stream& stream, const Arrays& p) {
                             MatMul(stream, s, p.at<float>(0), p.at<float>(1), p.at<float>(2));
                           },
                           {0})[2]);
    if (repeat == 0) first = got;
    EXPECT_EQ(0, std::memcmp(got.data(), first.data(), got.size() * sizeof(float)));
  }
  ASSERT_TRUE(busy->Synchronize(Deadline::After(kWaitMs)).ok());
}

// Gradients of weights of GPT-2 at 16,384 rows leave most of a GPU idle unless they are cut;
// products with many results are not.
TEST(CudaMatMul, LongSumsWithFewResultsAreCut) {
  const auto parts = [](int64_t m, int64_t n, int64_t k) {
    cuda::Product p;
    p.type = cuda::ProductType::kBf16;
    p.m = m, p.n = n, p.k = k;
    return cuda::PartsOf(p);
  };
  EXPECT_EQ(parts(768, 768, 16'384), 4);
  EXPECT_EQ(parts(768, 2304, 16'384), 2);
  EXPECT_EQ(parts(768, 3072, 16'384), 4);
  EXPECT_EQ(parts(16'384, 768, 3072), 1);
  EXPECT_EQ(parts(50'304, 768, 16'384), 1);
  EXPECT_EQ(parts(64, 64, 1000), 1);
  cuda::Product p;
  p.m = p.n = 64, p.k = 16'384;
  EXPECT_EQ(cuda::PartsOf(p), 8);
  p.bias = true;
  EXPECT_EQ(cuda::PartsOf(p), 1);
}

// ---- The record of choices

const cuda::CublasLtTable& Library() {
  auto table = cuda::LoadCublasLt({});
  EXPECT_TRUE(table.ok());
  return **table;
}

std::unique_ptr<cuda::MatMulLibrary> NewLibrary(const cuda::CublasLtTable& table = Library()) {
  auto library = cuda::MatMulLibrary::Create(table, "a GPU, 7 SMs");
  EXPECT_TRUE(library.ok()) << library.status();
  return *std::move(library);
}

// c = a b by `library`, on the device.
Floats Multiply(cuda::MatMulLibrary& library, const MatMulShape& s, const Inputs& in, bool bias) {
  return As<float>(OnDevice({Of(in.a), Of(in.b), Of(in.bias), Of(in.c)},
                            [&](Stream& stream, const Arrays& p) {
                              cuda::Product product;
                              product.m = s.m, product.n = s.n, product.k = s.k;
                              product.lda = s.k, product.ldb = s.n, product.ldc = s.n;
                              library.Run(cuda::ToCuda(stream), product,
                                          {.a = p.at<float>(0),
                                           .b = p.at<float>(1),
                                           .bias = bias ? p.at<float>(2) : nullptr,
                                           .c = p.at<float>(3)});
                            },
                            {0})[3]);
}

TEST(CudaMatMulChoices, AreAdoptedByALaterWorker) {
  const MatMulShape s{8, 12, 16};
  const Inputs in = InputsOf(s);
  const auto first = NewLibrary();
  const Floats want = Multiply(*first, s, in, true);
  (void)Multiply(*first, s, in, false);
  const std::string text = first->Choices();
  EXPECT_THAT(text, ::testing::StartsWith("cuBLASLt " + Library().version + " | a GPU, 7 SMs\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("fp32 nn 8 12 16 16 12 12 fused 16 "));
  EXPECT_THAT(text, ::testing::HasSubstr("fp32 nn 8 12 16 16 12 12 none 16 "));

  const auto second = NewLibrary();
  ASSERT_TRUE(second->Adopt(text).ok()) << second->Adopt(text);
  EXPECT_EQ(second->Choices(), text);
  const Floats got = Multiply(*second, s, in, true);
  EXPECT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(float)));
  EXPECT_EQ(second->Choices(), text);
  EXPECT_TRUE(first->Adopt(text).ok()) << "its own";
}

TEST(CudaMatMulChoices, OfAnotherClassOrDamagedAreRefused) {
  const MatMulShape s{8, 12, 16};
  const auto first = NewLibrary();
  (void)Multiply(*first, s, InputsOf(s), false);
  const std::string text = first->Choices();
  const auto refusal = [&](std::string changed) {
    const auto library = NewLibrary();
    const absl::Status status = library->Adopt(changed);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(library->Choices(), text.substr(0, text.find('\n') + 1)) << "nothing is adopted";
    return std::string(status.message());
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    return changed.replace(changed.find(from), from.size(), to);
  };
  const std::string other = refusal(replaced("7 SMs", "8 SMs"));
  EXPECT_THAT(other, ::testing::HasSubstr("7 SMs"));
  EXPECT_THAT(other, ::testing::HasSubstr("8 SMs"));
  EXPECT_THAT(refusal(text + "fp32 nn 8\n"), ::testing::HasSubstr("fp32 nn 8"));
  (void)refusal(replaced("fp32 nn 8 12", "fp31 nn 8 12"));
  (void)refusal(replaced("fp32 nn 8 12", "fp32 nn -8 12"));
  (void)refusal(text.substr(0, text.size() - 3) + "\n");
  (void)refusal("");
  std::string foreign = text;
  for (size_t i = foreign.size() - 129; i < foreign.size() - 1; ++i) foreign[i] = 'a';
  EXPECT_THAT(refusal(foreign), ::testing::HasSubstr("8 x 12 x 16"));
}

// What the stand-in of the heuristic below does.
int asked = 0;
int refuse_first = 0;
cublasStatus_t Heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                         cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                         cublasLtMatmulPreference_t preference, int most,
                         cublasLtMatmulHeuristicResult_t* results, int* count) {
  if (asked++ < refuse_first) return CUBLAS_STATUS_NOT_SUPPORTED;
  return Library().MatmulAlgoGetHeuristic(handle, operation, a, b, c, d, preference, most, results,
                                          count);
}

TEST(CudaMatMulChoices, TheHeuristicIsAskedOnceForEachKindOfProduct) {
  cuda::CublasLtTable table = Library();
  table.MatmulAlgoGetHeuristic = &Heuristic;
  asked = refuse_first = 0;
  const auto library = NewLibrary(table);
  const MatMulShape s{8, 12, 16};
  for (int i = 0; i < 3; ++i) (void)Multiply(*library, s, InputsOf(s), false);
  EXPECT_EQ(asked, 1);
  (void)Multiply(*library, s, InputsOf(s), true);
  EXPECT_EQ(asked, 2);
}

TEST(CudaMatMulChoices, ABiasThatNoEpilogueTakesIsAddedAfterwards) {
  cuda::CublasLtTable table = Library();
  table.MatmulAlgoGetHeuristic = &Heuristic;
  asked = 0;
  refuse_first = 1;
  const auto library = NewLibrary(table);
  const MatMulShape s{8, 12, 16};
  const Inputs in = InputsOf(s);
  EXPECT_LT(NormError(Multiply(*library, s, in, true), Wanted(s, in.a, in.b, &in.bias, in.c)),
            1e-5);
  EXPECT_THAT(library->Choices(), ::testing::HasSubstr(" separate "));
  EXPECT_EQ(asked, 2);
}

TEST(CudaMatMulChoices, NoAlgorithmAtAllFailsTheStream) {
  cuda::CublasLtTable table = Library();
  table.MatmulAlgoGetHeuristic = &Heuristic;
  asked = 0;
  refuse_first = 99;
  const auto library = NewLibrary(table);
  const std::unique_ptr<Stream> stream = Gpu().NewStream();
  auto memory = Gpu().Allocate(4096);
  ASSERT_TRUE(memory.ok());
  const auto* data = memory->as<float>();
  cuda::Product product;
  product.m = product.n = product.k = product.lda = product.ldb = product.ldc = 8;
  library->Run(cuda::ToCuda(*stream), product,
               {.a = data, .b = data + 64, .c = memory->as<float>() + 128});
  const absl::Status status = stream->Synchronize(Deadline::After(kWaitMs));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("8 x 8 x 8"));
}

}  // namespace
}  // namespace holdfast::kernels
