// Bad input or a bad environment. Thrown, and caught in main and in the HTTP handler, or where a
// caller adds to the message or goes on without what failed.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace larder {

enum class ErrorKind {
  kInvalidArgument,  // the caller's parameter or file is wrong
  kNotFound,         // a file, a model, a route
  kUnauthorized,
  kTooLarge,       // over a stated limit
  kPromptTooLong,  // for the model
  kUnavailable,    // the machine cannot, now: memory, port, disk
  kStopped,        // what would do it has ended, or is about to
};

class Error : public std::runtime_error {
 public:
  // message: one line that names the field, the limit and the fix.
  // param: the request's field, empty when there is none.
  Error(ErrorKind kind, std::string message, std::string param = {})
      : std::runtime_error(message),
        kind_(kind),
        message_(std::move(message)),
        param_(std::move(param)) {}

  ErrorKind kind() const { return kind_; }
  // what() ends at a NUL, which a client's text may have.
  const std::string& message() const { return message_; }
  const std::string& param() const { return param_; }

 private:
  ErrorKind kind_;
  std::string message_;
  std::string param_;
};

template <class... Args>
[[noreturn]] void throw_invalid(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace larder
