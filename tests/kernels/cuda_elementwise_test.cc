// Elementwise operations, conversions and random values of the CUDA backend, against the CPU: the
// same functors in the same order, so the same bits, also where ops.h does not promise them.
#include <cmath>
#include <limits>

#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/reference/reference.h"

namespace holdfast::kernels {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

constexpr int64_t kSizes[] = {0, 1, 3, 4, 255, 1024, 4099};
// Rows and columns: empty, one, odd, a multiple of four, more than a block of threads, more than
// one block of 64 rows.
constexpr MatrixShape kShapes[] = {{0, 5},   {3, 0},      {1, 1},   {7, 3},
                                   {65, 12}, {130, 1030}, {3, 2052}};

Floats Special() {
  const float infinity = std::numeric_limits<float>::infinity();
  Floats x = {0.0f,     -0.0f,   infinity, -infinity,   std::nanf(""), 65504.0f, 65519.9f,
              65520.0f, 1e-40f,  -1e-45f,  3.0e38f,     6.1e-5f,       5.9e-8f,  2.9e-8f,
              1.0f,     1.0009f, -1e30f,   1.00390625f, 1.01171875f};
  const Floats more = Normal(5, 1000, 1e3f);
  x.insert(x.end(), more.begin(), more.end());
  return x;
}

TEST(CudaElementwise, ArraysOfEverySize) {
  for (const int64_t n : kSizes) {
    const Memories abc = {Of(Normal(1, n)), Of(Normal(2, n)), Of(Normal(3, n))};
    ExpectSameAsCpu(abc, [n](Stream& s, const Arrays& p) {
      ResidualAdd(s, n, p.at<float>(0), p.at<float>(1), p.at<float>(2));
      ResidualAdd(s, n, p.at<float>(0), p.at<float>(1), p.at<float>(0));  // in place
      AccumulateFloat(s, n, p.at<float>(1), p.at<float>(2));
      ScaleFloat(s, n, 1.7f, p.at<float>(1));
    });
    ExpectSameAsCpu(abc, [n](Stream& s, const Arrays& p) {
      Fill(s, n, -2.5f, p.at<float>(0));
      CopyFloat(s, n, p.at<float>(1), p.at<float>(2));
    });
    ExpectSameAsCpu({Of(std::vector<int64_t>(n, 1))}, [n](Stream& s, const Arrays& p) {
      FillWords(s, n, INT64_MIN + 3, p.at<int64_t>(0));
    });
  }
}

TEST(CudaElementwise, RowsWithABias) {
  for (const MatrixShape& shape : kShapes) {
    const int64_t n = shape.rows * shape.cols;
    const Memories arrays = {Of(Normal(1, n)), Of(Normal(2, shape.cols)), Of(Normal(3, n)),
                             Of(Normal(4, n))};
    ExpectSameAsCpu(arrays, [&](Stream& s, const Arrays& p) {
      AddBias(s, shape, p.at<float>(1), p.at<float>(0));
      BiasResidualAdd(s, shape, p.at<float>(0), p.at<float>(1), p.at<float>(2), p.at<float>(3));
      BiasResidualAdd(s, shape, p.at<float>(0), p.at<float>(1), p.at<float>(2), p.at<float>(2));
    });
    ExpectSameAsCpu(arrays, [&](Stream& s, const Arrays& p) {
      BiasGeluForward(s, shape, p.at<float>(1), p.at<float>(0), p.at<float>(3));
      BiasReluForward(s, shape, p.at<float>(1), p.at<float>(2), p.at<float>(2));
    });
  }
}

TEST(CudaElementwise, ColumnSumsAddInTheCpusOrder) {
  for (const MatrixShape& shape : kShapes) {
    const int64_t n = shape.rows * shape.cols;
    const Memories arrays = {Of(Normal(1, n)), Of(Normal(2, n)), Of(Floats(n, 9.0f)),
                             Of(Floats(shape.cols, 9.0f))};
    ExpectSameAsCpu(arrays, [&](Stream& s, const Arrays& p) {
      BiasGradient(s, shape, p.at<float>(0), p.at<float>(3));
    });
    ExpectSameAsCpu(arrays, [&](Stream& s, const Arrays& p) {
      BiasGeluBackward(s, shape, p.at<float>(0), p.at<float>(1), p.at<float>(2), p.at<float>(3));
    });
    ExpectSameAsCpu(arrays, [&](Stream& s, const Arrays& p) {  // d_x over d_out
      BiasReluBackward(s, shape, p.at<float>(0), p.at<float>(1), p.at<float>(1), p.at<float>(3));
    });
  }
}

TEST(CudaElementwise, ResultsRoundedOnTheirWay) {
  for (const Half half : {Half::kBf16, Half::kF16}) {
    for (const MatrixShape& shape : kShapes) {
      const int64_t n = shape.rows * shape.cols;
      const Memories arrays = {Of(Normal(1, n)), Of(Normal(2, n)), Of(std::vector<uint16_t>(n, 9)),
                               Of(Normal(3, shape.cols))};
      ExpectSameAsCpu(arrays, [&](Stream& s, const Arrays& p) {
        BiasGeluForwardHalf(s, half, shape, p.at<float>(3), p.at<float>(0), p.at<uint16_t>(2));
      });
      ExpectSameAsCpu(arrays, [&](Stream& s, const Arrays& p) {
        BiasGeluBackwardHalf(s, half, shape, p.at<float>(0), p.at<float>(1), p.at<uint16_t>(2),
                             p.at<float>(3));
      });
      ExpectSameAsCpu(arrays, [&](Stream& s, const Arrays& p) {
        BiasGradientHalf(s, half, shape, p.at<float>(1), p.at<uint16_t>(2), p.at<float>(3));
      });
    }
  }
}

// The bits are the CPU's, and the CPU's are near the definition: here in one line, without it.
TEST(CudaElementwise, GeluAndItsSlopeFollowTheDefinition) {
  const MatrixShape shape{33, 68};
  const int64_t n = shape.rows * shape.cols;
  const Floats x = Normal(1, n, 2.0f), bias = Normal(2, shape.cols);
  const Memories got =
      OnDevice({Of(x), Of(bias), Of(Floats(n))},
               [&](Stream& s, const Arrays& p) {
                 BiasGeluForward(s, shape, p.at<float>(1), p.at<float>(0), p.at<float>(2));
               },
               {0});
  Doubles value(n), slope(n);
  for (int64_t i = 0; i < n; ++i) {
    const double u = static_cast<double>(x[i]) + bias[i % shape.cols];
    value[i] = reference::Gelu(u);
    slope[i] = reference::GeluSlope(u);
  }
  EXPECT_LT(NormError(As<float>(got[2]), value), 1e-6);
  EXPECT_LT(NormError(As<float>(got[0]), slope), 1e-6);
}

TEST(CudaHalf, ConvertsAsTheCpuDoes) {
  const Floats x = Special();
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> every(65'536);
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<uint16_t>(i);
  for (const Half half : {Half::kBf16, Half::kF16}) {
    const std::vector<uint16_t> halves(n, 7);
    ExpectSameAsCpu({Of(x), Of(halves), Of(Floats(n))}, [&](Stream& s, const Arrays& p) {
      FloatToHalf(s, half, n, p.at<float>(0), p.at<uint16_t>(1));
      RoundToHalf(s, half, n, p.at<float>(0), p.at<float>(2));
      RoundToHalf(s, half, n, p.at<float>(0), p.at<float>(0));
    });
    ExpectSameAsCpu({Of(every), Of(Floats(every.size()))}, [&](Stream& s, const Arrays& p) {
      HalfToFloat(s, half, 65'536, p.at<uint16_t>(0), p.at<float>(1));
    });
    for (const int64_t few : kSizes) {
      const int64_t most = std::min(few, n);
      ExpectSameAsCpu({Of(Floats(&x[0], &x[0] + most)), Of(std::vector<uint16_t>(most))},
                      [&](Stream& s, const Arrays& p) {
                        FloatToHalf(s, half, most, p.at<float>(0), p.at<uint16_t>(1));
                      });
    }
  }
}

TEST(CudaRandom, AnyPartOfAStreamOfValues) {
  for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{6}, uint64_t{1} << 40}) {
    for (const int64_t n : kSizes) {
      ExpectSameAsCpu({Of(Normal(1, n)), Of(Floats(n))}, [&](Stream& s, const Arrays& p) {
        Dropout(s, {.key = 77, .keep = 0.8f, .first = first}, n, p.at<float>(0), p.at<float>(1));
        Dropout(s, {.key = 78, .keep = 0.5f, .first = first}, n, p.at<float>(0), p.at<float>(0));
      });
      ExpectSameAsCpu({Of(Floats(n)), Of(Floats(n))}, [&](Stream& s, const Arrays& p) {
        RandomNormal(s, {.key = 3, .first = first}, 0.5f, 0.02f, n, p.at<float>(0));
        RandomUniform(s, {.key = 4, .first = first}, -1.0f, 3.0f, n, p.at<float>(1));
      });
    }
  }
}

}  // namespace
}  // namespace holdfast::kernels
