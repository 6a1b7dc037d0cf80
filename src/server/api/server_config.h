// How the server listens, whom it lets in and what it refuses.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/chat/history_options.h"
#include "server/chat/normalise.h"
#include "server/server_limits.h"
#include "server/upstream/upstream_config.h"

namespace larder {

struct ServerConfig {
  std::string host = "127.0.0.1";     // address to bind; names are not looked up, except localhost
  int port = 8000;                    // 0 = any free one, see HttpServer::port
  std::vector<std::string> api_keys;  // empty = open to everyone who can connect
  std::map<std::string, std::string> api_key_groups;  // keys of one name share their cache
  bool allow_open_network = false;    // bind beyond loopback though there is no API key
  std::vector<std::string> cors_origins;            // "*" = all; empty = no CORS headers
  int num_io_threads = 1;                           // sockets, detokenising, JSON replies
  int num_prepare_threads = 2;                      // JSON parsing, chat templates, tokenising
  std::chrono::milliseconds drain_delay{0};         // after SIGTERM, while who comes is still served
  std::chrono::milliseconds drain_timeout{30'000};  // for running requests behind that
  std::chrono::milliseconds log_interval{5'000};    // of the statistics line while busy; 0 = never
  Normalisation normalisation;  // of chats that do not say
  HistoryOptions history;                           // of chats that do not say
  bool parts_thoughts = true;                       // between <think> and </think>, from the answer (ThoughtScanner)
  bool anticipates = true;                          // next turns of chats, while nobody waits (next_turn.h)
  std::optional<UpstreamConfig> upstream;           // where requests may go; nullopt = none leaves this server
  ServerLimits limits;
};

}  // namespace larder
