#include "server/report/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "kv/kv_type_names.h"

namespace larder {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// vLLM's bounds, which its dashboards' quantiles are made for.
constexpr double kFirstTokenBounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                        0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                        20,    40,    80,   160,  640,  2560};
constexpr double kTokenBounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                   0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
constexpr double kLatencyBounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                     30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
constexpr double kNBounds[] = {1, 2, 5, 10, 20};

// 1, 2, 5, 10, 20, ... up to the greatest value.
std::vector<double> one_two_five_bounds(int greatest) {
  std::vector<double> bounds;
  for (std::int64_t decade = 1; decade <= greatest; decade *= 10) {
    for (const std::int64_t factor : {1, 2, 5}) {
      if (factor * decade <= greatest) bounds.push_back(static_cast<double>(factor * decade));
    }
  }
  return bounds;
}

double seconds(std::int64_t from_ns, std::int64_t to_ns) {
  return from_ns != 0 && to_ns > from_ns ? static_cast<double>(to_ns - from_ns) * 1e-9 : 0;
}

// Appends families that share the labels model_name and engine.
class Page {
 public:
  Page(std::vector<MetricFamily>& families, const std::string& model_name)
      : families_(families), labels_{{"model_name", model_name}, {"engine", "0"}} {}

  void begin(const char* name, const char* help, MetricType type) {
    families_.push_back({name, help, type, {}});
  }
  void value(double number, const Labels& more = {}) {
    ClientMetric metric = labelled(more);
    (families_.back().type == MetricType::Counter ? metric.counter.value : metric.gauge.value) =
        number;
    families_.back().metric.push_back(std::move(metric));
  }
  void gauge(const char* name, const char* help, double number) {
    begin(name, help, MetricType::Gauge);
    value(number);
  }
  void counter(const char* name, const char* help, std::uint64_t number) {
    begin(name, help, MetricType::Counter);
    value(static_cast<double>(number));
  }
  // One for each value of a label.
  void counters(const char* name, const char* help, const char* label,
                const std::map<std::string, std::uint64_t>& numbers) {
    begin(name, help, MetricType::Counter);
    for (const auto& [key, number] : numbers) value(static_cast<double>(number), {{label, key}});
  }
  void histogram(const char* name, const char* help, const Histogram& histogram) {
    ClientMetric metric = labelled({});
    metric.histogram.sample_count = histogram.num_observed();
    metric.histogram.sample_sum = histogram.sum();
    std::uint64_t cumulative = 0;
    for (std::size_t i = 0; i < histogram.bounds().size(); ++i) {
      cumulative += histogram.counts()[i];
      metric.histogram.bucket.push_back({cumulative, histogram.bounds()[i]});
    }
    begin(name, help, MetricType::Histogram);
    families_.back().metric.push_back(std::move(metric));
  }

 private:
  ClientMetric labelled(const Labels& more) const {
    ClientMetric metric;
    metric.label = labels_;
    metric.label.insert(metric.label.end(), more.begin(), more.end());
    return metric;
  }

  std::vector<MetricFamily>& families_;
  const Labels labels_;
};

