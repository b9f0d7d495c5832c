// Plain references in double for every kernel: loops written from the definitions, no blocking, no
// fusing. Their gradients are checked by finite differences in reference_test.cc, and the fp32
// kernels against them.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace holdfast::kernels::reference {

using Vector = std::vector<double>;

// c = alpha op(a) op(b) + beta c, dense.
inline void MatMul(int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b,
                   double alpha, const Vector& a, const Vector& b, double beta, Vector& c) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += a[transpose_a ? l * m + i : i * k + l] * b[transpose_b ? j * k + l : l * n + j];
      }
      c[i * n + j] = alpha * sum + beta * c[i * n + j];
    }
  }
}

inline Vector Embedding(int64_t rows, int64_t context, int64_t width,
                        const std::vector<int32_t>& tokens, const Vector& table,
                        const Vector& positions) {
  Vector out(rows * width);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      out[r * width + i] = table[tokens[r] * width + i] + positions[r % context * width + i];
    }
  }
  return out;
}

inline void EmbeddingGradient(int64_t rows, int64_t context, int64_t width,
                              const std::vector<int32_t>& tokens, const Vector& d_out,
                              Vector& d_table, Vector& d_positions) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      d_table[tokens[r] * width + i] += d_out[r * width + i];
      d_positions[r % context * width + i] += d_out[r * width + i];
    }
  }
}

struct RowMoments {
  double mean = 0, rstd = 0;
};
inline RowMoments MomentsOf(int64_t n, const double* x, double epsilon) {
  RowMoments m;
  for (int64_t i = 0; i < n; ++i) m.mean += x[i] / static_cast<double>(n);
  double variance = 0;
  for (int64_t i = 0; i < n; ++i)
    variance += (x[i] - m.mean) * (x[i] - m.mean) / static_cast<double>(n);
  m.rstd = 1 / std::sqrt(variance + epsilon);
  return m;
}

inline Vector LayerNorm(int64_t rows, int64_t cols, double epsilon, const Vector& x,
                        const Vector& gain, const Vector& bias) {
  Vector out(rows * cols);
  for (int64_t r = 0; r < rows; ++r) {
    const RowMoments m = MomentsOf(cols, &x[r * cols], epsilon);
    for (int64_t i = 0; i < cols; ++i)
      out[r * cols + i] = (x[r * cols + i] - m.mean) * m.rstd * gain[i] + bias[i];
  }
  return out;
}

struct LayerNormGradient {
  Vector dx, d_gain, d_bias;
};
inline LayerNormGradient LayerNormBackward(int64_t rows, int64_t cols, double epsilon,
                                           const Vector& x, const Vector& gain,
                                           const Vector& d_out) {
  LayerNormGradient out{Vector(rows * cols), Vector(cols), Vector(cols)};
  for (int64_t r = 0; r < rows; ++r) {
    const RowMoments m = MomentsOf(cols, &x[r * cols], epsilon);
    double mean_g = 0, mean_gx = 0;
    for (int64_t i = 0; i < cols; ++i) {
      const double x_hat = (x[r * cols + i] - m.mean) * m.rstd, d = d_out[r * cols + i];
      out.d_gain[i] += d * x_hat;
      out.d_bias[i] += d;
      mean_g += d * gain[i] / static_cast<double>(cols);
      mean_gx += d * gain[i] * x_hat / static_cast<double>(cols);
    }
    for (int64_t i = 0; i < cols; ++i) {
      const double x_hat = (x[r * cols + i] - m.mean) * m.rstd;
      out.dx[r * cols + i] = m.rstd * (d_out[r * cols + i] * gain[i] - mean_g - x_hat * mean_gx);
    }
  }
  return out;
}

inline double Gelu(double u) {
  return 0.5 * u * (1 + std::tanh(std::sqrt(2 / M_PI) * (u + 0.044715 * u * u * u)));
}
inline double GeluSlope(double u) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (u + 0.044715 * u * u * u));
  return 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * u * u);
}

