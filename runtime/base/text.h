// The distribution's Abseil has a string_view of its own that std::string_view does not convert to.
// Cat is absl::StrCat that takes both; View and StdView convert between the two.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace holdfast {

inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view StdView(absl::string_view text) { return {text.data(), text.size()}; }

namespace internal {
template <typename T>
decltype(auto) CatArgument(const T& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return absl::string_view(value.data(), value.size());
  } else {
    return (value);
  }
}
}  // namespace internal

// Cat("step ", 7, ": ", text)
template <typename... Args>
[[nodiscard]] std::string Cat(const Args&... args) {
  return absl::StrCat(internal::CatArgument(args)...);
}

}  // namespace holdfast
