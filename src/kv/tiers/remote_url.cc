#include "kv/tiers/remote_url.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace larder {
namespace {

constexpr int kMaxDb = 9'999;
constexpr std::size_t kMaxHost = 253;

[[noreturn]] void fail(std::string_view what) {
  throw_invalid("remote tier: {}; its address is redis://[[user]:password@]host[:port][/db], or rediss:// for TLS", what);
}

int parse_number(std::string_view text, int low, int high, const char* what) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high)
    fail(fmt::format("the {} must be a number from {} to {}", what, low, high));
  return value;
}

std::string decode_percent(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    unsigned value = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 2 || error != std::errc{} || end != digits.data() + 2)
      fail("a % in user or password must be followed by two hexadecimal digits");
    decoded += static_cast<char>(value);
    i += 2;
  }
  return decoded;
}

// Takes the host off the front of rest.
std::string take_host(std::string_view& rest) {
  std::string_view host;
  const bool is_bracketed = rest.starts_with('[');
  if (is_bracketed) {
    const std::size_t end = rest.find(']');
    if (end == std::string_view::npos) fail("[ without ] around the IPv6 address");
    host = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
  } else {
    host = rest.substr(0, rest.find(':'));
    rest.remove_prefix(host.size());
  }
  if (host.empty()) fail("the host is missing");
  if (!is_host(host)) fail("the host is not a name or an address");
  return std::string(host);
}

}  // namespace

bool is_host(std::string_view text) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_' || c == ':';
  };
  return !text.empty() && text.size() <= kMaxHost && std::ranges::all_of(text, is_allowed);
}

std::string RemoteUrl::display() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

RemoteUrl parse_remote_url(std::string_view url) {
  struct Scheme {
    std::string_view name;
    bool is_tls;
  };
  constexpr std::array<Scheme, 4> kSchemes{{{"redis://", false}, {"rediss://", true}, {"valkey://", false}, {"valkeys://", true}}};
  const auto* const scheme =
      std::ranges::find_if(kSchemes, [&](const Scheme& one) { return url.starts_with(one.name); });
  if (scheme == kSchemes.end()) fail("not a redis:// or rediss:// address");
  std::string_view rest = url.substr(scheme->name.size());
  RemoteUrl parsed;
  parsed.is_tls = scheme->is_tls;
  if (const std::size_t at = rest.rfind('@'); at != std::string_view::npos) {
    const std::string_view who = rest.substr(0, at);
    const std::size_t colon = who.find(':');
    if (colon == std::string_view::npos) fail("there is no password before @");
    parsed.user = decode_percent(who.substr(0, colon));
    parsed.password = decode_percent(who.substr(colon + 1));
    if (parsed.password.empty()) fail("the password before @ is empty");
    rest.remove_prefix(at + 1);
  }
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    if (slash + 1 < rest.size())
      parsed.db = parse_number(rest.substr(slash + 1), 0, kMaxDb, "database");
    rest = rest.substr(0, slash);
  }
  parsed.host = take_host(rest);
  parsed.names = {parsed.host};
  if (rest.empty()) return parsed;
  if (!rest.starts_with(':')) fail("the host is not a name or an address");
  parsed.port = parse_number(rest.substr(1), 1, 65535, "port");
  return parsed;
}

}  // namespace larder
