// Little-endian encoding into and bounded decoding out of byte strings, for frames, records and
// manifests. ByteReader never reads past its end: the first short read makes it fail for good, and
// ok() says so. Not thread-safe.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace holdfast {

static_assert(std::endian::native == std::endian::little,
              "all formats are little-endian and copied as they are");

class ByteWriter {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  // u32 length, then the bytes.
  void PutString(std::string_view text) {
    Put<uint32_t>(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  void PutRaw(const void* data, size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
  }
  const std::string& bytes() const { return bytes_; }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Get() {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    T value{};
    if (!Need(sizeof value)) return value;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::string_view GetRaw(size_t size) {
    if (!Need(size)) return {};
    std::string_view out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return out;
  }
  // Fails also when the announced length is above `limit`.
  std::string GetString(size_t limit = 1 << 20) {
    const uint32_t size = Get<uint32_t>();
    if (size > limit) ok_ = false;
    return ok_ ? std::string(GetRaw(size)) : std::string();
  }
  bool ok() const { return ok_; }
  // True when everything was read and nothing was short.
  bool AtEnd() const { return ok_ && rest_.empty(); }
  size_t left() const { return rest_.size(); }

 private:
  bool Need(size_t size) {
    if (rest_.size() < size) ok_ = false;
    return ok_;
  }
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace holdfast
