#include "cli/upstream_options.h"

#include <spdlog/spdlog.h>

#include <cstdio>

#include "base/error.h"
#include "cli/commands.h"
#include "server/chat/served_model.h"

namespace larder {

void add_upstream_options(CLI::App& command, UpstreamOptions& options) {
  CLI::Option* const url = command.add_option(
      "--upstream", options.url,
      "Another server that requests may go to: what comes before /chat/completions or /messages, such as "
      "https://api.openai.com/v1 (default: none, nothing leaves this server)");
  url->check(not_empty());
  CLI::Option* const models =
      command.add_option("--upstream-models", options.models,
                         "Its models that clients may ask for, with commas between; NAME=REMOTE where it has another "
                         "name for it");
  models->check(not_empty())->needs(url);
  url->needs(models);
  command
      .add_option("--upstream-api", options.apis,
                  "Whose API it has, with commas between: openai, anthropic (default openai)")
      ->check(not_empty())
      ->needs(url);
  command.add_option("--upstream-key-env", options.key_variable, "The environment variable that holds its key")
      ->check(not_empty())
      ->needs(url);
  command
      .add_option("--upstream-when", options.when,
                  "What goes there, with commas between: named (requests for its models), long (those that do not fit "
                  "the local context), busy (those that would wait for long) (default named)")
      ->check(not_empty())
      ->needs(url);
  command
      .add_option("--upstream-wait-ms", options.max_wait_ms,
                  "With busy: the longest predicted wait for which a request stays (default 10000)")
      ->check(CLI::Range(0, 86'400'000))
      ->needs(url);
  command
      .add_option("--upstream-connections", options.max_connections,
                  "Connections to it at once; further requests wait for a while (default 64)")
      ->check(CLI::Range(1, 4096))
      ->needs(url);
  command
      .add_option("--upstream-timeout", options.timeout_seconds,
                  "Seconds for its reply to begin, and to go on (default 600)")
      ->check(finite_range(0.1, 86'400))
      ->needs(url);
}

std::optional<UpstreamConfig> upstream_of(const UpstreamOptions& options) {
  if (options.url.empty()) return std::nullopt;
  UpstreamConfig upstream;
  upstream.url = parse_upstream_url(options.url);
  upstream.models = parse_upstream_models(options.models);
  upstream.apis = parse_upstream_apis(options.apis);
  upstream.when = parse_upstream_policies(options.when);
  if (!options.key_variable.empty()) upstream.key = read_upstream_key(options.key_variable);
  upstream.max_wait = std::chrono::milliseconds(options.max_wait_ms);
  upstream.max_connections = options.max_connections;
  upstream.read_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_seconds * 1e3));
  upstream.connect_timeout = std::min(upstream.connect_timeout, upstream.read_timeout);
  return upstream;
}

void announce_upstream(const UpstreamConfig& upstream, const ServedModel& model) {
  const UpstreamUrl& url = upstream.url;
  std::string what;
  const auto add = [&](bool is_on, std::string_view name) {
    if (is_on) what += (what.empty() ? "" : ", ") + std::string(name);
  };
  for (const UpstreamModel& remote : upstream.models) {
    if (model.answers_to(remote.name))
      throw_invalid("--upstream-models: \"{}\" is a name of the local model; give it another: NAME={}", remote.name,
                    remote.remote_name);
    add(upstream.when.named, fmt::format("requests for {}", remote.name));
  }
  add(upstream.when.if_long, "what is too long here");
  add(upstream.when.if_busy, "what comes while this server is busy");
  std::fprintf(stderr, "Upstream: %s://%s%s gets %s\n", url.is_tls ? "https" : "http", url.authority.c_str(),
               url.path.c_str(), what.c_str());
  if (!url.is_tls && !upstream.key.empty() && !is_loopback_host(url.host))
    spdlog::warn("the upstream's key goes to {} in the clear; use https", url.authority);
}

}  // namespace larder
