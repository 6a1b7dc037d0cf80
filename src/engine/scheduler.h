// Which tokens are computed next, and for whom there is room.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/batch.h"
#include "engine/chunk.h"
#include "engine/drafter.h"
#include "engine/fair_line.h"
#include "engine/prompt_turns.h"
#include "engine/request.h"
#include "engine/sequence.h"
#include "engine/step_pace.h"
#include "kv/cache/kv_cache.h"

namespace larder {

struct SchedulerConfig {
  int max_model_len = 0;
  int max_batch_tokens = 512;
  int max_logit_rows = 64;
  int max_sequences = 256;
  int max_prefill_tokens = 512;  // of a step, while others decode
  int max_chunk_tokens = 512;    // of a chunk, see StepPace
  double max_step_slowdown = 2;  // by those tokens, see StepPace; 0 = any
  std::int64_t patience_ns = 0;  // what a step may last in any case where several prompts wait
  int max_draft_tokens = 0;      // guesses for a sequence in a step, see Drafter
};

struct SchedulerStats {
  std::uint64_t num_preemptions = 0;
  std::uint64_t num_prompt_tokens = 0;  // found or computed
  std::uint64_t num_prompt_tokens_cached = 0;
  std::uint64_t num_generated_tokens = 0;
  std::uint64_t num_anticipated_tokens = 0;  // of prompts that may come: computed, and in no other number here
  DraftStats drafts;
  // Of prompts, once each, unless they are to be computed whatever the cache has.
  std::uint64_t num_prefix_queries = 0;           // tokens looked up
  std::uint64_t num_prefix_hits = 0;              // tokens found
  std::uint64_t num_external_queries = 0;         // tokens not found that were looked for in tiers
  std::vector<std::uint64_t> num_loaded_by_tier;  // of the cached ones, those that a tier had
};

// What came of a batch's logits, one per row, in order.
struct BatchResults {
  std::vector<OutputToken> prompt_logprobs;  // of all entries' prompt rows
  // Of all entries, num_samples each, then num_guesses: those behind a guess that was not drawn say nothing.
  std::vector<OutputToken> samples;
};

// In a step, every sequence that misses one token goes first, then the others in order with what
// the budget leaves, then those that wait. A prompt of many steps lets much shorter ones of its
// priority pass every second time (PromptTurns), so that nobody waits for a book, and no book for ever. A sequence is admitted when the
// blocks for all its tokens are there; who waits does so in order of GoesBefore, except that a sequence lets others
// pass while a running one computes a prefix that it shares: it will find it. When a running
// sequence finds no block, the last in order gives up its own and waits again; since blocks stay
// findable, often little is computed twice. Who pauses gives up its own, too. Nothing is refused here: add() is for requests that fit
// into the cache alone. Thread: engine only.
class Scheduler {
 public:
  // References must outlive it. end_tokens: the model's. draft_model: guesses, too; null = none.
  Scheduler(const SchedulerConfig& config, KvCache& cache, std::span<const TokenId> end_tokens,
            const Clock& clock, GuessingModel* draft_model = nullptr);
  ~Scheduler();  // releases everything, without a word to anyone

  // seed: of all its draws. arrived_ns: of the clock.
  void add(Request request, std::uint64_t seed, std::int64_t arrived_ns);
  // Releases the request's blocks and reports this for every open choice. Unknown ids are ignored.
  void cancel(std::uint64_t request_id, FinishReason finish = FinishReason::kCancelled);
  // Of one choice, which has begun, and has said what it had to: the others go on.
  void cancel_choice(std::uint64_t request_id, int choice);
  // Until it is resumed, a request neither runs nor waits, and holds no blocks; what it has computed is found again, as
  // after a preemption. One whose prompt is being computed pauses with its first tokens; one that has not begun gives
  // its turn to others, and has another one then. Unknown ids are ignored.
  void pause(std::uint64_t request_id);
  void resume(std::uint64_t request_id);
  // Also between schedule() and commit(): what was published stays as it is.
  void cancel_all(FinishReason finish = FinishReason::kCancelled);
  // Tells it only, after a failure that may have left the rest half done.
  void report_all_cancelled();

  // Takes what tiers have brought. Before schedule().
  void poll_tiers();
  // The next step's work, valid until the next call; empty when there is none.
  const Batch& schedule();
  // What of a prompt is under way beside the batch: one layer of it at least is to be computed in
  // this step, and more while they fit, unless it rests.
  const Chunk& chunk() const { return chunk_; }
  void passed_layer(std::int64_t duration_ns);
  bool next_layer_fits() const;
  // The batch has been computed: publishes, appends what was sampled, ends and reports.
  void commit(const Batch& batch, BatchResults& results);
  // The chunk has passed its last layer: the same, and it is empty.
  void commit_chunk(BatchResults& results);
  // Of this step, in schedule().
  std::int64_t draft_model_ns() const { return drafter_.step_model_ns(); }
  // How long the step took without its chunk's layers, so that the next ones fit.
  void observe_step(const Batch& batch, std::int64_t duration_ns);

