// CHECK(condition, values...): a bug if it fails. Always on; prints the place and the values,
// aborts.
#pragma once

#include <fmt/format.h>

#include <string>

namespace larder::internal {

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& values);

template <class... Values>
std::string describe_values(const Values&... values) {
  std::string text;
  ((text += fmt::format(" {}", values)), ...);
  return text;
}

}  // namespace larder::internal

#define CHECK(condition, ...)                                                             \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::larder::internal::check_failed(#condition, __FILE__, __LINE__,                    \
                                       ::larder::internal::describe_values(__VA_ARGS__)); \
  } while (false)
