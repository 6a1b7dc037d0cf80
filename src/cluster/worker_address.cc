#include "cluster/worker_address.h"

#include "base/error.h"
#include "base/port.h"
#include "base/printable.h"

namespace larder {
namespace {

constexpr std::size_t kMaxHostBytes = 253;  // of a name, by DNS

[[noreturn]] void refuse(std::string_view text, const char* why) {
  throw_invalid("\"{}\" {}; write HOST:PORT, such as 10.0.0.2:7070 or [::1]:7070", printable(text), why);
}

}  // namespace

std::string WorkerAddress::display() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

WorkerAddress parse_worker_address(std::string_view text, bool any_port) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) refuse(text, "has no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  const bool is_bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (is_bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || host.size() > kMaxHostBytes) refuse(text, "has no host");
  for (const char c : host) {
    const bool is_fit = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                        c == '.' || c == '_' || (is_bracketed && (c == ':' || c == '%'));
    if (!is_fit) refuse(text, "has a host that is none");
  }
  const auto number = parse_port(port);
  if (!number || (*number == 0 && !any_port)) refuse(text, "has no port from 1 to 65535");
  return {std::string(host), *number};
}

}  // namespace larder
