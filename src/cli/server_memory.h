// The options of `larder serve` that say how much of memory it keeps for requests, of serve, plan and doctor alike.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "cli/runtime.h"
#include "cli/upstream_options.h"
#include "server/report/kv_event_publisher.h"
#include "server/server_limits.h"

namespace larder {

struct ServerMemoryOptions {
  ServerLimits limits;
  std::string anticipate = "auto";
  UpstreamOptions upstream;
  KvEventPublisherConfig kv_events;  // endpoint "" = nobody is told
  bool has_kv_events_topic = false;  // it may be "" then
  std::string kv_events_format = "map";

  bool anticipates() const { return anticipate != "off"; }
};

void add_server_memory_options(CLI::App& command, ServerMemoryOptions& options);

// Throws Error{kInvalidArgument} for an address of events that is none.
void check_kv_event_options(const ServerMemoryOptions& options);

// Has a runtime keep room for all that these let a server hold. Throws Error{kInvalidArgument} for an upstream that
// is none; its key is not asked for.
void keep_server_memory(const ServerMemoryOptions& server, RuntimeOptions& runtime);

}  // namespace larder
