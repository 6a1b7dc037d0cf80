#include "engine/engine.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/start_thread.h"
#include "engine/draft_model.h"

namespace larder {
namespace {

constexpr int kMeasuredTokens = 64;  // a batch whose speed speaks for prompts
constexpr double kSpeedWeight = 0.2;  // of the last one
// What a step may last where several prompts wait, see StepPace.
constexpr std::int64_t kStepPatienceNs = 60'000'000;
constexpr std::chrono::milliseconds kTierPatience{20};
constexpr std::chrono::milliseconds kFaultPatience{500};  // a tier that takes nothing, whose own thread looks again
constexpr std::chrono::seconds kSavePatience{5};
constexpr std::int64_t kSharePatienceNs = 3'000'000'000;
constexpr std::chrono::milliseconds kShareInterval{1};  // between looks at it
constexpr std::chrono::hours kIdlePatience{1};

EngineConfig validated(const EngineConfig& config, const Transformer& model,
                       const KvLayout& layout) {
  const TransformerLimits& limits = model.limits();
  if (config.max_batch_tokens < 1 || config.max_batch_tokens > limits.max_batch_tokens) {
    throw_invalid("max_batch_tokens {} is not between 1 and the model's {}",
                  config.max_batch_tokens, limits.max_batch_tokens);
  }
  if (config.max_model_len < 2 || config.max_model_len > limits.max_context_len) {
    throw_invalid("max_model_len {} is not between 2 and the model's {}", config.max_model_len,
                  limits.max_context_len);
  }
  if (config.max_sequences < 1 || config.max_prefill_tokens < 1 || config.max_waiting < 1) {
    throw_invalid("max_sequences, max_prefill_tokens and max_waiting must be at least 1");
  }
  const auto num_needed = layout.num_blocks_for(config.max_model_len, config.max_batch_tokens);
  if (config.num_blocks < num_needed) {
    throw_invalid("{} KV blocks are too few: a sequence of max_model_len {} needs {}",
                  config.num_blocks, config.max_model_len, num_needed);
  }
  return config;
}

SchedulerConfig scheduler_config(const EngineConfig& config, const Transformer& model) {
  SchedulerConfig result;
  result.max_model_len = config.max_model_len;
  result.max_batch_tokens = config.max_batch_tokens;
  result.max_logit_rows = model.limits().max_logit_rows;
  result.max_sequences = config.max_sequences;
  result.max_prefill_tokens = config.max_prefill_tokens;
  result.max_chunk_tokens =
      std::min(model.limits().max_chunk_tokens, config.max_batch_tokens);
  result.max_step_slowdown = config.max_step_slowdown;
  result.patience_ns = kStepPatienceNs;
  result.max_draft_tokens = config.max_draft_tokens;
  return result;
}

}  // namespace

Engine::Engine(const EngineConfig& config, Transformer& model, KvStorage& storage, const KvLayout& layout,
               std::span<const TokenId> end_tokens, const Clock& clock, KvTiers* tiers, const DraftModelParts* draft)
    : config_(validated(config, model, layout)),
      kv_types_(layout.types()),
      clock_(clock),
      vocab_size_(model.config().vocab_size),
      tiers_(tiers),
      cache_(layout, storage, clock,
             {.num_blocks = config.num_blocks,
              .tiers = tiers,
              .eviction = config.eviction,
              .max_pinned_share = config.max_pinned_share}),
      runner_(model, storage),
      pool_(model.pool()),
      end_tokens_(end_tokens.begin(), end_tokens.end()),
      drawer_(vocab_size_, model.pool().num_threads(), end_tokens_),
      draft_model_(draft == nullptr ? nullptr : std::make_unique<DraftModel>(*draft, drawer_, clock)),
      scheduler_(scheduler_config(config_, model), cache_, end_tokens_, clock, draft_model_.get()),
      step_tokens_(kStepTokenBounds),
      seeds_(std::random_device{}()) {
  if (config_.records_kv_events) cache_.record_events();
  outbox_.reserve(static_cast<std::size_t>(config_.max_sequences));  // that all can be told where there is no memory
  if (tiers_ != nullptr) {
    const int num_tokens = std::min({kMeasuredTokens, config_.max_batch_tokens,
                                     config_.max_model_len});
    tiers_->set_seconds_per_token(
        runner_.measure_seconds_per_token(num_tokens, layout.num_groups()));
    tiers_->loader().set_wake([this] {
      {
        const std::lock_guard lock(mutex_);
        has_tier_news_ = true;
      }
      changed_.notify_one();
    });
    for (int i = 0; i < tiers_->num_tiers(); ++i)
      stats_.tier_names.push_back(tiers_->tier(i).name());
  }
  update_stats();
}

Engine::~Engine() {
  stop(false);
  if (tiers_ != nullptr) tiers_->loader().set_wake({});
}

void Engine::start() {
  CHECK(!thread_.joinable());
  thread_ = start_thread("that computes", [this] { run(); });
}

void Engine::stop(bool drain) {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    if (!drain) inbox_.cancels_all = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  } else if (alive()) {
    while (step() || scheduler_.is_loading()) {
    }
    save_what_is_left();
    release_shared(true);
    send_updates();
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
}

void Engine::set_after_updates(std::function<void()> after_updates) {
  const std::lock_guard lock(after_updates_mutex_);
  after_updates_ = std::move(after_updates);
}

void Engine::set_on_kv_events(std::function<void(KvEvents&&)> on_kv_events) {
  const std::lock_guard lock(after_updates_mutex_);
  on_kv_events_ = std::move(on_kv_events);
}

bool Engine::alive() const {
  const std::lock_guard lock(mutex_);
  return !ended_;
}

EngineStats Engine::stats() const {
  EngineStats stats;
  {
    const std::lock_guard lock(mutex_);
    stats = stats_;
    stats.num_waiting = num_in_line_ - stats.num_paused;
    stats.num_waiting_tokens = num_tokens_in_line_;
  }
  // They go on while the engine sleeps. Not under the lock: a tier may wake the engine under its own.
  if (tiers_ != nullptr) stats.tiers = tiers_->stats();
  return stats;
}

void Engine::run() {
  try {
    step_until_stopped();
    save_what_is_left();
  } catch (const std::exception& error) {
    give_up(error.what());
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
}

void Engine::step_until_stopped() {
  for (;;) {
    while (step()) {
    }
    std::unique_lock lock(mutex_);
    const bool has_work = scheduler_.has_work() || !held_.empty();
    const auto is_woken = [&] { return (stops_ && !has_work) || !inbox_.empty() || has_tier_news_; };
    changed_.wait_for(lock, patience(), is_woken);
    if (stops_ && inbox_.empty() && !has_work) return;
  }
}

// The step that failed may have left anything half done, so there is no other one, and nobody's blocks are
// given back: what was published stays as it is, and may be saved.
void Engine::give_up(const char* reason) {
  spdlog::critical("the engine has failed, and ends: {}", reason);
  Inbox last;
  {
    const std::lock_guard lock(mutex_);
    stops_ = ended_ = true;
    num_in_line_ = stats_.num_running = stats_.num_loading = stats_.num_paused = 0;
    num_tokens_in_line_ = 0;
    last.arrivals = std::move(inbox_.arrivals);
  }
  idle_line_.clear();
  idle_id_ = 0;  // lest those who came late have it make way
  const auto attempt = [](const auto& part) {
    try {
      part();
    } catch (const std::exception& error) {
      spdlog::critical("the engine's end: {}", error.what());
    }
  };
  attempt([&] { take(std::move(last)); });
  attempt([&] { scheduler_.report_all_cancelled(); });
  attempt([&] { release_shared(true); });
  attempt([&] { send_updates(); });
  attempt([&] { save_what_is_left(); });
}

// How long nothing is to be done unless somebody asks for it.
std::chrono::nanoseconds Engine::patience() const {
  if (!held_.empty()) return kShareInterval;
  if (scheduler_.is_loading() || cache_.can_save() || cache_.has_tier_events()) return kTierPatience;
  return std::min<std::chrono::nanoseconds>(
      cache_.has_unsaved() ? kFaultPatience : kIdlePatience,
      std::chrono::nanoseconds(cache_.next_pin_expiry_ns() - clock_.now_ns()));
}

// Before the end: what is complete goes to the tiers, if they take it soon.
void Engine::save_what_is_left() {
  if (tiers_ == nullptr) return;
  const auto until = std::chrono::steady_clock::now() + kSavePatience;
  while (cache_.can_save() && std::chrono::steady_clock::now() < until) {
    const std::int64_t num_unsaved = cache_.stats().num_unsaved;
    cache_.poll_tiers();
    if (cache_.stats().num_unsaved == num_unsaved) std::this_thread::sleep_for(kTierPatience);
  }
}

bool Engine::step() {
  const std::int64_t begin_ns = clock_.now_ns();
  {
    std::unique_lock lock(mutex_);
    Inbox inbox = std::exchange(inbox_, {});
    has_tier_news_ = false;  // poll_tiers() takes them
    inbox.cancels_anticipated = stops_;
    lock.unlock();
    take(std::move(inbox));
  }
  scheduler_.poll_tiers();
  release_shared(false);
  begin_idle_work();
  const Batch& batch = scheduler_.schedule();
  const Chunk& chunk = scheduler_.chunk();
  if (batch.empty() && chunk.empty()) {
    CHECK(scheduler_.num_running() + scheduler_.num_waiting() == 0 || scheduler_.is_loading(), scheduler_.num_running(),
          scheduler_.num_waiting());
    deliver();
    return false;
  }
  const std::int64_t model_ns = forward_ns_ + sample_ns_;
  num_step_tokens_ = 0;
  // A step may take long, and whoever asks meanwhile is to see what it computes.
  if (stats_.num_running != num_running()) update_stats();
  const std::int64_t scheduled_ns = clock_.now_ns();
  std::int64_t chunk_ns = 0;
  try {
    if (!chunk.empty() && !chunk.rests) advance(chunk);
    if (!outbox_.empty() && !batch.empty()) deliver();  // a first token waits for nobody's next
    chunk_ns = clock_.now_ns() - scheduled_ns;
    if (!batch.empty()) compute(batch);
  } catch (const PartnerLost& lost) {
    lose_step(lost.what());
    return true;
  }
  step_tokens_.observe(num_step_tokens_);
  const std::int64_t step_ns = clock_.now_ns() - begin_ns;
  schedule_ns_ += step_ns - (forward_ns_ + sample_ns_ - model_ns) - scheduler_.draft_model_ns();
  if (!batch.empty()) scheduler_.observe_step(batch, step_ns - chunk_ns);
  deliver();
  schedule_ns_ += clock_.now_ns() - begin_ns - step_ns;
  return true;
}

// What the step was to compute was nobody's yet, and what was computed before is whole.
void Engine::lose_step(const char* reason) {
  spdlog::error("{} requests end: {}", scheduler_.num_running() + scheduler_.num_waiting(), reason);
  scheduler_.cancel_all(FinishReason::kLost);
  deliver();
}

void Engine::compute(const Batch& batch) {
  const std::int64_t begin_ns = clock_.now_ns();
  const Logits logits = runner_.forward(batch);
  const std::int64_t forward_ns = clock_.now_ns() - begin_ns;
  forward_ns_ += forward_ns;
  num_step_tokens_ += batch.num_tokens();
  observe_speed(batch, forward_ns);
  sample(batch, logits);
  scheduler_.commit(batch, results_);
}

// Layers of the chunk while they fit; at least one, so that it comes to its end.
void Engine::advance(const Chunk& chunk) {
  const int num_layers = runner_.model().config().num_layers();
  Logits logits;
  do {
    const std::int64_t begin_ns = clock_.now_ns();
    logits = runner_.forward_layer(chunk.batch, chunk.num_layers);
    const std::int64_t layer_ns = clock_.now_ns() - begin_ns;
    forward_ns_ += layer_ns;
    scheduler_.passed_layer(layer_ns);
  } while (chunk.num_layers < num_layers && scheduler_.next_layer_fits() &&
           !(chunk.yields && has_news()));
  if (chunk.num_layers < num_layers) return;
  num_step_tokens_ += chunk.batch.num_tokens();
  observe_speed(chunk.batch, chunk.spent_ns);
  sample(chunk.batch, logits);
  scheduler_.commit_chunk(results_);
}

// Long prompts cost more per token than short ones: what was seen last counts most.
void Engine::observe_speed(const Batch& batch, std::int64_t forward_ns) {
  if (tiers_ == nullptr) return;
  int num_prompt_tokens = 0;
  for (const BatchEntry& entry : batch.entries()) num_prompt_tokens += entry.num_tokens > 1 ? entry.num_tokens : 0;
  if (num_prompt_tokens < kMeasuredTokens || 2 * num_prompt_tokens < batch.num_tokens()) return;
  double seconds = tiers_->seconds_per_token();
  move_average(seconds, static_cast<double>(forward_ns) * 1e-9 / batch.num_tokens(), kSpeedWeight);
  tiers_->set_seconds_per_token(seconds);
}

void Engine::sample(const Batch& batch, const Logits& logits) {
  const std::int64_t begin_ns = clock_.now_ns();
  int num_scored = 0;
  int num_samples = 0;
  for (const BatchEntry& entry : batch.entries()) {
    num_scored += entry.num_prompt_logits;
    num_samples += entry.num_samples + entry.num_guesses;
  }
  results_.prompt_logprobs.assign(static_cast<std::size_t>(num_scored), {});
  results_.samples.assign(static_cast<std::size_t>(num_samples), {});
  draws_.clear();
  OutputToken* scored = results_.prompt_logprobs.data();
  OutputToken* sampled = results_.samples.data();
  for (const BatchEntry& entry : batch.entries()) {
    for (int i = 0; i < entry.num_prompt_logits; ++i) {
      draws_.push_back({&entry, entry.first_logit + i, -1, scored++});
    }
    for (int i = 0; i < entry.num_samples; ++i) {
      draws_.push_back({&entry, entry.first_logit + entry.num_prompt_logits, i, sampled++});
    }
    sampled += entry.num_guesses;
  }
  std::mutex failure_mutex;
  std::exception_ptr failure;  // of a thread that has no memory for its results
  pool_.parallel_for(static_cast<int>(draws_.size()), [&](int task, int thread) {
    const Draw& draw = draws_[static_cast<std::size_t>(task)];
    try {
      *draw.result = drawn(batch, draw, logits, static_cast<std::size_t>(thread));
      if (draw.sample >= 0 && draw.entry->num_guesses > 0)
        draw_guesses(batch, draw, logits, static_cast<std::size_t>(thread));
    } catch (const std::exception&) {
      const std::lock_guard lock(failure_mutex);
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
  sample_ns_ += clock_.now_ns() - begin_ns;
}

OutputToken Engine::drawn(const Batch& batch, const Draw& draw, const Logits& logits, std::size_t thread) {
  const Logits row = logits.row(draw.logit, vocab_size_);
  const Sequence& sequence = *draw.entry->sequence;
  if (draw.sample < 0) {
    const auto token =
        static_cast<std::size_t>(batch.logit_rows()[static_cast<std::size_t>(draw.logit)]);
    const auto next = static_cast<std::size_t>(batch.positions()[token]) + 1;
    return drawer_.score(sequence.tokens[next], sequence.request->request.sampling.num_prompt_logprobs, row, thread);
  }
  if (!row.best.empty() && draw.entry->takes_best) return {row.best.front(), 0, {}};
  if (!logits.drawn.empty() && draw.entry->first_draw >= 0)
    return {logits.drawn[static_cast<std::size_t>(draw.entry->first_draw + draw.sample)], 0, {}};
  return drawer_.draw(sequence, draw.sample, row, thread);
}

// While the guesses are what was drawn, the sequence goes on as if it had them, which nobody else sees: a draw may
// depend on all before it. commit() gives it what it keeps.
void Engine::draw_guesses(const Batch& batch, const Draw& draw, const Logits& logits, std::size_t thread) {
  CHECK(logits.best.empty() && logits.drawn.empty());  // a device draws one token of a sequence
  Sequence& sequence = *draw.entry->sequence;
  for (int i = 1; i <= draw.entry->num_guesses; ++i) draw.result[i].token = kNoToken;
  const bool is_constrained = sequence.request->request.sampling.constraint != nullptr;
  const std::size_t num_tokens = sequence.tokens.size();
  const std::optional<GrammarState> constrained = sequence.constrained;
  Draw next = draw;
  for (const DraftToken& guess : sequence.draft.tokens) {
    if (next.result->token != guess.token) break;
    if (is_constrained &&
        (!Scheduler::follow_constraint(sequence, guess.token) || sequence.constrained->is_over()))
      break;
    sequence.push(guess.token);
    ++next.logit;
    ++next.result;
    *next.result = drawn(batch, next, logits, thread);
  }
  sequence.drop_behind(num_tokens);
  sequence.constrained = constrained;
}

void Engine::update_stats() {
  cache_.expire_pins();
  const std::lock_guard lock(mutex_);
  static_cast<SchedulerStats&>(stats_) = scheduler_.stats();
  stats_.num_loaded_by_tier.resize(stats_.tier_names.size());
  // Whoever pauses holds what those in line do, and will run again.
  stats_.num_paused = scheduler_.num_paused();
  num_in_line_ = static_cast<int>(inbox_.arrivals.size()) + stats_.num_paused;
  num_tokens_in_line_ = inbox_.num_tokens + scheduler_.num_paused_tokens();
  in_line_by_tenant_ = inbox_.by_tenant;
  scheduler_.count_paused(in_line_by_tenant_);
  if (!is_idle()) {
    num_in_line_ += scheduler_.num_waiting();
    num_tokens_in_line_ += scheduler_.num_waiting_tokens();
    scheduler_.count_waiting(in_line_by_tenant_);
  }
  stats_.num_loading = is_idle() ? 0 : scheduler_.num_loading();
  stats_.num_running = num_running();
  stats_.kv = cache_.stats();
  if (is_idle()) {  // whoever comes finds its blocks free
    stats_.kv.num_cached += std::exchange(stats_.kv.num_held, 0);
    stats_.kv.num_slots_held = stats_.kv.num_slots_used = 0;
  }
  stats_.kv_histograms = cache_.histograms();
  stats_.step_tokens = step_tokens_;
  stats_.forward_ns = forward_ns_;
  stats_.sample_ns = sample_ns_;
  stats_.schedule_ns = schedule_ns_;
}

void Engine::hold_until_shared(Outgoing outgoing) {
  held_.push_back({std::move(outgoing), clock_.now_ns() + kSharePatienceNs});
}

void Engine::release_shared(bool at_once) {
  std::erase_if(held_, [&](Held& held) {
    const bool goes = at_once || clock_.now_ns() >= held.until_ns || cache_.is_shared(*held.outgoing.update.share);
    if (goes) outbox_.push_back(std::move(held.outgoing));
    return goes;
  });
}

// Whoever has an answer finds it in the statistics.
void Engine::deliver() {
  update_stats();
  if (config_.records_kv_events) send_kv_events();
  send_updates();
}

void Engine::send_kv_events() {
  const std::lock_guard lock(after_updates_mutex_);
  if (!on_kv_events_) return;
  if (KvEvents events = cache_.take_events(); !events.empty()) on_kv_events_(std::move(events));
}

void Engine::send_updates() {
  if (outbox_.empty()) return;
  std::exception_ptr failure;
  for (Outgoing& outgoing : outbox_) {
    try {
      (*outgoing.on_update)(std::move(outgoing.update));
    } catch (const std::exception&) {  // the others hear of theirs all the same
      failure = std::current_exception();
    }
  }
  outbox_.clear();
  {
    const std::lock_guard lock(after_updates_mutex_);
    if (after_updates_) after_updates_();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace larder
