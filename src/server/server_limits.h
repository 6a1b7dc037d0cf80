// What the server refuses.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

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
  // Responses that are generated whether or not their clients stay, and the events of those that are streamed.
  std::size_t max_background_responses = 256;
  std::size_t max_background_event_bytes = std::size_t{16} << 20;
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

}  // namespace larder
