// How the server listens, whom it lets in and what it refuses; and the model that it serves.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/history_options.h"
#include "server/normalise.h"
#include "server/template_abilities.h"
#include "server/upstream_config.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace larder {

// Every bound on what a client may send or hold. Going over one is an error that names it.
struct ServerLimits {
  std::size_t max_header_bytes = std::size_t{64} << 10;
  std::size_t max_body_bytes = std::size_t{16} << 20;
  // Of all requests being read; max_body_bytes at least.
  std::size_t max_total_body_bytes = std::size_t{64} << 20;
  // Of headers beyond 4 KiB each, and of requests behind those that are worked on.
  std::size_t max_total_header_bytes = std::size_t{32} << 20;
  // Of replies that wait for their clients to read them; one larger than all of it goes alone.
  std::size_t max_total_reply_bytes = std::size_t{64} << 20;
  int max_connections = 16384;                               // more are answered 503 and closed
  int max_json_depth = 64;                                   // levels of arrays and objects
  std::size_t max_json_values = 1'000'000;
  int max_n = 128;        // n and best_of
  int max_prompts = 256;  // of one completions request
  int max_choices = 256;  // prompts * n
  int max_stop_strings = 16;
  std::size_t max_stop_bytes = 1024;  // of one stop string
  std::size_t max_total_stop_bytes = 4096;  // of a request's
  std::size_t max_stop_token_ids = 128;
  std::size_t max_logit_bias = 1024;  // tokens
  int max_logprobs = 20;
  // Logprobs that one reply holds at once, of tokens shown beside the chosen one, too: as JSON some
  // 50 bytes each.
  std::int64_t max_logprob_entries = 1'000'000;
  std::size_t max_stream_buffer_bytes = std::size_t{256} << 10;  // unsent, per connection
  std::size_t max_ledger_bytes = std::size_t{32} << 20;  // recent prompts, to explain misses by
  // Of answers' tokens, for when they come back as history (HistoryTokens).
  std::size_t max_history_bytes = std::size_t{64} << 20;
  // Of stored responses and conversations, all owners together (SessionStore).
  std::size_t max_session_bytes = std::size_t{256} << 20;
  std::size_t max_sessions = 10'000;
  // Of inputs that wait for their answers to be stored with them; a larger one waits alone.
  std::size_t max_total_draft_bytes = std::size_t{64} << 20;
  std::size_t max_next_turn_bytes = std::size_t{8} << 20;  // of chats that are being answered, for what follows
  std::size_t max_constraint_bytes = std::size_t{16} << 20;  // of answers' formats (ConstraintTable)
  std::size_t max_summary_bytes = std::size_t{4} << 20;  // of long conversations (Summarizer)
  std::chrono::milliseconds idle_timeout{120'000};               // between requests of a connection
  std::chrono::milliseconds header_timeout{
      10'000};  // from a request's first byte to the end of headers
  std::chrono::milliseconds body_timeout{60'000};   // from there to the end of the body
  std::chrono::milliseconds body_pace_interval{2000};  // between looks at how fast a large one comes
  std::chrono::milliseconds stall_timeout{60'000};  // for the client to take 64 KiB of reply
  std::chrono::milliseconds ping_interval{10'000};  // of a stream in which nothing happens
};

struct ServerConfig {
  std::string host = "127.0.0.1";     // address to bind; names are not looked up, except localhost
  int port = 8000;                    // 0 = any free one, see HttpServer::port
  std::vector<std::string> api_keys;  // empty = open to everyone who can connect
  std::map<std::string, std::string> api_key_groups;  // keys of one name share their cache
  bool allow_open_network = false;    // bind beyond loopback though there is no API key
  std::vector<std::string> cors_origins;            // "*" = all; empty = no CORS headers
  int num_io_threads = 1;                           // sockets, detokenising, JSON replies
  int num_prepare_threads = 2;                      // JSON parsing, chat templates, tokenising
  std::chrono::milliseconds drain_timeout{30'000};  // for running requests after SIGTERM
  std::chrono::milliseconds log_interval{5'000};    // of the statistics line while busy; 0 = never
  Normalisation normalisation;  // of chats that do not say
  HistoryOptions history;                           // of chats that do not say
  bool parts_thoughts = true;                       // between <think> and </think>, from the answer (ThoughtScanner)
  bool anticipates = true;                          // next turns of chats, while nobody waits (next_turn.h)
  std::optional<UpstreamConfig> upstream;           // where requests may go; nullopt = none leaves this server
  ServerLimits limits;
};

class KvEventPublisher;
class WorkerLinks;

// References must outlive the server.
struct ServedModel {
  std::string name;
  std::vector<std::string> aliases = {};  // also answered to; "default" always is
  const Tokenizer& tokenizer;
  const ChatTemplate& chat_template;
  TemplateAbilities abilities = probe_template(chat_template);
  Engine& engine;
  int max_model_len = 0;            // tokens of prompt and output
  AttentionSpan attention = {};     // of requests that do not say; see Request::attention_window
  std::int64_t created_s = 0;       // Unix time of the file
  const KvEventPublisher* kv_events = nullptr;  // for its statistics; null = nobody is told
  const WorkerLinks* workers = nullptr;         // likewise; null = one machine has all
  nlohmann::ordered_json metadata = {};  // what /v1/models tells about the file; null or an object

  // Of a prompt, counted or computed.
  std::size_t max_text_tokens() const {
    return std::max(kMaxTextTokens, static_cast<std::size_t>(max_model_len));
  }
  bool answers_to(const std::string& model) const {
    if (model == name || model == "default") return true;
    for (const std::string& alias : aliases) {
      if (model == alias) return true;
    }
    return false;
  }
};

}  // namespace larder
