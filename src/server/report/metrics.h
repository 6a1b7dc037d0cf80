// What /metrics shows, under vLLM's names, so that its dashboards and routers work unchanged.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/histogram.h"
#include "cluster/worker_links.h"
#include "engine/engine.h"
#include "kernels/kv_type.h"
#include "server/report/kv_event_publisher.h"
#include "server/upstream/upstream_metrics.h"

namespace prometheus {
struct MetricFamily;
}

namespace larder {

// One finished choice.
struct FinishedRequest {
  std::string reason;  // stop, length, abort, error
  int num_prompt_tokens = 0;
  int num_cached_tokens = 0;
  int num_output_tokens = 0;  // a stop token counts
  int max_tokens = 0;
  RequestTimes times = {};
};

// What is kept beside the plan's memory, in bytes in use; it grows with the requests to its bounds
// (see ServerLimits).
struct Bookkeeping {
  std::size_t prompt_bytes = 0;   // recent prompts and their reports
  std::size_t answer_bytes = 0;   // tokens of answers
  std::size_t session_bytes = 0;  // stored responses and conversations
  std::size_t draft_bytes = 0;    // inputs of responses that are being generated
  std::size_t next_turn_bytes = 0;  // of chats that are being answered, for what follows
  std::size_t summary_bytes = 0;  // of long conversations
  std::size_t format_bytes = 0;   // what answers may be, and the tree of tokens that it is held against
  std::size_t background_event_bytes = 0;  // of streams that may be read again
};

// What the page shows of the server around the engine.
struct ServerState {
  std::optional<KvEventPublisher::Stats> kv_events = std::nullopt;  // where routers are told
  std::optional<UpstreamStats> upstream = std::nullopt;  // where there is one
  std::vector<WorkerStats> workers = {};  // machines that compute a part of the model
  bool engine_alive = false;
  KvTypes kv_types;
  int num_connections = 0;  // open now
  Bookkeeping bookkeeping;
};

// Counts of the server's own, and a view of the engine's. Thread: any.
class ServerMetrics {
 public:
  ServerMetrics(std::string model_name, int max_model_len);

  void observe_first_token(double seconds);
  void observe_inter_token(double seconds);
  void observe_finished(const FinishedRequest& request);
  void observe_n(int n);  // of a request whose choices have all finished
  // queue_full, too_many_connections, body_memory, header_memory, reply_memory, format_memory, background_full, engine_stopped,
  // upstream_busy
  void count_rejection(const std::string& reason);
  void count_dropped_stream();  // a reader too slow
  // Answers of a prompt that were encoded as they were generated, and their tokens.
  void count_kept_turns(int num_turns, int num_tokens);
  // Tokens of prompts that were computed, by reason; and prompts that parted from a relative.
  void count_missed(const std::string& reason, int num_tokens);
  void count_divergence(const std::string& kind);
  void count_normalisation(const std::string& name);

  // The text exposition format, all families.
  std::string serialize(const EngineStats& stats, const EngineConfig& config,
                        const ServerState& state) const;

 private:
  enum Id {
    kFirstToken,
    kInterToken,
    kTimePerOutputToken,
    kEndToEnd,
    kQueue,
    kPrefill,
    kDecode,
    kInference,
    kPromptTokens,
    kGenerationTokens,
    kMaxTokens,
    kN,
    kComputedTokens,
    kNumHistograms,
  };
  struct HistogramInfo {
    Id id;  // its place
    const char* name;
    const char* help;
    std::span<const double> bounds;  // empty = of numbers of tokens
  };
  static const std::array<HistogramInfo, kNumHistograms> kHistograms;

  void add_histograms(std::vector<prometheus::MetricFamily>& families) const;
  void add_counters(std::vector<prometheus::MetricFamily>& families) const;

  const std::string model_name_;
  mutable std::mutex mutex_;
  std::vector<Histogram> histograms_;                // [kNumHistograms]
  std::map<std::string, std::uint64_t> finished_;    // by reason
  std::map<std::string, std::uint64_t> rejections_;  // by reason
  std::uint64_t num_dropped_streams_ = 0;
  std::map<std::string, std::uint64_t> missed_;       // tokens by reason
  std::map<std::string, std::uint64_t> divergences_;  // by class
  std::map<std::string, std::uint64_t> normalisations_;  // by name
  std::uint64_t num_kept_turns_ = 0;
  std::uint64_t num_kept_tokens_ = 0;
};

}  // namespace larder