void add_engine_gauges(Page& page, const EngineStats& stats, const EngineConfig& config,
                       KvTypes kv_types) {
  page.gauge("vllm:num_requests_running", "Requests in the batch.", stats.num_running);
  page.gauge("larder:num_requests_paused", "Answers whose reader is behind.", stats.num_paused);
  page.gauge("vllm:num_requests_waiting", "Requests in line, or whose prefix a tier is loading.",
             stats.num_waiting + stats.num_loading);
  page.begin("vllm:num_requests_waiting_by_reason", "Requests that wait, by what they wait for.",
             MetricType::Gauge);
  page.value(stats.num_waiting, {{"reason", "capacity"}});
  page.value(stats.num_loading, {{"reason", "deferred"}});
  const KvStats& kv = stats.kv;
  page.gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 1 = all.",
             kv.num_blocks > 0 ? static_cast<double>(kv.num_held) / kv.num_blocks : 0);
  page.begin("vllm:cache_config_info", "The KV cache's sizes.", MetricType::Gauge);
  page.value(1, {{"block_size", std::to_string(kBlockSize)},
                 {"num_gpu_blocks", std::to_string(config.num_blocks)},
                 {"enable_prefix_caching", "True"},
                 {"cache_dtype", format_kv_types(kv_types)}});
  page.gauge("larder:kv_waste_perc", "Share of held KV slots without a token, 1 = all.",
             kv.num_slots_held > 0 ? static_cast<double>(kv.num_slots_held - kv.num_slots_used) /
                                         static_cast<double>(kv.num_slots_held)
                                   : 0);
  page.gauge("larder:kv_blocks", "KV blocks in all.", kv.num_blocks);
  page.gauge("larder:kv_blocks_held", "KV blocks of running requests.", kv.num_held);
  page.gauge("larder:kv_blocks_cached", "Free KV blocks that a later prompt can hit.",
             kv.num_cached);
  page.gauge("larder:kv_blocks_pinned", "KV blocks that requests keep for a time.", kv.num_pinned);
}

void add_engine_counters(Page& page, const EngineStats& stats) {
  page.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
               stats.num_prefix_queries);
  page.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
               stats.num_prefix_hits);
  const std::uint64_t num_loaded = std::accumulate(
      stats.num_loaded_by_tier.begin(), stats.num_loaded_by_tier.end(), std::uint64_t{0});
  page.counter("vllm:external_prefix_cache_queries_total",
               "Prompt tokens that the pool had not got and that were looked up in the tiers.",
               stats.num_external_queries);
  page.counter("vllm:external_prefix_cache_hits_total", "Of those, tokens loaded from a tier.",
               num_loaded);
  page.counter("vllm:num_preemptions_total", "Requests put back in line for want of KV blocks.",
               stats.num_preemptions);
  page.counter("vllm:prompt_tokens_total", "Prompt tokens, found or computed.",
               stats.num_prompt_tokens);
  page.counter("vllm:prompt_tokens_cached_total", "Of those, tokens that were not computed again.",
               stats.num_prompt_tokens_cached);
  const auto cached = static_cast<double>(stats.num_prompt_tokens_cached);
  page.begin("vllm:prompt_tokens_by_source_total", "Prompt tokens, by where their KV came from.",
             MetricType::Counter);
  page.value(static_cast<double>(stats.num_prompt_tokens) - cached, {{"source", "local_compute"}});
  const double in_pool = std::max(0.0, cached - static_cast<double>(num_loaded));
  page.value(in_pool, {{"source", "local_cache_hit"}});
  page.value(cached - in_pool, {{"source", "external_kv_transfer"}});
  page.begin("vllm:prompt_tokens_cached_by_source_total", "Cached prompt tokens, by tier.",
             MetricType::Counter);
  page.value(in_pool, {{"source", "device"}});
  for (std::size_t i = 0; i < stats.num_loaded_by_tier.size(); ++i) {
    // vLLM's word for what another server had.
    const std::string name = stats.tier_names[i];
    page.value(static_cast<double>(stats.num_loaded_by_tier[i]),
               {{"source", name == "remote" ? "p2p" : name}});
  }
  page.counter("larder:anticipated_tokens_total", "Of prompts that may come: computed while nobody waited.",
               stats.num_anticipated_tokens);
  page.counter("vllm:generation_tokens_total", "Tokens generated.", stats.num_generated_tokens);
  page.counter("vllm:spec_decode_num_drafts_total", "Guesses at what follows: of an answer in a step.",
               stats.drafts.num_drafts);
  page.counter("vllm:spec_decode_num_draft_tokens_total", "Tokens of those.", stats.drafts.num_tokens);
  page.counter("vllm:spec_decode_num_accepted_tokens_total", "Of those, tokens that came true.",
               stats.drafts.num_accepted);
  page.counter("larder:draft_model_tokens_total", "Tokens that a draft model guessed.",
               stats.drafts.num_model_tokens);
  page.counter("larder:draft_model_accepted_tokens_total", "Of those, tokens that came true.",
               stats.drafts.num_model_accepted);
  page.counter("larder:engine_steps_total", "Forward passes.", stats.step_tokens.num_observed());
  const auto add_seconds = [&](const char* part, std::int64_t ns) {
    page.value(static_cast<double>(ns) * 1e-9, {{"part", part}});
  };
  page.begin("larder:engine_seconds_total", "Time of the engine's steps, by part.",
             MetricType::Counter);
  add_seconds("forward", stats.forward_ns);
  add_seconds("sample", stats.sample_ns);
  add_seconds("schedule", stats.schedule_ns);
  add_seconds("draft_model", stats.drafts.model_ns);
  page.counter("larder:kv_blocks_evicted_total", "Cached KV blocks given up for room.",
               stats.kv.num_evicted);
  page.counter("larder:kv_pins_refused_total",
               "Places of prompts that were not pinned: too much is, or what they need has gone.",
               stats.kv.num_pins_refused);
  page.counter("larder:kv_blocks_copied_total", "Shared KV blocks copied before a write.",
               stats.kv.num_copied_on_write);
}

