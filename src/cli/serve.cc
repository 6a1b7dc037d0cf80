// larder serve: the HTTP server over one model.
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/process_1.h"
#include "cli/runtime.h"
#include "cli/server_memory.h"
#include "cli/service_options.h"
#include "cli/upstream_options.h"
#include "server/api/auth.h"
#include "server/chat/served_model.h"
#include "server/http/endpoint.h"
#include "server/http/http_server.h"
#include "server/report/kv_event_publisher.h"
#include "server/unix_time.h"
#include "server/utf8.h"

namespace larder {
namespace {

struct ServeOptions : ServiceOptions {
  RuntimeOptions runtime;
  ServerMemoryOptions memory;
};

nlohmann::ordered_json describe(const ModelFile& file) {
  const ModelConfig& config = file.config;
  return {{"size_bytes", file.file_bytes},
          {"num_layers", config.num_layers()},
          {"hidden_size", config.hidden_size},
          {"vocab_size", config.vocab_size},
          {"context_length", config.context_len}};
}

// A file's without its ending; a folder's is its name, of which the end after a dot is part: Qwen2.5-0.5B.
std::string name_of_model(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return path.stem().string();
  const std::filesystem::path plain = std::filesystem::absolute(path, ignored).lexically_normal();
  return (plain.has_filename() ? plain : plain.parent_path()).filename().string();
}

// What clients may call the model beside its name.
std::vector<std::string> aliases_of(const ServeOptions& options, const std::string& file) {
  const std::filesystem::path path = file;
  std::vector<std::string> aliases;
  for (const std::string& alias :
       {file, options.runtime.model, path.has_filename() ? path.filename().string() : file, name_of_model(path)})
    if (std::ranges::find(aliases, alias) == aliases.end()) aliases.push_back(alias);
  return aliases;
}

// The engine's events go to the publisher, if there is one, for as long as this is there.
class KvEventsTo {
 public:
  KvEventsTo(Engine& engine, KvEventPublisher* publisher) : engine_(engine) {
    if (publisher != nullptr)
      engine_.set_on_kv_events([publisher](KvEvents&& events) { publisher->push(std::move(events)); });
  }
  KvEventsTo(const KvEventsTo&) = delete;
  ~KvEventsTo() { engine_.set_on_kv_events({}); }

 private:
  Engine& engine_;
};

// port: that is bound. nullptr: nobody is to be told.
std::unique_ptr<KvEventPublisher> publisher_of(const ServeOptions& options, const ServerConfig& server,
                                               const std::string& model_name, int port) {
  KvEventPublisherConfig config = options.memory.kv_events;
  if (config.endpoint.empty()) return nullptr;
  config.format = options.memory.kv_events_format == "map" ? KvEventFormat::kMap : KvEventFormat::kArray;
  if (!options.memory.has_kv_events_topic) {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    config.topic = fmt::format("kv@{}:{}@{}", host.data(), port, model_name);
  }
  // A process's numbers are above those of the one before it: to routers that pass over what seems old (Dynamo) its
  // messages come behind a gap, as do those that they have missed.
  config.first_sequence = unix_time_us();
  config.plain_salt = ApiKeys(server.api_keys, server.api_key_groups).common_salt();
  return std::make_unique<KvEventPublisher>(std::move(config));
}

void serve(const ServeOptions& options) {
  let_process_1_end();
  // A log whose reader has gone is no reason to drop the requests that run.
  std::signal(SIGPIPE, SIG_IGN);
  ServerConfig config = options.server;
  if (!options.api_key_file.empty()) {
    read_api_keys(options.api_key_file, config.api_keys, config.api_key_groups);
  }
  for (const std::string& name : options.normalise) {
    if (!add_normalisation(name, config.normalisation))
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("--normalise {}: must be {}", name, kNormalisations));
  }
  config.parts_thoughts = options.reasoning_format != "none";
  config.limits = options.memory.limits;
  config.anticipates = options.memory.anticipates();
  if (!options.history.empty()) config.history = parse_history_options(options.history);
  config.upstream = upstream_of(options.memory.upstream);
  config.drain_delay =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.drain_delay_seconds * 1e3));
  config.drain_timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.drain_seconds * 1e3));
  config.log_interval =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.log_seconds * 1e3));

  // What is wrong with them is told before a model is loaded.
  BoundEndpoint place(config);  // until the model is there, who connects is refused
  check_kv_event_options(options.memory);

  RuntimeOptions runtime_options = options.runtime;
  keep_server_memory(options.memory, runtime_options);
  Runtime runtime(runtime_options);
  print_start(runtime);
  const std::filesystem::path path = runtime.file().path;
  struct stat status{};
  // A file's name need not be UTF-8; replies and metrics must be.
  ServedModel model{.name = to_valid_utf8(options.name.empty() ? name_of_model(path) : options.name),
                    .aliases = aliases_of(options, runtime.file().path),
                    .tokenizer = runtime.tokenizer(),
                    .chat_template = runtime.chat_template(),
                    .engine = runtime.engine(),
                    .max_model_len = runtime.plan().max_model_len,
                    .attention = options.runtime.attention,
                    .created_s = ::stat(path.c_str(), &status) == 0 ? status.st_mtime : 0,
                    .workers = runtime.workers(),
                    .metadata = describe(runtime.file())};
  if (config.upstream) announce_upstream(*config.upstream, model);
  const std::unique_ptr<KvEventPublisher> publisher = publisher_of(options, config, model.name, place.port());
  model.kv_events = publisher.get();
  const KvEventsTo events_to(runtime.engine(), publisher.get());
  {
    HttpServer server(config, model, std::move(place));
    const bool is_v6 = config.host.find(':') != std::string::npos;
    std::fprintf(stderr, "Ready: %s at http://%s%s%s:%d (Ctrl-C to stop)\n", model.name.c_str(),
                 is_v6 ? "[" : "", config.host.c_str(), is_v6 ? "]" : "", server.port());
    server.run();
  }  // from here on a signal ends the process, whatever the tiers still write
  if (runtime.workers() != nullptr) runtime.workers()->stop();
  runtime.engine().stop(false);
}

}  // namespace

void add_serve_command(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP (the default)");
  add_runtime_options(*command, options->runtime);
  add_listen_options(*command, *options);
  add_server_memory_options(*command, options->memory);
  add_service_options(*command, *options);
  command->callback([options] { serve(*options); });
}

}  // namespace larder
