// A choice as text: type, transpositions, sizes, leading dimensions, bias, alignment, workspace and
// the 64 bytes of the algorithm, which only cuBLASLt can read.
#include <array>
#include <charconv>
#include <cstring>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "kernels/cuda/matmul.h"
#include "runtime/base/text.h"

namespace holdfast::kernels::cuda {
namespace {

constexpr std::array<const char*, 4> kTypes = {"fp32", "tf32", "bf16", "fp16"};
constexpr std::array<const char*, 3> kBiases = {"none", "fused", "separate"};
constexpr size_t kWords = 12;

template <size_t kCount>
int IndexOf(const std::array<const char*, kCount>& names, const std::string& word) {
  for (size_t i = 0; i < kCount; ++i) {
    if (word == names[i]) return static_cast<int>(i);
  }
  return -1;
}

bool ParseCount(const std::string& word, int64_t* value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *value);
  return error == std::errc() && end == word.data() + word.size() && *value >= 0;
}

bool ParseAlgorithm(const std::string& word, cublasLtMatmulAlgo_t* algorithm) {
  const bool hex = word.size() == 2 * sizeof *algorithm &&
                   word.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (hex) std::memcpy(algorithm, absl::HexStringToBytes(word).data(), sizeof *algorithm);
  return hex;
}

}  // namespace

std::string ChoiceText(const Product& p, const Choice& choice) {
  const char* bias = !p.bias ? kBiases[0] : choice.separate_bias ? kBiases[2] : kBiases[1];
  const absl::string_view bytes(reinterpret_cast<const char*>(&choice.algorithm),
                                sizeof choice.algorithm);
  return Cat(kTypes[static_cast<size_t>(p.type)], " ", p.transpose_a ? "t" : "n",
             p.transpose_b ? "t" : "n", " ", p.m, " ", p.n, " ", p.k, " ", p.lda, " ", p.ldb, " ",
             p.ldc, " ", bias, " ", p.alignment, " ", choice.workspace_bytes, " ",
             absl::BytesToHexString(bytes));
}

absl::StatusOr<std::pair<Product, Choice>> ParseChoice(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  std::pair<Product, Choice> read;
  auto& [p, choice] = read;
  int64_t alignment = 0;
  bool good = words.size() == kWords;
  if (good) {
    const int type = IndexOf(kTypes, words[0]), bias = IndexOf(kBiases, words[8]);
    const std::string& transposed = words[1];
    good = type >= 0 && bias >= 0 && transposed.size() == 2 &&
           transposed.find_first_not_of("nt") == std::string::npos && ParseCount(words[2], &p.m) &&
           ParseCount(words[3], &p.n) && ParseCount(words[4], &p.k) &&
           ParseCount(words[5], &p.lda) && ParseCount(words[6], &p.ldb) &&
           ParseCount(words[7], &p.ldc) && ParseCount(words[9], &alignment) && alignment <= 16 &&
           ParseCount(words[10], &choice.workspace_bytes) &&
           ParseAlgorithm(words[11], &choice.algorithm) && p.m > 0 && p.n > 0 && p.k > 0 &&
           alignment > 0;
    if (good) {
      p.type = static_cast<ProductType>(type);
      p.transpose_a = transposed[0] == 't';
      p.transpose_b = transposed[1] == 't';
      p.bias = bias != 0;
      choice.separate_bias = bias == 2;
      p.alignment = static_cast<int>(alignment);
    }
  }
  if (!good) {
    return absl::InvalidArgumentError(Cat(
        "the run's record of matrix products has a line that is none: '", line.substr(0, 80), "'"));
  }
  return read;
}

}  // namespace holdfast::kernels::cuda