// One family, a line for each tier and each of its parts.
template <class Part>
using TierParts = std::vector<std::pair<const char*, Part TierStats::*>>;

template <class Part>
void add_tier_family(Page& page, const EngineStats& stats, const TierParts<Part>& parts,
                     double unit) {
  for (std::size_t i = 0; i < stats.tiers.size(); ++i) {
    for (const auto& [name, part] : parts) {
      page.value(static_cast<double>(stats.tiers[i].*part) * unit,
                 {{"tier", stats.tier_names[i]}, {"op", name}});
    }
  }
}

void add_tier_metrics(Page& page, const EngineStats& stats) {
  if (stats.tiers.empty()) return;
  page.begin("larder:tier_blocks_total",
             "KV blocks, by tier and what became of them. Missed: reads, not blocks, that ended at a "
             "block that was not there, or were not begun.",
             MetricType::Counter);
  add_tier_family<std::uint64_t>(page, stats,
                                 {{"read", &TierStats::num_read},
                                  {"written", &TierStats::num_written},
                                  {"missed", &TierStats::num_missed},
                                  {"refused", &TierStats::num_refused},
                                  {"evicted", &TierStats::num_evicted}},
                                 1);
  page.begin("larder:tier_bytes_total", "Bytes moved, by tier.", MetricType::Counter);
  add_tier_family<std::int64_t>(
      page, stats, {{"read", &TierStats::bytes_read}, {"written", &TierStats::bytes_written}}, 1);
  page.begin("larder:tier_seconds_total", "Time in the tier's device.", MetricType::Counter);
  add_tier_family<std::int64_t>(
      page, stats, {{"read", &TierStats::read_ns}, {"written", &TierStats::write_ns}}, 1e-9);
  page.begin("larder:tier_faults_total", "Faults survived, by tier.", MetricType::Counter);
  add_tier_family<std::uint64_t>(page, stats,
                                 {{"io_error", &TierStats::num_io_errors},
                                  {"corrupt", &TierStats::num_corrupt},
                                  {"timeout", &TierStats::num_timeouts}},
                                 1);
  page.begin("larder:tier_blocks", "KV blocks in a tier now, or on their way there.",
             MetricType::Gauge);
  add_tier_family<std::int64_t>(
      page, stats, {{"stored", &TierStats::num_stored}, {"pending", &TierStats::num_pending}}, 1);
  page.begin("larder:tier_stored_bytes", "Bytes in a tier.", MetricType::Gauge);
  add_tier_family<std::int64_t>(page, stats, {{"stored", &TierStats::bytes_stored}}, 1);
  page.begin("larder:tier_on", "1 while the tier is used, 0 while faults keep it off.",
             MetricType::Gauge);
  for (std::size_t i = 0; i < stats.tiers.size(); ++i)
    page.value(stats.tiers[i].is_on ? 1 : 0, {{"tier", stats.tier_names[i]}});
  page.counter("larder:kv_blocks_evicted_unsaved_total",
               "Complete KV blocks evicted that no tier had taken, nor took then.",
               stats.kv.num_evicted_unsaved);
}

