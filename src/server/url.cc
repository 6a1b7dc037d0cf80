#include "server/url.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "server/utf8.h"

namespace larder {
namespace {

constexpr std::string_view kSchemeEnd = "://";

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Up to the next slash; takes it off the text.
std::string_view next_segment(std::string_view& text) {
  const std::string_view segment = text.substr(0, text.find('/'));
  text.remove_prefix(segment.size());
  return segment;
}

bool is_variable(std::string_view segment) { return segment.starts_with('{'); }

}  // namespace

RequestTarget split_target(std::string_view target) {
  RequestTarget parts;
  const auto scheme_end = target.find(kSchemeEnd);
  const bool is_absolute =
      scheme_end != target.npos && target.find_first_of("/?") == scheme_end + 1;
  if (is_absolute) {
    target.remove_prefix(scheme_end + kSchemeEnd.size());
    parts.authority = target.substr(0, target.find_first_of("/?"));
    target.remove_prefix(parts.authority.size());
  }
  parts.path = target.substr(0, target.find('?'));
  parts.query = target.substr(std::min(parts.path.size() + 1, target.size()));
  if (is_absolute && parts.path.empty()) parts.path = "/";
  return parts;
}

std::string percent_decode(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size();
    const int high = escape ? hex_value(text[i + 1]) : -1;
    const int low = escape ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      result += text[i];
    } else {
      result += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return to_valid_utf8(result);
}

std::optional<std::string> query_parameter(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const auto equals = pair.find('=');
    if (pair.substr(0, equals) != name) continue;
    // As forms have it, and clients: a space is a plus there, and a plus %2B.
    std::string value(equals == pair.npos ? std::string_view() : pair.substr(equals + 1));
    std::ranges::replace(value, '+', ' ');
    return percent_decode(value);
  }
  return std::nullopt;
}

bool path_matches(std::string_view pattern, std::string_view path) {
  if (pattern == "/") return path == pattern;
  while (!pattern.empty()) {
    if (path.empty() || path.front() != '/') return false;
    pattern.remove_prefix(1);
    path.remove_prefix(1);
    if (pattern.empty()) return !path.empty();
    const std::string_view wanted = next_segment(pattern);
    const std::string_view given = next_segment(path);
    if (is_variable(wanted) ? given.empty() : given != wanted) return false;
  }
  return path.empty();
}

std::vector<std::string> path_values(std::string_view pattern, std::string_view path) {
  std::vector<std::string> values;
  while (!pattern.empty() && !path.empty()) {
    pattern.remove_prefix(1);
    path.remove_prefix(1);
    const std::string_view wanted = next_segment(pattern);
    const std::string_view given = next_segment(path);
    if (is_variable(wanted)) values.push_back(percent_decode(given));
  }
  return values;
}

std::string host_of(std::string_view authority) {
  const auto scheme_end = authority.find(kSchemeEnd);
  if (scheme_end != authority.npos) authority.remove_prefix(scheme_end + kSchemeEnd.size());
  const bool has_brackets = authority.starts_with('[');
  if (has_brackets) authority.remove_prefix(1);
  std::string host(authority.substr(0, authority.find(has_brackets ? ']' : ':')));
  std::ranges::transform(host, host.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  return host;
}

bool is_fixed_host(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return host == "localhost" || host.ends_with(".localhost") ||
         ::inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

}  // namespace larder