struct Attention {
  int64_t batch, context, heads, head_dim;
  int64_t width() const { return heads * head_dim; }
  // part 0, 1, 2 = q, k, v
  int64_t At(int64_t b, int64_t t, int64_t part, int64_t h) const {
    return (b * context + t) * 3 * width() + part * width() + h * head_dim;
  }
  int64_t OutAt(int64_t b, int64_t t, int64_t h) const {
    return (b * context + t) * width() + h * head_dim;
  }

  // Weights of one query over keys 0..t.
  Vector Weights(const Vector& qkv, int64_t b, int64_t h, int64_t t, double* log_sum_exp) const {
    Vector w(t + 1);
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= t; ++j) {
      for (int64_t i = 0; i < head_dim; ++i)
        w[j] += qkv[At(b, t, 0, h) + i] * qkv[At(b, j, 1, h) + i];
      w[j] /= std::sqrt(static_cast<double>(head_dim));
      max = std::max(max, w[j]);
    }
    for (double& x : w) sum += x = std::exp(x - max);
    for (double& x : w) x /= sum;
    *log_sum_exp = max + std::log(sum);
    return w;
  }

  void Forward(const Vector& qkv, Vector& out, Vector& log_sum_exp) const {
    out.assign(batch * context * width(), 0);
    log_sum_exp.assign(batch * heads * context, 0);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t t = 0; t < context; ++t) {
          const Vector w = Weights(qkv, b, h, t, &log_sum_exp[(b * heads + h) * context + t]);
          for (int64_t j = 0; j <= t; ++j) {
            for (int64_t i = 0; i < head_dim; ++i)
              out[OutAt(b, t, h) + i] += w[j] * qkv[At(b, j, 2, h) + i];
          }
        }
      }
    }
  }

  Vector Backward(const Vector& qkv, const Vector& d_out) const {
    Vector d(qkv.size());
    const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t t = 0; t < context; ++t) {
          double unused;
          const Vector w = Weights(qkv, b, h, t, &unused);
          Vector dw(t + 1);
          double delta = 0;
          for (int64_t j = 0; j <= t; ++j) {
            for (int64_t i = 0; i < head_dim; ++i) {
              dw[j] += d_out[OutAt(b, t, h) + i] * qkv[At(b, j, 2, h) + i];
              d[At(b, j, 2, h) + i] += w[j] * d_out[OutAt(b, t, h) + i];
            }
            delta += w[j] * dw[j];
          }
          for (int64_t j = 0; j <= t; ++j) {
            const double ds = w[j] * (dw[j] - delta) * scale;
            for (int64_t i = 0; i < head_dim; ++i) {
              d[At(b, t, 0, h) + i] += ds * qkv[At(b, j, 1, h) + i];
              d[At(b, j, 1, h) + i] += ds * qkv[At(b, t, 0, h) + i];
            }
          }
        }
      }
    }
    return d;
  }
};

// Losses; d_logits (not scaled) where given.
inline Vector CrossEntropy(int64_t rows, int64_t vocab, const std::vector<int32_t>& targets,
                           const Vector& logits, Vector* d_logits) {
  Vector losses(rows);
  if (d_logits != nullptr) d_logits->assign(rows * vocab, 0);
  for (int64_t r = 0; r < rows; ++r) {
    if (targets[r] < 0) continue;
    const double* x = &logits[r * vocab];
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < vocab; ++i) max = std::max(max, x[i]);
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - max);
    losses[r] = std::log(sum) + max - x[targets[r]];
    if (d_logits == nullptr) continue;
    for (int64_t i = 0; i < vocab; ++i) {
      (*d_logits)[r * vocab + i] = std::exp(x[i] - max) / sum - (i == targets[r] ? 1 : 0);
    }
  }
  return losses;
}

struct AdamW {
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  void Apply(int64_t step, double g, double& value, double& m, double& v) const {
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    const double m_hat = m / (1 - std::pow(beta1, step)), v_hat = v / (1 - std::pow(beta2, step));
    value = value * (1 - learning_rate * weight_decay) -
            learning_rate * m_hat / (std::sqrt(v_hat) + epsilon);
  }
};

}  // namespace holdfast::kernels::reference