void add_engine_histograms(Page& page, const EngineStats& stats) {
  page.histogram("vllm:iteration_tokens_total", "Tokens computed in a step.", stats.step_tokens);
  const KvHistograms& kv = stats.kv_histograms;
  page.histogram("vllm:kv_block_lifetime_seconds", "From a KV block's allocation until its eviction.",
                 kv.lifetime);
  page.histogram("vllm:kv_block_idle_before_evict_seconds",
                 "From a KV block's last use until its eviction.", kv.idle_before_evict);
  page.histogram("vllm:kv_block_reuse_gap_seconds", "From one use of a KV block to the next.",
                 kv.reuse_gap);
}

void add_upstream_metrics(Page& page, const UpstreamStats& stats) {
  page.begin("larder:upstream_requests_total", "Requests passed on to the upstream, by why.", MetricType::Counter);
  for (int i = 0; i < kNumUpstreamReasons; ++i) {
    page.value(static_cast<double>(stats.num_requests.at(static_cast<std::size_t>(i))),
               {{"reason", std::string(name_of(static_cast<UpstreamReason>(i)))}});
  }
  page.counter("larder:upstream_failures_total", "Of those, that it did not answer, or not to the end.",
               stats.num_failures);
  page.counter("larder:upstream_connections_total", "Connections made to the upstream; other requests found one kept.",
               stats.num_connections);
  page.begin("larder:upstream_bytes_total", "Bytes of bodies, to the upstream and from it.", MetricType::Counter);
  page.value(static_cast<double>(stats.num_sent_bytes), {{"direction", "sent"}});
  page.value(static_cast<double>(stats.num_received_bytes), {{"direction", "received"}});
  page.histogram("larder:upstream_first_byte_seconds", "From a request's slot to the head of the reply.",
                 stats.first_byte);
}

void add_worker_metrics(Page& page, const std::vector<WorkerStats>& workers) {
  if (workers.empty()) return;
  const auto family = [&](const char* name, const char* help, MetricType type, const auto& number_of) {
    page.begin(name, help, type);
    for (const WorkerStats& worker : workers)
      page.value(static_cast<double>(number_of(worker)), {{"worker", worker.address}});
  };
  family("larder:worker_up", "1 while the worker answers, 0 while it is lost.", MetricType::Gauge,
         [](const WorkerStats& worker) { return worker.is_up ? 1 : 0; });
  family("larder:worker_losses_total", "Times that the worker was lost.", MetricType::Counter,
         [](const WorkerStats& worker) { return worker.num_losses; });
  family("larder:worker_wait_seconds_total", "Time that the engine has waited for the worker, its own part done.",
         MetricType::Counter, [](const WorkerStats& worker) { return static_cast<double>(worker.wait_ns) * 1e-9; });
  page.begin("larder:worker_bytes_total", "Bytes to the worker and from it.", MetricType::Counter);
  for (const WorkerStats& worker : workers) {
    page.value(static_cast<double>(worker.sent_bytes), {{"worker", worker.address}, {"direction", "sent"}});
    page.value(static_cast<double>(worker.received_bytes), {{"worker", worker.address}, {"direction", "received"}});
  }
}

}  // namespace

