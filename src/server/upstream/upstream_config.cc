#include "server/upstream/upstream_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/port.h"
#include "server/json_fields.h"
#include "server/json_reader.h"
#include "server/utf8.h"

namespace larder {
namespace {

constexpr std::string_view kHttp = "http://";
constexpr std::string_view kHttps = "https://";

// What a request's head may hold: no spaces, no line ends.
bool is_visible(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void require_port(std::string_view port) {
  if (parse_port(port).value_or(0) == 0)
    throw_invalid("--upstream: \"{}\" is no port; it must be between 1 and 65535", shorten(port));
}

bool is_host(std::string_view host) {
  return !host.empty() && std::ranges::all_of(host, [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_' || c == ':';
  });
}

// The text itself is not shown: whoever writes a key into a URL does not want it in a log.
[[noreturn]] void fail_url(std::string_view reason) {
  throw_invalid(
      "--upstream: {}; give the address that comes before /chat/completions or /messages, such as "
      "https://api.example.com/v1",
      reason);
}

}  // namespace

const UpstreamModel* UpstreamConfig::find_model(std::string_view name) const {
  const auto found = std::ranges::find(models, name, &UpstreamModel::name);
  return found == models.end() ? nullptr : &*found;
}

UpstreamUrl parse_upstream_url(std::string_view text) {
  UpstreamUrl url;
  url.is_tls = text.starts_with(kHttps);
  if (!url.is_tls && !text.starts_with(kHttp)) fail_url("it must begin with https:// or http://");
  text.remove_prefix(url.is_tls ? kHttps.size() : kHttp.size());
  if (!is_visible(text)) fail_url("it has a space or a character that no URL may hold");
  const std::string_view authority = text.substr(0, text.find_first_of("/?#"));
  std::string_view path = text.substr(authority.size());
  if (authority.find('@') != authority.npos) fail_url("it has a user; a key goes by --upstream-key-env");
  if (path.find_first_of("?#") != path.npos) fail_url("it has a query or a fragment");
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/chat/completions") || path.ends_with("/messages")) fail_url("it names a route");
  url.path = path;

  const bool has_brackets = authority.starts_with('[');
  const auto host_end = has_brackets ? authority.find(']') : authority.find(':');
  if (has_brackets && host_end == authority.npos) fail_url("a bracket is missing");
  url.host = authority.substr(has_brackets ? 1 : 0, has_brackets ? host_end - 1 : host_end);
  std::string_view rest = authority.substr(std::min(authority.size(), has_brackets ? host_end + 1 : host_end));
  boost::system::error_code no_address;
  if (has_brackets) boost::asio::ip::make_address_v6(url.host, no_address);
  if (!is_host(url.host) || no_address) fail_url("its host is missing or no host");
  const std::string_view usual_port = url.is_tls ? "443" : "80";
  url.port = usual_port;
  if (!rest.empty()) {
    if (rest.front() != ':') fail_url("there is something behind the host");
    rest.remove_prefix(1);
    require_port(rest);
    url.port = rest;
  }
  const std::string shown = has_brackets ? "[" + url.host + "]" : url.host;
  url.authority = url.port == usual_port ? shown : shown + ":" + url.port;
  return url;
}

std::vector<UpstreamModel> parse_upstream_models(std::string_view text) {
  std::vector<UpstreamModel> models;
  for (const std::string& part : split(text)) {
    const auto equals = part.find('=');
    UpstreamModel model{.name = part.substr(0, equals), .remote_name = {}};
    model.remote_name = equals == part.npos ? model.name : part.substr(equals + 1);
    if (model.name.empty() || model.remote_name.empty())
      throw_invalid("--upstream-models: a name is empty; write NAME or NAME=REMOTE, with commas between");
    for (const std::string* name : {&model.name, &model.remote_name}) {
      if (name->size() > kMaxNameBytes || to_valid_utf8(*name) != *name)
        throw_invalid("--upstream-models: \"{}\" is no name; it must be UTF-8, at most {} bytes",
                      shorten(to_valid_utf8(*name)), kMaxNameBytes);
    }
    if (std::ranges::find(models, model.name, &UpstreamModel::name) != models.end())
      throw_invalid("--upstream-models: \"{}\" is there twice", shorten(model.name));
    models.push_back(std::move(model));
  }
  return models;
}

UpstreamPolicies parse_upstream_policies(std::string_view text) {
  UpstreamPolicies policies{.named = false};
  for (const std::string& part : split(text)) {
    if (part == "named") {
      policies.named = true;
    } else if (part == "long") {
      policies.if_long = true;
    } else if (part == "busy") {
      policies.if_busy = true;
    } else {
      throw_invalid("--upstream-when: \"{}\" is none of named, long and busy", shorten(part));
    }
  }
  return policies;
}

UpstreamApis parse_upstream_apis(std::string_view text) {
  UpstreamApis apis{.openai = false};
  for (const std::string& part : split(text)) {
    if (part == "openai") {
      apis.openai = true;
    } else if (part == "anthropic") {
      apis.anthropic = true;
    } else {
      throw_invalid("--upstream-api: \"{}\" is none of openai and anthropic", shorten(part));
    }
  }
  return apis;
}

std::string read_upstream_key(const std::string& variable) {
  const char* const value = std::getenv(variable.c_str());
  const std::string key = value == nullptr ? "" : value;
  if (key.empty())
    throw_invalid("--upstream-key-env: the environment variable {} is {}; export the key in it", variable,
                  value == nullptr ? "not set" : "empty");
  if (!is_visible(key))
    throw_invalid(
        "--upstream-key-env: the key in {} has a space, a line end or another character that no header may hold",
        variable);
  return key;
}

std::string_view describe_requests(const UpstreamApis& apis) {
  if (!apis.openai) return "messages of Anthropic's API";
  return apis.anthropic ? "chats, completions, responses and messages" : "chats, completions and responses";
}

bool is_loopback_host(const std::string& host) {
  boost::system::error_code no_address;
  const auto address = boost::asio::ip::make_address(host, no_address);
  if (!no_address) return address.is_loopback();
  return host == "localhost" || host.ends_with(".localhost");
}

}  // namespace larder
