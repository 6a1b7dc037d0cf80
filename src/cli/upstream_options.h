// The options of `larder serve` for another server that requests may go to.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "server/upstream/upstream_config.h"

namespace larder {

struct ServedModel;

struct UpstreamOptions {
  std::string url;           // "" = nothing leaves this server
  std::string key_variable;  // "" = it asks for no key
  std::string apis = "openai";
  std::string models;
  std::string when = "named";
  std::int64_t max_wait_ms = 10'000;
  int max_connections = 64;
  double timeout_seconds = 600;
};

void add_upstream_options(CLI::App& command, UpstreamOptions& options);

// nullopt: there is none. Throws Error{kInvalidArgument} for options that say nothing of sense.
std::optional<UpstreamConfig> upstream_of(const UpstreamOptions& options);

// Says where requests may go, and warns where a key goes there in the clear. Throws Error{kInvalidArgument} where one
// of its models has a name of the local one's.
void announce_upstream(const UpstreamConfig& upstream, const ServedModel& model);

}  // namespace larder
