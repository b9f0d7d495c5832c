// A folder of a test's own that is gone afterwards, and files in it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::testing_models {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "hf-models-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string Path(const std::string& name) const { return path_ + "/" + name; }

  // Writes a file (and the folders above it) and returns its path.
  std::string Write(const std::string& name, std::string_view bytes) const {
    const std::string path = Path(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path;
  }

 private:
  std::string path_;
};

inline std::string Uint16Bytes(const std::vector<uint16_t>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2};
}

// The header of llm.c's token files.
inline std::string LlmcHeader(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return {reinterpret_cast<const char*>(header.data()), header.size() * 4};
}

// Text in which every byte differs from its neighbours and no long stretch repeats: `size`
// printable bytes.
inline std::string SampleText(size_t size, uint32_t salt = 1) {
  std::string text(size, ' ');
  uint32_t x = 2463534242u ^ (salt * 2654435761u);
  for (char& c : text) {
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    c = static_cast<char>(33 + x % 90);
  }
  return text;
}

}  // namespace holdfast::testing_models