const std::array<ServerMetrics::HistogramInfo, ServerMetrics::kNumHistograms>
    ServerMetrics::kHistograms = {{
        {kFirstToken, "vllm:time_to_first_token_seconds", "From arrival to the first token.",
         kFirstTokenBounds},
        {kInterToken, "vllm:inter_token_latency_seconds", "From one token to the next.",
         kTokenBounds},
        {kTimePerOutputToken, "vllm:request_time_per_output_token_seconds",
         "Mean of a request's inter-token latencies.", kTokenBounds},
        {kEndToEnd, "vllm:e2e_request_latency_seconds", "From arrival to the last token.",
         kLatencyBounds},
        {kQueue, "vllm:request_queue_time_seconds", "From arrival to the first batch.",
         kLatencyBounds},
        {kPrefill, "vllm:request_prefill_time_seconds", "From the first batch to the first token.",
         kLatencyBounds},
        {kDecode, "vllm:request_decode_time_seconds", "From the first to the last token.",
         kLatencyBounds},
        {kInference, "vllm:request_inference_time_seconds",
         "From the first batch to the last token.", kLatencyBounds},
        {kPromptTokens, "vllm:request_prompt_tokens", "Prompt tokens of a request.", {}},
        {kGenerationTokens, "vllm:request_generation_tokens", "Tokens generated for a request.", {}},
        {kMaxTokens, "vllm:request_params_max_tokens", "max_tokens of a request.", {}},
        {kN, "vllm:request_params_n", "n of a request.", kNBounds},
        {kComputedTokens, "vllm:request_prefill_kv_computed_tokens",
         "Prompt tokens computed, without cached ones.", {}},
    }};

ServerMetrics::ServerMetrics(std::string model_name, int max_model_len)
    : model_name_(std::move(model_name)) {
  const std::vector<double> token_counts = one_two_five_bounds(max_model_len);
  for (const HistogramInfo& info : kHistograms) {
    CHECK(static_cast<std::size_t>(info.id) == histograms_.size(), info.name);
    histograms_.emplace_back(info.bounds.empty() ? token_counts : info.bounds);
  }
  for (const char* reason : {"stop", "length", "abort", "error"}) finished_[reason] = 0;
  for (const char* reason :
       {"queue_full", "too_many_connections", "body_memory", "header_memory", "reply_memory",
        "format_memory", "background_full", "engine_stopped", "upstream_busy"}) {
    rejections_[reason] = 0;
  }
}

void ServerMetrics::observe_first_token(double value) {
  const std::lock_guard lock(mutex_);
  histograms_[kFirstToken].observe(value);
}

void ServerMetrics::observe_inter_token(double value) {
  const std::lock_guard lock(mutex_);
  histograms_[kInterToken].observe(value);
}

void ServerMetrics::observe_finished(const FinishedRequest& request) {
  const std::lock_guard lock(mutex_);
  ++finished_[request.reason];
  if (request.reason == "abort" || request.reason == "error") return;
  const RequestTimes& times = request.times;
  histograms_[kEndToEnd].observe(seconds(times.arrived_ns, times.end_ns()));
  histograms_[kQueue].observe(seconds(times.arrived_ns, times.scheduled_ns));
  histograms_[kPrefill].observe(seconds(times.scheduled_ns, times.prompt_end_ns()));
  histograms_[kInference].observe(seconds(times.scheduled_ns, times.end_ns()));
  if (times.first_token_ns != 0) {
    const double decode = seconds(times.first_token_ns, times.last_token_ns);
    histograms_[kDecode].observe(decode);
    if (request.num_output_tokens > 1)
      histograms_[kTimePerOutputToken].observe(decode / (request.num_output_tokens - 1));
  }
  histograms_[kPromptTokens].observe(request.num_prompt_tokens);
  histograms_[kComputedTokens].observe(request.num_prompt_tokens - request.num_cached_tokens);
  histograms_[kGenerationTokens].observe(request.num_output_tokens);
  histograms_[kMaxTokens].observe(request.max_tokens);
}

void ServerMetrics::observe_n(int n) {
  const std::lock_guard lock(mutex_);
  histograms_[kN].observe(n);
}

void ServerMetrics::count_rejection(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  ++rejections_[reason];
}

void ServerMetrics::count_dropped_stream() {
  const std::lock_guard lock(mutex_);
  ++num_dropped_streams_;
}

void ServerMetrics::count_kept_turns(int num_turns, int num_tokens) {
  if (num_turns == 0) return;
  const std::lock_guard lock(mutex_);
  num_kept_turns_ += static_cast<std::uint64_t>(num_turns);
  num_kept_tokens_ += static_cast<std::uint64_t>(num_tokens);
}

void ServerMetrics::count_missed(const std::string& reason, int num_tokens) {
  const std::lock_guard lock(mutex_);
  missed_[reason] += static_cast<std::uint64_t>(num_tokens);
}

