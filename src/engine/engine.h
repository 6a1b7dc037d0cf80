// The engine: one thread that owns the scheduler, the cache and the model, and steps.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/histogram.h"
#include "engine/idle_line.h"
#include "engine/model_runner.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/token_drawer.h"
#include "kernels/kv_type.h"
#include "kv/cache/kv_cache.h"
#include "model/forward/transformer.h"

namespace larder {

class DraftModel;
struct DraftModelParts;

struct EngineConfig {
  int num_blocks = 0;            // KV blocks in all
  int max_model_len = 0;         // tokens of prompt and output, at most the pool's capacity
  int max_batch_tokens = 512;    // tokens computed in a step
  int max_sequences = 256;       // running at once; more wait in line
  int max_prefill_tokens = 512;  // of a step, while others decode: bounds their inter-token latency
  double max_step_slowdown = 2;  // by them: a step lasts at most so many times as long; 0 = any
  int max_waiting = 4096;        // requests in line, with those that pause, before submit refuses
  std::int64_t max_waiting_tokens = std::int64_t{1} << 24;  // of theirs; one alone may have more
  int max_draft_tokens = 0;  // guesses for a sequence in a step, see Drafter; on a CPU alone
  EvictionKind eviction = EvictionKind::kDensity;
  double max_pinned_share = 0.5;  // of the blocks; what would pin more is not pinned
  bool records_kv_events = false;  // for set_on_kv_events(), which is to come soon
};

// Of EngineStats::step_tokens; vLLM's, which its dashboards are made for.
inline constexpr std::array<double, 13> kStepTokenBounds = {
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

// Everything that /metrics and the log line show; a copy, consistent as of one step.
struct EngineStats : SchedulerStats {
  int num_running = 0;
  int num_loading = 0;  // admitted, and waiting for a tier
  int num_waiting = 0;  // in line to run
  int num_paused = 0;   // whose reader is behind; neither run nor wait
  std::int64_t num_waiting_tokens = 0;  // of all that is in line, with what pauses
  KvStats kv;
  KvHistograms kv_histograms;
  Histogram step_tokens{kStepTokenBounds};  // computed in each step
  std::int64_t forward_ns = 0;              // in the model, over all steps
  std::int64_t sample_ns = 0;               // in the sampler
  std::int64_t schedule_ns = 0;             // in the rest of the step, but for drafts.model_ns
  // Of the tiers, in order; empty without one.
  std::vector<const char*> tier_names;
  std::vector<TierStats> tiers;
};

// Where there is no memory for what goes with a request's size, that request ends alone (kNoMemory). What its thread
// cannot survive, such as the end of the memory for what all have in common, ends the engine, not the process: all
// requests are told kCancelled, and what is complete goes to the tiers. Where a step loses another machine that computes
// a part of the model (PartnerLost), all requests are told kLost, and the engine goes on: the cache has lost nothing.
//
// Thread: submit, cancel, cancel_choice, pause, reset_prefix_cache, stop, alive and stats from any; step only where no
// thread was started.
class Engine {
 public:
  // References must outlive the engine. Throws Error{kInvalidArgument} when a limit does not fit
  // the model's, or the cache is too small for one sequence of max_model_len. tiers: null = none. draft: a model that
  // guesses, of the same thread pool; null = none.
  Engine(const EngineConfig& config, Transformer& model, KvStorage& storage, const KvLayout& layout,
         std::span<const TokenId> end_tokens, const Clock& clock, KvTiers* tiers = nullptr,
         const DraftModelParts* draft = nullptr);
  ~Engine();  // stop(false) and join

  // Starts the engine's thread. It sleeps while there is nothing to do.
  void start();
  // Lets running and waiting requests end if drain, else cancels them; then the thread ends.
  // Returns when it has. Afterwards submit refuses.
  void stop(bool drain);

  // Queues a request and returns its id. Throws Error{kInvalidArgument} naming the field when the
  // request cannot ever run (empty prompt, prompt + 1 > max_model_len, token out of range),
  // Error{kUnavailable} when the line is full, Error{kStopped} when the engine stops. max_tokens is
  // cut to what max_model_len leaves.
  std::uint64_t submit(Request request);
  // The request's blocks are free within one step; a last update with kCancelled follows per open
  // choice. Unknown and ended requests are ignored.
  void cancel(std::uint64_t request_id);
  // The same for one choice that has begun, and has said what it had to. The others go on.
  void cancel_choice(std::uint64_t request_id, int choice);
  // Until it is called with false, nothing is computed for the request beyond the first tokens of a prompt that is under
  // way; its blocks are others' to take, and its tokens stay what they would have been. For those who do not read their
  // answer. Of an endless context all is computed anew then.
  void pause(std::uint64_t request_id, bool is_paused);
  void reset_prefix_cache();
  // Has the prompt computed while there is nothing else to do, if its request has not come before: whoever comes
  // meanwhile waits for no more than a layer of a few of its tokens. As much of it as there are free blocks for, and
  // blocks of what it replaces. Of many the latest are kept. Throws Error{kInvalidArgument} as submit() does.
  void anticipate(Anticipated expected);

  // Takes what was submitted and cancelled, and computes one batch. False = nothing was left to
  // compute. For owners that drive the engine themselves.
  bool step();

  // Called behind the updates that a step has for its requests, if it has any; must not block. Once this returns,
  // what was there before is not called any more. Thread: any but the engine's.
  void set_after_updates(std::function<void()> after_updates);

  // What becomes of full blocks, behind each step in which something did, with EngineConfig::records_kv_events; must not
  // block. As set_after_updates().
  void set_on_kv_events(std::function<void(KvEvents&&)> on_kv_events);
  // Whether a tier holds blocks for other processes, too. Thread: any.
  bool has_shared_tier() const { return tiers_ != nullptr && tiers_->shared_tier() >= 0; }

  bool alive() const;  // false once the engine thread has ended, or failed
  EngineStats stats() const;
  const EngineConfig& config() const { return config_; }
  KvTypes kv_types() const { return kv_types_; }

 private:
  struct Arrival {
    Request request;
    std::uint64_t seed = 0;
    std::int64_t arrived_ns = 0;
  };
  struct Cancellation {
    std::uint64_t request_id;
    int choice;  // -1 = all
  };
  // What other threads asked for since the last step.
  struct Inbox {
    std::vector<Arrival> arrivals;
    std::int64_t num_tokens = 0;  // of the arrivals
    InLineByTenant by_tenant;     // the arrivals
    std::vector<Cancellation> cancellations;
    std::vector<std::pair<std::uint64_t, bool>> pauses;  // of requests: begins or ends
    IdleLine anticipated;
    bool resets_cache = false;
    bool cancels_all = false;
    bool cancels_anticipated = false;

    bool empty() const {
      return arrivals.empty() && cancellations.empty() && pauses.empty() && anticipated.empty() && !resets_cache &&
             !cancels_all;
    }
  };

  // What a request's owner is told once the step is in the statistics.
  struct Outgoing {
    std::shared_ptr<UpdateCallback> on_update;  // the request may have ended
    RequestUpdate update;
  };

  // The last word of a request that waits until its blocks are shared.
  struct Held {
    Outgoing outgoing;
    std::int64_t until_ns = 0;
  };

  // A row of logits, and what becomes of it.
  struct Draw {
    const BatchEntry* entry;
    int logit;
    int sample;  // of the entry; -1: a prompt's token is scored
    OutputToken* result;  // those behind guesses follow
  };

  void require_room_in_line(const Request& request, std::int64_t num_tokens) const;
  void run();
  void step_until_stopped();
  void give_up(const char* reason);
  std::chrono::nanoseconds patience() const;
  void save_what_is_left();
  void lose_step(const char* reason);
  void compute(const Batch& batch);
  bool has_news() const;
  void advance(const Chunk& chunk);
  void observe_speed(const Batch& batch, std::int64_t forward_ns);
  void take(Inbox inbox);
  int make_idle_room(const IdleWork& work);
  void push_idle_work(IdleLine& more);
  std::optional<Request> next_idle_work();
  void begin_idle_work();
  void make_way();
  // Nobody waits for what the scheduler computes: it is idle work, which is there without other work or not at all.
  bool is_idle() const { return idle_id_ != 0; }
  // Sequences that somebody waits for, but for those that a tier is loading for.
  int num_running() const { return is_idle() ? 0 : scheduler_.num_running() - scheduler_.num_loading(); }
  void sample(const Batch& batch, const Logits& logits);
  OutputToken drawn(const Batch& batch, const Draw& draw, const Logits& logits, std::size_t thread);
  void draw_guesses(const Batch& batch, const Draw& draw, const Logits& logits, std::size_t thread);
  void update_stats();
  void hold_until_shared(Outgoing outgoing);
  void release_shared(bool at_once);
  void deliver();
  void send_updates();
  void send_kv_events();

  const EngineConfig config_;
  const KvTypes kv_types_;
  const Clock& clock_;
  const int vocab_size_;
  KvTiers* const tiers_;
  // The engine thread's.
  KvCache cache_;
  ModelRunner runner_;
  ThreadPool& pool_;
  const std::vector<TokenId> end_tokens_;
  TokenDrawer drawer_;
  const std::unique_ptr<DraftModel> draft_model_;  // null = none
  Scheduler scheduler_;
  BatchResults results_;
  std::vector<Draw> draws_;  // scratch
  std::vector<Outgoing> outbox_;
  std::vector<Held> held_;
  IdleLine idle_line_;
  std::uint64_t idle_id_ = 0;  // of the request that is computed because nobody waits; 0 = none
  Histogram step_tokens_;
  int num_step_tokens_ = 0;  // of this step
  std::int64_t forward_ns_ = 0;
  std::int64_t sample_ns_ = 0;
  std::int64_t schedule_ns_ = 0;

  std::mutex after_updates_mutex_;
  std::function<void()> after_updates_;  // by after_updates_mutex_
  std::function<void(KvEvents&&)> on_kv_events_;  // likewise

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Inbox inbox_;
  EngineStats stats_;
  std::uint64_t next_id_ = 1;
  int num_in_line_ = 0;  // submitted, and not running as of the last step
  std::int64_t num_tokens_in_line_ = 0;
  InLineByTenant in_line_by_tenant_;  // of those that have never run, or pause
  bool stops_ = false;
  bool has_tier_news_ = false;
  bool ended_ = false;
  std::mt19937_64 seeds_;

  std::thread thread_;
};

}  // namespace larder
