// As much of fmt as base/, kernels/, kv/ and model/ need, for a machine that has not got it: {} in
// order, whatever stands between the braces. For tests/gpu/run alone.
#pragma once

#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

namespace fmt {

template <class... Args>
using format_string = std::string_view;

namespace internal {

template <class T>
void put(std::ostringstream& out, const T& value) {
  if constexpr (std::is_enum_v<T>)
    out << static_cast<long long>(value);
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 1 && !std::is_same_v<T, bool>)
    out << static_cast<int>(value);
  else
    out << value;
}

inline void put_rest(std::ostringstream& out, std::string_view text) { out << text; }
template <class First, class... Rest>
void put_rest(std::ostringstream& out, std::string_view text, const First& first,
              const Rest&... rest) {
  const std::size_t begin = text.find('{');
  out << text.substr(0, begin);
  if (begin == std::string_view::npos) return;
  put(out, first);
  put_rest(out, text.substr(text.find('}', begin) + 1), rest...);
}

}  // namespace internal

template <class... Args>
std::string format(std::string_view text, const Args&... args) {
  std::ostringstream out;
  internal::put_rest(out, text, args...);
  return out.str();
}

}  // namespace fmt