  bool has_work() const { return !requests_.empty(); }
  // What pauses is no such work.
  bool has_runnable_work() const { return !running_.empty() || !waiting_.empty(); }
  // Sequences that wait for a tier: with nothing else to do, schedule() is empty until it answers.
  bool is_loading() const { return num_loading_ > 0; }
  int num_loading() const { return num_loading_; }
  // That run at once, choices each. Thread: any.
  int max_sequences() const { return config_.max_sequences; }
  int num_running() const { return static_cast<int>(running_.size()); }
  // Sequences.
  int num_paused() const { return paused_.num_requests; }
  std::int64_t num_paused_tokens() const { return paused_.num_tokens; }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  std::int64_t num_waiting_tokens() const { return num_waiting_tokens_; }
  // That have not run yet, added.
  void count_waiting(InLineByTenant& by_tenant) const { line_.count(by_tenant); }
  // Sequences that pause, added.
  void count_paused(InLineByTenant& by_tenant) const;
  const SchedulerStats& stats() const { return stats_; }
  // Its output goes on with token; false: what it may be does not. For who draws, ahead of commit().
  static bool follow_constraint(Sequence& sequence, TokenId token);
  std::span<const TokenId> end_tokens() const { return end_tokens_; }

 private:
  struct Planned {
    Sequence* sequence;
    int num_tokens;
    int num_samples;
  };

  void schedule_decodes();
  void plan_some_decode();
  void draft_some();
  void schedule_prompts();
  void schedule_beside_chunk();
  void schedule_prefills();
  void admit_waiting();
  void schedule_passed();
  // Whether others pass it in this step, if num_missing are all that it needs.
  bool gives_way(const Sequence& sequence, int num_missing);
  bool gives_way_waiting(Sequence& sequence);
  bool passes_a_longer(const Sequence& sequence) const;
  PromptsAhead prompts_ahead() const;
  bool has_room(Sequence& sequence) const;
  bool admit(Sequence& sequence);
  bool waits_for_leader(Sequence& sequence);
  void finish_load(Sequence& sequence, const EndedLoad& ended);
  void note_scheduled(ActiveRequest& request);
  std::vector<MissedSpan> find_missed(const Sequence& sequence, int num_matched) const;
  void settle(ActiveRequest& request);
  // The sequence's next tokens within the limits, as many as are missing.
  static Planned next_tokens(Sequence& sequence, int max_tokens, int max_logits);
  // Plans up to max_tokens of the sequence's missing ones. false = it was preempted.
  bool plan(Sequence& sequence, int max_tokens);
  // Plans what there is room for of a prompt's, in the batch or as a chunk. The same.
  bool plan_prompt(Sequence& sequence);
  bool has_prompt_room() const { return num_tokens_left_ > 0 || (has_chunks() && !turns_.is_taken()); }
  bool has_chunks() const { return room_.num_chunk_tokens > 0 && !turns_.is_between_layers(); }
  bool make_room(Sequence& sequence, int num_tokens);
  void preempt(Sequence& sequence);
  FairTurn take_turn(const Sequence& first);
  void note_paused(const Sequence& sequence, int num);
  int max_match(const Sequence& sequence) const;
  static bool is_first_look(const Sequence& sequence);
  bool is_idle() const;
  PromptRoom prompt_room() const;
  std::int64_t num_blocks_to_part(const ActiveRequest& request) const;
  std::int64_t num_blocks_claimed() const;
  int num_sequences_reserved() const;

  void commit_entry(const BatchEntry& entry, std::span<OutputToken> samples);
  void commit_draft(const BatchEntry& entry, std::span<OutputToken> samples);
  void set_pins(const Sequence& sequence);
  [[nodiscard]] static bool take_memory(ActiveRequest& request);
  [[nodiscard]] bool fork_choices(ActiveRequest& request);
  [[nodiscard]] bool take_room(Sequence& sequence);
  std::size_t num_tokens_ahead() const { return 1 + static_cast<std::size_t>(config_.max_draft_tokens); }
  bool append(Sequence& sequence, OutputToken token);
  void report(Sequence& sequence, RequestUpdate update);
  void report_cancelled(ActiveRequest& request, FinishReason finish = FinishReason::kCancelled);
  void finish(Sequence& sequence, RequestUpdate update);
  FinishReason finish_reason(const Sequence& sequence, TokenId token) const;
  void detach(Sequence& sequence);

  const SchedulerConfig config_;
  KvCache& cache_;
  const std::vector<TokenId> end_tokens_;
  const Clock& clock_;
  std::unordered_map<std::uint64_t, std::unique_ptr<ActiveRequest>> requests_;
  FairLine line_;
  std::set<Sequence*, GoesBefore> waiting_;
  std::int64_t num_waiting_tokens_ = 0;
  std::vector<Sequence*> running_;  // in order of GoesBefore
  Batch batch_;
  std::vector<Sequence*> decode_order_;  // scratch
  std::vector<Planned> planned_;         // this step's
  Chunk chunk_;
  PromptRoom room_;  // of this step
  PromptTurns turns_;
  std::vector<Sequence*> passed_;  // those that run and gave way in this step
  std::int64_t look_until_ns_ = 0;  // into the cache, in this step
  int num_tokens_left_ = 0;
  int num_logits_left_ = 0;
  bool has_preempted_ = false;
  int num_decodes_ = 0;  // of this step
  StepPace pace_;
  Drafter drafter_;
  int num_loading_ = 0;
  InLine paused_;
  InLineByTenant paused_by_tenant_;
  std::uint64_t num_prompt_commits_ = 0;  // of parts of prompts, computed or loaded
  std::size_t next_decode_ = 0;  // whose turn it is where not all can decode in one step
  std::int64_t now_ns_ = 0;      // of the commit
  SchedulerStats stats_;
};

}  // namespace larder
