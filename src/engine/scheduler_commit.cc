// The second half of a step: what was computed becomes known, what was sampled is reported.
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "engine/scheduler.h"

namespace larder {
namespace {

std::array<WrittenTokens, kMaxPins> written_tokens(const ActiveRequest& request) {
  std::array<WrittenTokens, kMaxPins> written{};
  int begin = request.account.num_cached();
  for (std::size_t i = 0; i < request.request.pins.size(); ++i) {
    const PromptPin& pin = request.request.pins[i];
    const int num_tokens = std::max(0, pin.num_tokens - begin);
    const bool is_pinned =
        std::ranges::find(request.pinned, pin.num_tokens, &PromptPin::num_tokens) != request.pinned.end();
    written.at(i) = {.ttl_s = pin.ttl_s, .num_tokens = num_tokens, .is_pinned = is_pinned};
    begin += num_tokens;
  }
  return written;
}

}  // namespace

void Scheduler::commit(const Batch& batch, BatchResults& results) {
  now_ns_ = clock_.now_ns();
  std::span<OutputToken> prompt_logprobs = results.prompt_logprobs;
  std::span<OutputToken> samples = results.samples;
  for (const BatchEntry& entry : batch.entries()) {
    const auto num_rows = static_cast<std::size_t>(entry.num_prompt_logits);
    const auto num_samples = static_cast<std::size_t>(entry.num_samples + entry.num_guesses);
    if (num_rows > 0) {
      ActiveRequest& request = *entry.sequence->request;
      std::ranges::move(prompt_logprobs.first(num_rows), std::back_inserter(*request.prompt_logprobs));
      request.num_scored += entry.num_prompt_logits;
    }
    commit_entry(entry, samples.first(num_samples));
    prompt_logprobs = prompt_logprobs.subspan(num_rows);
    samples = samples.subspan(num_samples);
  }
  CHECK(prompt_logprobs.empty() && samples.empty(), prompt_logprobs.size(), samples.size());
}

void Scheduler::observe_step(const Batch& batch, std::int64_t duration_ns) {
  const int num_prefill = batch.num_tokens() - num_decodes_ - batch.num_guesses();
  duration_ns -= drafter_.step_model_ns();
  if (batch.num_guesses() == 0) pace_.observe(num_decodes_, num_prefill, duration_ns);
  if (num_prefill == 0 && chunk_.empty()) drafter_.observe_step(num_decodes_, batch.num_guesses(), duration_ns);
}

void Scheduler::passed_layer(std::int64_t duration_ns) {
  const int layer = chunk_.num_layers++;
  chunk_.spent_ns += duration_ns;
  chunk_.room_ns -= duration_ns;
  // The last layer computes little more than keys and values.
  if (chunk_.num_layers < cache_.layout().num_layers())
    pace_.observe_layer(cache_.layout().group_of(layer), chunk_.batch.num_tokens(), duration_ns);
}

bool Scheduler::next_layer_fits() const {
  const int kind = cache_.layout().group_of(chunk_.num_layers);
  return pace_.layer_ns(kind, chunk_.batch.num_tokens()) <= static_cast<double>(chunk_.room_ns);
}

void Scheduler::commit_chunk(BatchResults& results) {
  chunk_.sequence = nullptr;  // it may end with what was sampled
  pace_.observe_chunk(chunk_.batch.num_tokens(), chunk_.spent_ns);
  commit(chunk_.batch, results);
}

void Scheduler::commit_entry(const BatchEntry& entry, std::span<OutputToken> samples) {
  if (entry.num_guesses > 0) return commit_draft(entry, samples);
  Sequence& sequence = *entry.sequence;
  ActiveRequest& request = *sequence.request;
  if (sequence.num_computed() < request.num_prompt) ++num_prompt_commits_;
  std::uint64_t& num_of_prompts =
      request.request.is_anticipated ? stats_.num_anticipated_tokens : stats_.num_prompt_tokens;
  num_of_prompts += static_cast<std::uint64_t>(request.account.compute_to(sequence.num_computed() + entry.num_tokens));
  cache_.publish(sequence.table, sequence.tokens, sequence.num_computed() + entry.num_tokens);
  if (!request.is_forked) set_pins(sequence);
  if (samples.empty()) return;
  if (samples.size() == 1 && request.is_forked) {
    append(sequence, std::move(samples[0]));
    return;
  }
  // The prompt is complete: its choices go their own ways from here.
  if (!fork_choices(request)) return cancel(request.request.id, FinishReason::kNoMemory);
  std::vector<Sequence*> choices;
  for (const auto& choice : request.choices) choices.push_back(choice.get());
  // With what is appended the request may end.
  const std::uint64_t id = request.request.id;
  const bool wants_pause = request.wants_pause;
  for (std::size_t i = 0; i < choices.size(); ++i) append(*choices[i], std::move(samples[i]));
  if (wants_pause) pause(id);
}

// What was drawn is known up to the first token that was not guessed, and that one: as if each had had a step of its own.
void Scheduler::commit_draft(const BatchEntry& entry, std::span<OutputToken> samples) {
  Sequence& sequence = *entry.sequence;
  const std::vector<DraftToken>& draft = sequence.draft.tokens;
  std::size_t num_accepted = 0;
  while (num_accepted < draft.size() && samples[num_accepted].token == draft[num_accepted].token) ++num_accepted;
  drafter_.observe_result(sequence, static_cast<int>(num_accepted));
  stats_.drafts = drafter_.stats();
  for (OutputToken& sample : samples.first(num_accepted + 1)) {
    cache_.publish(sequence.table, sequence.tokens, sequence.num_computed() + 1);
    if (!append(sequence, std::move(sample))) return;
  }
}

// At once, since the next blocks that are taken may be those that windows have left. Once the prompt
// is complete again: that is when the time of all begins.
void Scheduler::set_pins(const Sequence& sequence) {
  ActiveRequest& request = *sequence.request;
  const auto keep = [&](const PromptPin& pin) {
    const std::span<const TokenId> prompt(sequence.tokens);
    return cache_.pin(prompt.first(static_cast<std::size_t>(pin.num_tokens)), request.request.salt,
                      pin.ttl_ns());
  };
  // Refused or not, the request goes on; KvStats counts, and usage tells.
  if (sequence.num_missing() == 0) std::ranges::for_each(request.pinned, keep);
  const std::vector<PromptPin>& pins = request.request.pins;
  for (std::size_t& reached = request.num_pins_reached;
       reached < pins.size() && pins[reached].num_tokens <= sequence.num_computed(); ++reached) {
    const PromptPin& pin = pins[reached];
    if (pin.ttl_s > 0 && keep(pin)) request.pinned.push_back(pin);
  }
}

// False: the sequence has ended, and is no more.
bool Scheduler::append(Sequence& sequence, OutputToken token) {
  const SamplingParams& params = sequence.request->request.sampling;
  RequestUpdate update;
  if (params.max_tokens == 0) {
    update.finish = FinishReason::kLength;
    finish(sequence, std::move(update));
    return false;
  }
  if (!take_room(sequence)) {
    update.finish = FinishReason::kNoMemory;
    finish(sequence, std::move(update));
    return false;
  }
  ++stats_.num_generated_tokens;
  sequence.last_token_ns = sequence.request->time_at(now_ns_);
  if (sequence.first_token_ns == 0) sequence.first_token_ns = sequence.last_token_ns;
  update.follows_pause = std::exchange(sequence.has_paused, false);
  update.finish = finish_reason(sequence, token.token);
  if (params.constraint != nullptr && !follow_constraint(sequence, token.token)) {
    update.finish = FinishReason::kStuck;
  } else if (update.finish == FinishReason::kStop) {
    update.stop_token = token.token;
  } else {
    if (sequence.constrained && sequence.constrained->is_over()) update.finish = FinishReason::kStop;
    sequence.push(token.token);
    ++sequence.num_output;
    update.tokens.push_back(std::move(token));
  }
  const bool goes_on = update.finish == FinishReason::kNone;
  goes_on ? report(sequence, std::move(update)) : finish(sequence, std::move(update));
  return goes_on;
}

// False: no token could.
bool Scheduler::follow_constraint(Sequence& sequence, TokenId token) {
  if (token == kNoToken) return false;
  const Constraint& constraint = *sequence.request->request.sampling.constraint;
  if (!sequence.constrained) sequence.constrained.emplace(constraint.grammar);
  const std::string_view bytes = constraint.tokens->bytes(token);
  if (bytes.empty()) return sequence.constrained->is_whole();  // an end
  return std::ranges::all_of(bytes,
                             [&](char byte) { return sequence.constrained->push(static_cast<std::uint8_t>(byte)); });
}

// Were token to follow.
FinishReason Scheduler::finish_reason(const Sequence& sequence, TokenId token) const {
  const SamplingParams& params = sequence.request->request.sampling;
  if (sequence.num_output >= params.min_tokens) {
    const bool is_end =
        !params.ignore_eos && std::ranges::find(end_tokens_, token) != end_tokens_.end();
    const bool is_stop =
        std::ranges::find(params.stop_token_ids, token) != params.stop_token_ids.end();
    if (is_end || is_stop) return FinishReason::kStop;
  }
  const bool is_endless = sequence.request->request.attention_window > 0;
  const bool is_long = sequence.num_output + 1 >= params.max_tokens ||
                       (!is_endless && sequence.num_tokens() + 1 >= config_.max_model_len);
  return is_long ? FinishReason::kLength : FinishReason::kNone;
}

void Scheduler::report(Sequence& sequence, RequestUpdate update) {
  ActiveRequest& request = *sequence.request;
  update.choice = sequence.choice;
  if (!std::exchange(sequence.is_reported, true)) {
    update.prompt_logprobs = request.prompt_logprobs;
    if (++request.num_told == request.request.n) request.prompt_logprobs = nullptr;
    if (sequence.choice == 0) update.cache = request.account.facts();
  }
  update.usage = {.num_prompt_tokens = request.num_prompt,
                  .num_cached_tokens = request.account.num_cached(),
                  .num_loaded_tokens = request.account.num_loaded(),
                  .num_output_tokens = sequence.num_output,
                  .num_preemptions = request.num_preemptions,
                  .num_draft_tokens = sequence.draft.num_guessed,
                  .num_accepted_tokens = sequence.draft.num_accepted,
                  .num_predicted_accepted = sequence.draft.num_predicted_accepted,
                  .num_predicted_rejected = sequence.draft.num_predicted_rejected,
                  .written = written_tokens(request)};
  update.times = request.times;
  update.times.first_token_ns = sequence.first_token_ns;
  update.times.last_token_ns = sequence.last_token_ns;
  update.times.finished_ns = sequence.finished_ns;
  if (request.request.on_update) request.request.on_update(std::move(update));
}

void Scheduler::finish(Sequence& sequence, RequestUpdate update) {
  ActiveRequest& request = *sequence.request;
  sequence.finished_ns = sequence.request->time_at(now_ns_);
  // A choice that is cancelled has been answered, too: with a stop string.
  if (!request.request.is_anticipated) line_.observe_answer(sequence.num_output);
  const bool is_answered = update.finish == FinishReason::kStop || update.finish == FinishReason::kLength;
  if (request.request.waits_until_shared && is_answered)
    update.share = cache_.share(sequence.table);
  detach(sequence);
  report(sequence, std::move(update));
  std::erase_if(request.choices, [&](const auto& choice) { return choice.get() == &sequence; });
  if (request.choices.empty()) requests_.erase(request.request.id);
}

void Scheduler::cancel(std::uint64_t request_id, FinishReason finish) {
  const auto found = requests_.find(request_id);
  if (found == requests_.end()) return;
  const std::unique_ptr<ActiveRequest> request = std::move(found->second);
  requests_.erase(found);
  for (const auto& choice : request->choices) detach(*choice);
  report_cancelled(*request, finish);
}

// Of every choice that has not ended, born or not.
void Scheduler::report_cancelled(ActiveRequest& request, FinishReason finish) {
  const int num_unborn = request.num_per_sequence() - 1;
  for (const auto& choice : request.choices) {
    RequestUpdate update;
    update.finish = finish;
    report(*choice, std::move(update));
  }
  for (int index = 1; index <= num_unborn; ++index) {
    Sequence unborn;
    unborn.request = &request;
    unborn.choice = index;
    RequestUpdate update;
    update.finish = finish;
    report(unborn, std::move(update));
  }
}

void Scheduler::cancel_choice(std::uint64_t request_id, int choice) {
  const auto found = requests_.find(request_id);
  if (found == requests_.end() || !found->second->is_forked) return;
  const auto& choices = found->second->choices;
  const auto open = std::ranges::find(choices, choice, [](const auto& one) { return one->choice; });
  if (open == choices.end()) return;
  RequestUpdate update;
  update.finish = FinishReason::kCancelled;
  finish(**open, std::move(update));
}

void Scheduler::cancel_all(FinishReason finish) {
  while (!requests_.empty()) cancel(requests_.begin()->first, finish);
}

void Scheduler::report_all_cancelled() {
  for (const auto& [id, request] : requests_) report_cancelled(*request);
}

}  // namespace larder
