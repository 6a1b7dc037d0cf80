// Another server that requests may go to: where it is, which models it has, and when.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

// Where the API begins: what comes before "/chat/completions" and "/messages".
struct UpstreamUrl {
  bool is_tls = false;
  std::string host;       // of an IPv6 address without its brackets
  std::string port;       // also where the URL leaves it out
  std::string authority;  // as the header Host has it
  std::string path;       // "/v1"; without a slash at its end, "" = none
};

struct UpstreamModel {
  std::string name;         // that clients ask for
  std::string remote_name;  // that the upstream knows it by
};

// Which requests go there.
struct UpstreamPolicies {
  bool named = true;     // those that ask for one of its models
  bool if_long = false;  // those for the local model that do not fit its context
  bool if_busy = false;  // those for the local model that would be refused, or wait for long
};

// Whose requests it understands; one at least.
struct UpstreamApis {
  bool openai = true;      // chats, completions and responses
  bool anthropic = false;  // messages, and how many tokens they have
};

struct UpstreamConfig {
  UpstreamUrl url;
  UpstreamApis apis;
  std::string key;                    // sent as each API has it; "" = none. Never to be logged or told.
  std::vector<UpstreamModel> models;  // at least one; the first takes what is long or comes while busy
  UpstreamPolicies when;
  std::chrono::milliseconds max_wait{10'000};           // predicted, beyond which a request goes there if busy
  int max_connections = 64;                             // to it, at once
  std::chrono::milliseconds slot_timeout{10'000};       // for one of them to become free
  std::chrono::milliseconds connect_timeout{10'000};    // with the look-up of its name and TLS
  std::chrono::milliseconds write_timeout{60'000};      // for it to take 64 KiB of a request
  std::chrono::milliseconds read_timeout{600'000};      // for its reply to begin, and to go on
  std::chrono::milliseconds idle_timeout{60'000};       // of a connection that waits for its next request
  std::size_t max_reply_bytes = std::size_t{16} << 20;  // of a reply that is no stream

  // nullptr: it has none of this name.
  const UpstreamModel* find_model(std::string_view name) const;
};

// Of the options' text. All throw Error{kInvalidArgument} that names the option.
UpstreamUrl parse_upstream_url(std::string_view text);
std::vector<UpstreamModel> parse_upstream_models(std::string_view text);  // "A,B=REMOTE"
UpstreamPolicies parse_upstream_policies(std::string_view text);          // "named,long,busy"
UpstreamApis parse_upstream_apis(std::string_view text);                  // "openai,anthropic"
// The key in an environment variable; messages name the variable alone.
std::string read_upstream_key(const std::string& variable);

// For people: "chats, completions and responses".
std::string_view describe_requests(const UpstreamApis& apis);

// Whether what is sent there in the clear stays on this machine.
bool is_loopback_host(const std::string& host);

}  // namespace larder
