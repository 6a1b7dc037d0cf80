#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/forward/most_running.h"

namespace larder {
namespace {

constexpr int kMostCandidates = 64;  // waiting sequences looked at in a step
constexpr int kMostPassed = 256;     // and besides them, those that others pass
constexpr std::int64_t kMostLookNs = 5'000'000;  // of a step: long cached prefixes are hashed
// Tokens of a chunk: more would take long to come to their end.
constexpr int kMostBesideDecodes = 128;
constexpr std::uint64_t kTurnsBetweenPeeks = 16;
constexpr std::int64_t kIdleStepNs = 20'000'000;
// Rows of logits beside decodes: a chunk's last layer takes hardly longer for them than for one.
constexpr int kMostChunkLogits = 8;

int common_length(const std::vector<TokenId>& left, const std::vector<TokenId>& right, int most) {
  const auto length = std::min({left.size(), right.size(), static_cast<std::size_t>(most)});
  const auto end = left.begin() + static_cast<std::ptrdiff_t>(length);
  return static_cast<int>(std::mismatch(left.begin(), end, right.begin()).first - left.begin());
}

SchedulerConfig bounded(SchedulerConfig config) {
  config.max_sequences = std::min(config.max_sequences, most_running(config.max_batch_tokens, config.max_logit_rows));
  return config;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, KvCache& cache,
                     std::span<const TokenId> end_tokens, const Clock& clock, GuessingModel* draft_model)
    : config_(bounded(config)),
      cache_(cache),
      end_tokens_(end_tokens.begin(), end_tokens.end()),
      clock_(clock),
      batch_(cache.num_groups()),
      chunk_(cache.num_groups()),
      pace_(config.max_step_slowdown, cache.num_groups(), config.patience_ns),
      drafter_(cache, clock, draft_model) {
  CHECK(config_.max_batch_tokens > 0 && config_.max_logit_rows > 0 && config_.max_sequences > 0);
  CHECK(config_.max_prefill_tokens > 0 && config_.max_model_len > 1);
  CHECK(config_.max_chunk_tokens > 0, config_.max_chunk_tokens);
  const std::int64_t num_most =
      cache.layout().num_blocks_for(config_.max_model_len, config_.max_batch_tokens);
  CHECK(num_most <= cache.stats().num_blocks, num_most, cache.stats().num_blocks);
  // Nothing may fail between a sequence's first block and its place among them.
  running_.reserve(static_cast<std::size_t>(config_.max_sequences));
}

Scheduler::~Scheduler() {
  // Not those that run alone: an error may have come before one of them was listed.
  for (const auto& [id, request] : requests_)
    for (const auto& choice : request->choices) {
      cache_.release(choice->table);
      drafter_.forget(*choice);
    }
}

void Scheduler::add(Request request, std::uint64_t seed, std::int64_t arrived_ns) {
  auto active = std::make_unique<ActiveRequest>();
  active->seed = seed;
  active->times.arrived_ns = arrived_ns;
  active->num_prompt = static_cast<int>(request.prompt.size());
  auto sequence = std::make_unique<Sequence>();
  sequence->request = active.get();
  sequence->tokens = std::move(request.prompt);
  const std::uint64_t id = request.id;
  active->request = std::move(request);
  // What lies beyond is nobody else's: nothing of it can be written for others, or kept.
  for (PromptPin& pin : active->request.pins)
    pin.num_tokens = std::min(pin.num_tokens, active->span().num_shareable());
  active->turn = take_turn(*sequence);
  Sequence& first = *active->choices.emplace_back(std::move(sequence));
  const bool is_new = requests_.emplace(id, std::move(active)).second;
  CHECK(is_new, id);
  waiting_.insert(&first);
  num_waiting_tokens_ += first.num_tokens_in_line();
}

FairTurn Scheduler::take_turn(const Sequence& first) {
  const ActiveRequest& active = *first.request;
  const Request& asked = active.request;
  return line_.join(asked.tenant, asked.priority,
                    {.num_prompt = active.num_prompt,
                     .num_choices = asked.n,
                     .num_beside = first.num_tokens_in_line() - active.num_prompt});
}

void Scheduler::poll_tiers() {
  for (const EndedLoad& ended : cache_.poll_tiers()) {
    const auto found = std::ranges::find_if(running_, [&](const Sequence* sequence) {
      return sequence->table.load_id() == ended.id;
    });
    CHECK(found != running_.end(), ended.id);
    finish_load(**found, ended);
  }
}

void Scheduler::finish_load(Sequence& sequence, const EndedLoad& ended) {
  ActiveRequest& request = *sequence.request;
  const LoadedTokens loaded =
      cache_.finish_load(sequence.table, sequence.tokens, request.request.salt, ended);
  --num_loading_;
  ++num_prompt_commits_;
  const bool is_first_run = !request.account.is_settled();
  if (is_first_run) request.account.add(loaded);
  // Each time for a nearer end, so that it comes to one.
  if (loaded.end > sequence.num_computed() &&
      cache_.begin_load(sequence.table, sequence.tokens, loaded.end)) {
    ++num_loading_;
  } else if (is_first_run) {
    settle(request);
  }
}

const Batch& Scheduler::schedule() {
  num_tokens_left_ = config_.max_batch_tokens;
  num_logits_left_ = config_.max_logit_rows;
  has_preempted_ = false;
  planned_.clear();
  schedule_decodes();
  num_decodes_ = static_cast<int>(planned_.size());
  room_ = prompt_room();
  look_until_ns_ = clock_.now_ns() + kMostLookNs;
  chunk_.room_ns = room_.chunk_ns;
  num_tokens_left_ = std::min(num_tokens_left_, room_.num_tokens);
  if (chunk_.empty()) {
    schedule_prompts();
  } else {
    schedule_beside_chunk();
  }
  num_tokens_left_ = std::max(num_tokens_left_, 1);
  if (chunk_.empty()) plan_some_decode();
  batch_.clear();
  // A decode that was planned may have been preempted since.
  num_decodes_ = static_cast<int>(std::ranges::count_if(
      planned_, [](const Planned& planned) { return planned.sequence->num_missing() == 1; }));
  draft_some();
  for (const Planned& planned : planned_) {
    batch_.add(*planned.sequence, planned.num_tokens, planned.num_samples);
  }
  return batch_;
}

// Whether all there is to compute may come, and has not.
bool Scheduler::is_idle() const {
  if (running_.size() + waiting_.size() != 1) return false;
  const Sequence& only = running_.empty() ? **waiting_.begin() : *running_.front();
  return only.request->request.is_anticipated;
}

PromptRoom Scheduler::prompt_room() const {
  if (is_idle()) {
    const int num_chunk_tokens = std::min(kMostBesideDecodes, config_.max_chunk_tokens);
    return {.num_tokens = 1, .num_chunk_tokens = num_chunk_tokens, .chunk_ns = kIdleStepNs, .num_brief = 0};
  }
  if (num_decodes_ == 0)
    return pace_.room_alone(prompts_ahead(), config_.max_batch_tokens, config_.max_chunk_tokens);
  return pace_.room(num_decodes_, prompts_ahead(), config_.max_prefill_tokens,
                    std::min({kMostBesideDecodes, config_.max_chunk_tokens, config_.max_prefill_tokens}));
}

// Sequences that wait for a first token, and for nothing else.
PromptsAhead Scheduler::prompts_ahead() const {
  int num = static_cast<int>(waiting_.size());
  const Sequence* prompt = waiting_.empty() ? nullptr : *waiting_.begin();
  for (const Sequence* sequence : running_) {
    if (sequence->num_missing() <= 1 || sequence->table.is_loading()) continue;
    ++num;
    prompt = sequence;
  }
  if (num != 1) return {.num = num};
  return {.num = 1, .num_tokens = prompt->num_tokens() - prompt->request->account.num_cached()};
}

// Sequences that miss one token. Where they are too many, they take turns.
void Scheduler::schedule_decodes() {
  int num_decodes = 0;
  for (const Sequence* sequence : running_) num_decodes += sequence->num_missing() == 1;
  const int num_running = static_cast<int>(running_.size());
  // A row is kept for whoever completes a prompt.
  const bool has_prefill = num_decodes < num_running || !waiting_.empty();
  const int reserved = has_prefill && config_.max_logit_rows > 1 ? 1 : 0;
  const int most = std::min(config_.max_logit_rows - reserved, config_.max_batch_tokens);
  std::vector<Sequence*>& order = decode_order_;
  order.clear();
  for (Sequence* sequence : running_) {
    if (sequence->num_missing() == 1) order.push_back(sequence);
  }
  if (num_decodes <= most) {
    next_decode_ = 0;
  } else {
    next_decode_ %= order.size();
    std::ranges::rotate(order, order.begin() + static_cast<std::ptrdiff_t>(next_decode_));
    order.resize(static_cast<std::size_t>(most));
    next_decode_ += static_cast<std::size_t>(most);
  }
  for (Sequence* sequence : order) {
    // It may have been preempted for one before it.
    if (!sequence->table.empty()) plan(*sequence, 1);
  }
  plan_some_decode();
}

// Those whose turn it was may all have lost their place for want of a block, to one another or to a prompt that
// found none either; the first in order, who holds some, goes on then.
void Scheduler::plan_some_decode() {
  // By index: planning may preempt, which takes sequences from the end.
  for (std::size_t i = 0; planned_.empty() && i < running_.size(); ++i) {
    if (running_[i]->num_missing() == 1) plan(*running_[i], 1);
  }
}

void Scheduler::schedule_prompts() {
  turns_.begin(room_.num_brief);
  passed_.clear();
  schedule_prefills();
  if (!has_preempted_) admit_waiting();
  if (!turns_.lets_pass()) return;
  turns_.end_passing();
  schedule_passed();
  if (!has_preempted_) admit_waiting();
}

// Prompts that miss much less than the chunk's, in the batch and every second time; the chunk rests meanwhile.
void Scheduler::schedule_beside_chunk() {
  chunk_.yields = !std::exchange(chunk_.rests, false);
  if (!chunk_.yields) return;
  const std::size_t num_decodes = planned_.size();
  const int num_missing = chunk_.sequence->num_missing();
  turns_.begin_between_layers(room_.num_brief, num_missing);
  passed_.clear();
  num_tokens_left_ = std::min(num_tokens_left_, room_.num_brief);  // no longer turn than the chunk's
  if (gives_way(*chunk_.sequence, num_missing)) {
    passed_.push_back(chunk_.sequence);  // so that nobody waits for what it computes
    schedule_prefills();
    if (!has_preempted_) admit_waiting();
  }
  turns_.end_passing();
  chunk_.rests = !chunk_.empty() && planned_.size() > num_decodes;
}

bool Scheduler::gives_way(const Sequence& sequence, int num_missing) {
  return turns_.gives_way(sequence.request->request.priority, num_missing);
}

// Looking into the cache takes a hash a block: not at every turn, not of all at one, and only where it matters; until
// there is time what was seen last counts. What a tier has counts, too: it is fetched while others compute.
bool Scheduler::gives_way_waiting(Sequence& sequence) {
  if (!turns_.lets_pass()) return false;
  const int priority = sequence.request->request.priority;
  const bool matters = turns_.may_pass(priority, 1) && !turns_.may_pass(priority, sequence.num_tokens());
  if (matters && turns_.num() >= sequence.next_peek && clock_.now_ns() < look_until_ns_) {
    sequence.num_not_cached =
        sequence.num_tokens() - cache_.peek_tiers(sequence.tokens,
                                                  sequence.request->request.salt,
                                                  max_match(sequence));
    sequence.next_peek = turns_.num() + kTurnsBetweenPeeks + sequence.request->request.id % kTurnsBetweenPeeks;
  }
  return gives_way(sequence, sequence.num_expected());
}

// Whether one of its priority that goes before it, and misses more, could be computed in its place; one that waits for
// what it computes could not. Those who run are planned before those who wait, whatever their order: so they pass, too.
bool Scheduler::passes_a_longer(const Sequence& sequence) const {
  const ActiveRequest& own = *sequence.request;
  const auto is_longer = [&](const Sequence& other, int num_missing) {
    return other.request->request.priority == own.request.priority && num_missing > sequence.num_missing();
  };
  for (const Sequence* other : running_) {
    if (other == &sequence) break;
    if (!other->table.is_loading() && is_longer(*other, other->num_missing())) return true;
  }
  int num_looked_at = 0;
  for (const Sequence* other : waiting_) {
    if (!GoesBefore{}(other, &sequence) || ++num_looked_at > kMostPassed) break;
    const bool waits_for_it =
        other->leader_id == own.request.id && sequence.num_computed() < other->num_shared_with_leader;
    if (!waits_for_it && is_longer(*other, other->num_expected())) return true;
  }
  return false;
}

void Scheduler::schedule_passed() {
  for (Sequence* sequence : passed_) {
    // It may have been preempted for one that passed.
    if (has_prompt_room() && std::ranges::find(running_, sequence) != running_.end())
      plan_prompt(*sequence);
  }
}

void Scheduler::schedule_prefills() {
  // By index: planning may preempt, which takes sequences from the end.
  for (std::size_t i = 0; i < running_.size() && has_prompt_room(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.num_missing() <= 1 || sequence.table.is_loading()) continue;
    if (&sequence == chunk_.sequence) continue;
    if (gives_way(sequence, sequence.num_missing())) {
      passed_.push_back(&sequence);
    } else {
      plan_prompt(sequence);
    }
  }
}

void Scheduler::admit_waiting() {
  int num_candidates = 0;
  int num_passed = 0;
  bool has_admitted = false;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    if (has_admitted && clock_.now_ns() >= look_until_ns_) return;
    Sequence& sequence = **next;
    if (!has_prompt_room() || num_logits_left_ <= 0) return;
    if (gives_way_waiting(sequence)) {
      if (++num_passed > kMostPassed) return;
      ++next;
      continue;
    }
    if (++num_candidates > kMostCandidates) return;
    const int num_wanted = sequence.request->num_per_sequence();
    const int num_reserved = num_sequences_reserved();
    if (num_reserved > 0 && num_reserved + num_wanted > config_.max_sequences) return;
    if (waits_for_leader(sequence)) {
      ++next;
      continue;
    }
    if (!take_memory(*sequence.request)) {
      ++next;  // those in line are of other requests: it has not forked
      cancel(sequence.request->request.id, FinishReason::kNoMemory);
      continue;
    }
    if (!admit(sequence)) return;
    has_admitted = true;
    next = waiting_.erase(next);
    num_waiting_tokens_ -= sequence.num_tokens_in_line();
    line_.begin(sequence.request->turn);
    running_.insert(std::ranges::upper_bound(running_, &sequence, GoesBefore{}), &sequence);
    const int num_in_pool = sequence.num_computed();
    const LoadPlan load =
        cache_.begin_load(sequence.table, sequence.tokens, max_match(sequence));
    PromptAccount& account = sequence.request->account;
    if (!account.is_settled()) account.begin_load(load);
    if (load.has_looked && is_first_look(sequence))
      stats_.num_external_queries += static_cast<std::uint64_t>(sequence.num_tokens() - num_in_pool);
    if (load) {
      note_scheduled(*sequence.request);
      ++num_loading_;
      continue;
    }
    if (!account.is_settled()) settle(*sequence.request);
    if (!plan_prompt(sequence) || has_preempted_) return;
  }
}

int Scheduler::num_sequences_reserved() const {
  int num_reserved = 0;
  for (const Sequence* sequence : running_) num_reserved += sequence->request->num_per_sequence();
  return num_reserved;
}

// The last token is always computed, as its logits are wanted; so are all rows that logprobs need.
int Scheduler::max_match(const Sequence& sequence) const {
  const ActiveRequest& request = *sequence.request;
  const int most = sequence.num_tokens() - 1;
  const bool misses_rows = request.first_prompt_row() < request.num_prompt - 1;
  const int found = std::min(most, request.span().num_shareable());
  return request.wants_prompt_logprobs() && misses_rows
             ? std::min(found, request.first_prompt_row())
             : found;
}

bool Scheduler::waits_for_leader(Sequence& sequence) {
  int num_shared = 0;
  std::uint64_t leader_id = 0;
  for (const Sequence* running : running_) {
    const int num_prompt = running->request->num_prompt;
    if (running->num_computed() >= num_prompt) continue;
    // Whoever would come first by itself waits for nobody.
    if (running->request->request.priority > sequence.request->request.priority) continue;
    if (turns_.lets_pass() && std::ranges::find(passed_, running) != passed_.end()) continue;
    if (running->request->request.salt != sequence.request->request.salt) continue;
    if (running->request->request.id == sequence.leader_id) {
      if (running->num_computed() < sequence.num_shared_with_leader) return true;
      continue;
    }
    const int most = std::min({num_prompt, max_match(sequence),
                               running->request->span().num_shareable()});
    // More than it has of it, and than the others: the first token of that tells most of them apart.
    const int least = std::max(running->num_computed(), num_shared);
    if (most <= least || running->tokens[static_cast<std::size_t>(least)] != sequence.tokens[static_cast<std::size_t>(least)])
      continue;
    const int length = common_length(running->tokens, sequence.tokens, most);
    if (length <= least) continue;
    num_shared = length;
    leader_id = running->request->request.id;
  }
  sequence.leader_id = 0;
  if (leader_id == 0) return false;
  const int num_found =
      cache_.peek(sequence.tokens, sequence.request->request.salt, max_match(sequence));
  if (num_shared <= num_found) return false;
  sequence.leader_id = leader_id;
  sequence.num_shared_with_leader = num_shared;
  return true;
}

// Choices part in a block each.
std::int64_t Scheduler::num_blocks_to_part(const ActiveRequest& request) const {
  return std::int64_t{request.num_per_sequence() - 1} * cache_.num_groups();
}

// Blocks that running sequences were admitted for and have not taken yet.
std::int64_t Scheduler::num_blocks_claimed() const {
  std::int64_t num_claimed = 0;
  for (const Sequence* sequence : running_) {
    num_claimed += num_blocks_to_part(*sequence->request);
    if (sequence->num_missing() <= 1) continue;
    num_claimed += cache_.num_blocks_to_reach(sequence->table, sequence->num_tokens(),
                                              config_.max_batch_tokens);
  }
  return num_claimed;
}

// Whether blocks are there for all that the sequence has; alone it always has room.
bool Scheduler::has_room(Sequence& sequence) const {
  if (running_.empty()) return true;
  const ActiveRequest& request = *sequence.request;
  const std::int64_t num_open = cache_.num_blocks_available() - num_blocks_claimed();
  const bool is_known = sequence.wanted_after == num_prompt_commits_;
  if (is_known && num_open < sequence.num_blocks_wanted) return false;
  sequence.wanted_after = num_prompt_commits_;
  sequence.num_blocks_wanted =
      cache_.num_blocks_to_admit(sequence.tokens, request.request.salt, max_match(sequence),
                                 request.span(), config_.max_batch_tokens) +
      num_blocks_to_part(request);
  return num_open >= sequence.num_blocks_wanted;
}

// Who comes back from a preemption or a pause looks for what is its own, generated tokens among it.
bool Scheduler::is_first_look(const Sequence& sequence) {
  const ActiveRequest& request = *sequence.request;
  return request.num_preemptions == 0 && sequence.num_output == 0 && !request.request.is_anticipated;
}

bool Scheduler::admit(Sequence& sequence) {
  if (!has_room(sequence)) return false;
  sequence.num_blocks_wanted = 0;
  ActiveRequest& request = *sequence.request;
  if (request.request.priority < 0) sequence.table.keep_longer();
  if (request.request.is_anticipated) sequence.table.borrow();
  const int num_matched = cache_.match(sequence.table, sequence.tokens, request.request.salt,
                                       max_match(sequence), request.span());
  if (max_match(sequence) > 0 && is_first_look(sequence)) {
    stats_.num_prefix_queries += static_cast<std::uint64_t>(sequence.num_tokens());
    stats_.num_prefix_hits += static_cast<std::uint64_t>(num_matched);
  }
  if (request.account.is_new())
    request.account.look_up(request.num_prompt, num_matched, find_missed(sequence, num_matched));
  return true;
}

void Scheduler::note_scheduled(ActiveRequest& request) {
  if (request.times.scheduled_ns == 0) request.times.scheduled_ns = request.time_at(clock_.now_ns());
}

Scheduler::Planned Scheduler::next_tokens(Sequence& sequence, int max_tokens, int max_logits) {
  int num_tokens = std::min(sequence.num_missing(), max_tokens);
  // Not more rows of logits than there are, the sampled one included.
  const int num_logits = num_prompt_logits(sequence, num_tokens) +
                         (num_tokens == sequence.num_missing() ? 1 : 0);
  num_tokens = std::max(0, num_tokens - std::max(0, num_logits - max_logits));
  const ActiveRequest& request = *sequence.request;
  const bool is_complete = num_tokens > 0 && num_tokens == sequence.num_missing();
  return {&sequence, num_tokens, is_complete ? request.num_per_sequence() : 0};
}

bool Scheduler::plan(Sequence& sequence, int max_tokens) {
  const Planned planned =
      next_tokens(sequence, std::min(max_tokens, num_tokens_left_), num_logits_left_);
  if (planned.num_tokens == 0) return true;
  if (!make_room(sequence, sequence.num_computed() + planned.num_tokens)) return false;
  num_tokens_left_ -= planned.num_tokens;
  num_logits_left_ -=
      num_prompt_logits(sequence, planned.num_tokens) + (planned.num_samples > 0 ? 1 : 0);
  planned_.push_back(planned);
  return true;
}

bool Scheduler::plan_prompt(Sequence& sequence) {
  const int num_missing = sequence.num_missing();
  // Who misses one token decodes in the next step at the latest.
  const bool fits = !has_chunks() || num_missing == 1 || num_missing <= num_tokens_left_;
  const bool is_first = !turns_.is_taken();
  if (is_first)
    turns_.take({.is_long = !fits || num_missing > room_.num_brief, .passes_a_longer = passes_a_longer(sequence)});
  if (fits) {
    note_scheduled(*sequence.request);
    return plan(sequence, num_tokens_left_);
  }
  num_tokens_left_ = 0;
  if (!is_first) return true;
  note_scheduled(*sequence.request);
  const int most_logits = num_decodes_ > 0 ? kMostChunkLogits : config_.max_logit_rows;
  const Planned planned = next_tokens(sequence, room_.num_chunk_tokens,
                                      std::min(most_logits, config_.max_logit_rows));
  if (!make_room(sequence, sequence.num_computed() + planned.num_tokens)) return false;
  chunk_.begin(sequence, planned.num_tokens, planned.num_samples);
  return true;
}

// Blocks for num_tokens of the sequence, taken from those behind it if need be.
bool Scheduler::make_room(Sequence& sequence, int num_tokens) {
  while (!cache_.extend(sequence.table, num_tokens)) {
    Sequence& last = *running_.back();
    // Alone it has room: max_model_len was held against the cache.
    CHECK(running_.size() > 1, num_tokens, cache_.num_blocks_available());
    preempt(last);
    if (&last == &sequence) return false;
  }
  return true;
}

void Scheduler::preempt(Sequence& sequence) {
  has_preempted_ = true;
  ++stats_.num_preemptions;
  ++sequence.request->num_preemptions;
  const auto place = std::ranges::find(planned_, &sequence,
                                       [](const Planned& planned) { return planned.sequence; });
  if (place != planned_.end()) {
    num_tokens_left_ += place->num_tokens;
    num_logits_left_ += num_prompt_logits(sequence, place->num_tokens) + (place->num_samples > 0);
    planned_.erase(place);
  }
  ActiveRequest& request = *sequence.request;
  // What its first load would have brought comes with the next.
  if (sequence.table.is_loading() && !request.account.is_settled()) request.account.start_anew();
  detach(sequence);
  waiting_.insert(&sequence);
  num_waiting_tokens_ += sequence.num_tokens_in_line();
  if (request.wants_pause) pause(request.request.id);
}

// Out of line and of the running, without its blocks.
void Scheduler::detach(Sequence& sequence) {
  if (sequence.table.is_loading()) {
    --num_loading_;
    const PromptAccount& account = sequence.request->account;
    if (!account.is_new() && !account.is_settled()) settle(*sequence.request);
  }
  if (chunk_.sequence == &sequence) chunk_.sequence = nullptr;
  cache_.release(sequence.table);
  drafter_.forget(sequence);
  if (sequence.request->is_paused) note_paused(sequence, -1);
  std::erase(running_, &sequence);
  if (waiting_.erase(&sequence) == 0) return;
  num_waiting_tokens_ -= sequence.num_tokens_in_line();
  line_.leave(sequence.request->turn);
}

}  // namespace larder
