#include "cli/service_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/printable.h"
#include "cli/commands.h"

namespace larder {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_scheme(std::string_view text) {
  constexpr std::size_t kMaxScheme = 32;
  return !text.empty() && text.size() <= kMaxScheme && is_letter(text.front()) && std::ranges::all_of(text, [](char c) {
    return is_letter(c) || is_digit(c) || c == '+' || c == '.' || c == '-';
  });
}

// A name or an IPv4 address, or an IPv6 address in brackets.
bool is_host(std::string_view text) {
  constexpr std::size_t kMaxHost = 253;  // of the DNS
  if (text.empty() || text.size() > kMaxHost) return false;
  if (text.front() != '[')
    return std::ranges::all_of(text, [](char c) { return is_letter(c) || is_digit(c) || c == '.' || c == '_' || c == '-'; });
  return text.size() > 2 && text.back() == ']' && std::ranges::all_of(text.substr(1, text.size() - 2), [](char c) {
    return std::isxdigit(static_cast<unsigned char>(c)) != 0 || c == ':' || c == '.';
  });
}

bool is_port(std::string_view text) { return !text.empty() && text.size() <= 5 && std::ranges::all_of(text, is_digit); }

// What a browser sends for a page there; "" where nothing like it is meant.
std::string origin_meant_by(const std::string& text) {
  std::string_view rest = text;
  std::string scheme = "http";
  if (const std::size_t end = rest.find("://"); end != rest.npos && is_scheme(rest.substr(0, end))) {
    scheme = CLI::detail::to_lower(std::string(rest.substr(0, end)));
    rest.remove_prefix(end + 3);
  }
  rest = rest.substr(0, rest.find_first_of("/?#"));
  if (const std::size_t user = rest.find('@'); user != rest.npos) rest.remove_prefix(user + 1);
  // Behind the address, not in it.
  const std::size_t colon = rest.find(':', rest.starts_with('[') ? rest.find(']') : 0);
  const std::string_view host = rest.substr(0, colon);
  const std::string_view port = colon == rest.npos ? "" : rest.substr(colon + 1);
  if (!is_host(host) || (colon != rest.npos && !is_port(port))) return "";
  const std::string_view usual_port = scheme == "http" ? "80" : scheme == "https" ? "443" : "";
  return fmt::format("{}://{}{}{}", scheme, usual_port.empty() ? std::string(host) : CLI::detail::to_lower(std::string(host)),
                     port.empty() || port == usual_port ? "" : ":", port == usual_port ? "" : port);
}

// "" = it is one. In any other form it would never match.
std::string why_no_origin(const std::string& text) {
  if (text == "*" || text == "null") return "";
  const std::string meant = origin_meant_by(text);
  if (meant == text && !meant.empty()) return "";
  return fmt::format("\"{}\" is not an origin; write {}", printable(text), meant.empty() ? "http://app.example" : meant);
}

}  // namespace

void add_listen_options(CLI::App& command, ServiceOptions& options) {
  ServerConfig& server = options.server;
  server.port = 8080;
  command.add_option("--host", server.host,
                     "Address to listen on (default 127.0.0.1); one that others can reach needs a "
                     "key or --open");
  command.add_option("--port", server.port, "Port (default 8080; 0 = any free one)")
      ->check(CLI::Range(0, 65535));
  // One each time: a word that lies about is no key.
  command
      .add_option("--api-key", server.api_keys,
                  "A key that clients must send; may be given several times")
      ->allow_extra_args(false);
  command
      .add_option("--api-key-file", options.api_key_file,
                  "A file of keys, one per line; KEY GROUP: keys of a group share their cache; # begins a comment")
      ->check(not_empty());
  command.add_flag("--open", server.allow_open_network,
                   "Take a --host that others can reach although there is no API key");
}

void add_service_options(CLI::App& command, ServiceOptions& options) {
  command.add_option("--name", options.name,
                     "The model's name for clients (default: the file's, or the folder's)")
      ->check(not_empty());
  command
      .add_option("--normalise", options.normalise,
                  "Change chats so that more is reused: nonce_headers, tool_keys, timestamps or all "
                  "(default: none)")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      .add_option("--cors", options.server.cors_origins,
                  "Origin of web pages that may call, such as http://app.example, * = all; may be given "
                  "several times (default: none)")
      ->allow_extra_args(false)
      ->check(CLI::Validator([](std::string& text) { return why_no_origin(text); }, ""));
  command
      .add_option("--reasoning-format", options.reasoning_format,
                  "auto: what a model thinks between <think> and </think> is told apart from its answer; none: it is "
                  "part of the text (default: auto)")
      ->check(CLI::IsMember({"auto", "none"}));
  command.add_option("--history", options.history,
                     "What becomes of long conversations: rolling_window, retrieval or summary, with "
                     "a number of tokens if you like: summary:4096 (default: none)")
      ->check(not_empty());
  command
      .add_option("--drain-delay", options.drain_delay_seconds,
                  "Seconds after SIGTERM for which who comes is still served, while /health is 503 and tells what is in "
                  "front to send no more (default 0)")
      ->check(finite_range(0, 86400));
  command
      .add_option("--drain-seconds", options.drain_seconds,
                  "Time for running requests after SIGTERM and --drain-delay (default 30)")
      ->check(finite_range(0, 86400));
  command
      .add_option("--log-seconds", options.log_seconds,
                  "Time between lines of statistics while busy, 0 = none (default 5)")
      ->check(finite_range(0, 86400));
}

}  // namespace larder