void ServerMetrics::count_divergence(const std::string& kind) {
  const std::lock_guard lock(mutex_);
  ++divergences_[kind];
}

void ServerMetrics::count_normalisation(const std::string& name) {
  const std::lock_guard lock(mutex_);
  ++normalisations_[name];
}

void ServerMetrics::add_histograms(std::vector<MetricFamily>& families) const {
  Page page(families, model_name_);
  for (const HistogramInfo& info : kHistograms) {
    page.histogram(info.name, info.help, histograms_[info.id]);
  }
}

void ServerMetrics::add_counters(std::vector<MetricFamily>& families) const {
  Page page(families, model_name_);
  page.counters("vllm:request_success_total", "Finished requests.", "finished_reason", finished_);
  page.counters("larder:prompt_tokens_missed_total", "Prompt tokens computed, by why they were.",
                "reason", missed_);
  page.counters("larder:prompt_divergences_total", "Prompts that parted from a recent one, by how.",
                "class", divergences_);
  page.counters("larder:prompt_normalisations_total",
                "Prompts that were changed on request, by how.", "name", normalisations_);
  page.counters("vllm:admission_rejections_total", "Requests refused for load.", "reason",
                rejections_);
  page.counter("larder:dropped_streams_total", "Streams dropped because the reader was too slow.",
               num_dropped_streams_);
  page.counter("larder:history_turns_kept_total",
               "Answers in prompts that were encoded as they were generated.", num_kept_turns_);
  page.counter("larder:history_tokens_kept_total", "Tokens of those answers.", num_kept_tokens_);
}

std::string ServerMetrics::serialize(const EngineStats& stats, const EngineConfig& config,
                                     const ServerState& state) const {
  std::vector<MetricFamily> families;
  Page page(families, model_name_);
  add_engine_gauges(page, stats, config, state.kv_types);
  add_engine_counters(page, stats);
  add_tier_metrics(page, stats);
  add_worker_metrics(page, state.workers);
  add_engine_histograms(page, stats);
  if (state.kv_events) {
    page.counter("larder:kv_event_messages_total", "Messages to routers.", state.kv_events->num_messages);
    page.begin("larder:kv_events_total", "Blocks that routers were told of, or were not.", MetricType::Counter);
    page.value(static_cast<double>(state.kv_events->num_events_stored), {{"kind", "stored"}});
    page.value(static_cast<double>(state.kv_events->num_events_removed), {{"kind", "removed"}});
    page.value(static_cast<double>(state.kv_events->num_dropped), {{"kind", "dropped"}});
  }
  if (state.upstream) add_upstream_metrics(page, *state.upstream);
  page.gauge("larder:engine_alive", "1 while the engine runs.", state.engine_alive ? 1 : 0);
  page.gauge("larder:open_connections", "Sockets of clients.", state.num_connections);
  page.begin("larder:bookkeeping_bytes", "Memory beside the plan's, in use.", MetricType::Gauge);
  const Bookkeeping& kept = state.bookkeeping;
  page.value(static_cast<double>(kept.prompt_bytes), {{"of", "prompts"}});
  page.value(static_cast<double>(kept.answer_bytes), {{"of", "answers"}});
  page.value(static_cast<double>(kept.session_bytes), {{"of", "sessions"}});
  page.value(static_cast<double>(kept.draft_bytes), {{"of", "drafts"}});
  page.value(static_cast<double>(kept.summary_bytes), {{"of", "summaries"}});
  page.value(static_cast<double>(kept.format_bytes), {{"of", "formats"}});
  page.value(static_cast<double>(kept.background_event_bytes), {{"of", "background_events"}});
  page.value(static_cast<double>(kept.next_turn_bytes), {{"of", "next_turns"}});
  page.value(static_cast<double>(stats.num_waiting_tokens) * sizeof(TokenId), {{"of", "waiting"}});
  {
    const std::lock_guard lock(mutex_);
    add_counters(families);
    add_histograms(families);
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace larder
