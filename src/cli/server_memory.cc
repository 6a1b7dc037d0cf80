#include "cli/server_memory.h"

#include <optional>

#include "cli/commands.h"
#include "kv/tiers/tier_events.h"
#include "server/upstream/upstream.h"

namespace larder {
namespace {

void add_kv_event_options(CLI::App& command, ServerMemoryOptions& options) {
  CLI::Option* const events = command.add_option(
      "--kv-events", options.kv_events.endpoint,
      "Tell routers which blocks are cached, as vLLM does: where they subscribe, such as tcp://*:5557 (ZeroMQ; without "
      "keys or encryption)");
  events->check(not_empty());
  command
      .add_option("--kv-events-replay", options.kv_events.replay_endpoint,
                  "Where they ask again for what they have missed, such as tcp://*:5558")
      ->check(not_empty())
      ->needs(events);
  command
      .add_option_function<std::string>(
          "--kv-events-topic",
          [&options](const std::string& topic) {
            options.kv_events.topic = topic;
            options.has_kv_events_topic = true;
          },
          "What the messages begin with, \"\" as vLLM has it (default kv@HOST:PORT@MODEL)")
      ->needs(events);
  command
      .add_option("--kv-events-format", options.kv_events_format,
                  "An event as a map (default), or as an array, as vLLM has it up to 0.23")
      ->check(CLI::IsMember({"map", "array"}))
      ->needs(events);
}

// What waits to be told, at most.
std::int64_t most_event_bytes(const KvEventPublisherConfig& config, const RuntimeOptions& runtime) {
  const int num_tiers = (runtime.kv_host.empty() ? 0 : 1) + (runtime.kv_disk.empty() ? 0 : 1);
  return KvEventPublisher::most_bytes(config) + num_tiers * TierEvents::kMostBytes;
}

}  // namespace

void add_server_memory_options(CLI::App& command, ServerMemoryOptions& options) {
  command
      .add_option("--max-connections", options.limits.max_connections,
                  "Connections at once (default 16384)")
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--max-body-bytes", options.limits.max_body_bytes,
                  "Bytes of one request, such as 32MiB: 1 KiB to 2 GiB (default 16 MiB)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::int64_t{1} << 10, std::int64_t{2} << 30));  // signed, for "-1"
  add_kv_event_options(command, options);
  add_upstream_options(command, options.upstream);
  command
      .add_option("--anticipate", options.anticipate,
                  "auto: where a chat template prints answers otherwise than they are generated, such as without thoughts, "
                  "a chat's next turn is computed up to the next message while nobody waits; off: it is not (default: auto)")
      ->check(CLI::IsMember({"auto", "off"}));
}

void check_kv_event_options(const ServerMemoryOptions& options) {
  if (!options.kv_events.endpoint.empty()) KvEventPublisher::check(options.kv_events);
}

void keep_server_memory(const ServerMemoryOptions& server, RuntimeOptions& runtime) {
  runtime.max_connections = server.limits.max_connections;
  runtime.bookkeeping_bytes = bookkeeping_bytes(server.limits);
  runtime.next_turn_bytes = server.anticipates() ? next_turn_bytes(server.limits) : 0;
  UpstreamOptions upstream_options = server.upstream;
  upstream_options.key_variable.clear();  // which may be set only where the server runs
  if (const auto upstream = upstream_of(upstream_options))
    runtime.bookkeeping_bytes += Upstream::most_bytes(*upstream);
  runtime.records_kv_events = !server.kv_events.endpoint.empty();
  if (runtime.records_kv_events) runtime.bookkeeping_bytes += most_event_bytes(server.kv_events, runtime);
}

}  // namespace larder
