#include "server/api/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include "base/clock.h"

namespace larder {
namespace {

constexpr std::size_t kManyEntries = 20'000;  // some 20 ms to write
constexpr std::size_t kWrittenEntryBytes = 80;
constexpr const char* kEngineStopped = "the engine has stopped before the answer was complete; try again";
constexpr const char* kWorkerLost =
    "a machine that computes a part of the model was lost before the answer was complete; try again";

ApiError stuck(const std::string& field) {
  return {.status = 400,
          .code = "invalid_value",
          .message = field + ": the answer has come to where no token is known to lead on: it may be at too many places of the "
                             "form at once, as counts within counts have them, or the model has no token for what has to "
                             "follow; send a simpler form",
          .param = field};
}

ApiError stopped(const char* message) { return {.status = 503, .code = "engine_stopped", .message = message}; }

}  // namespace

ApiError Generation::no_memory() {
  return {.status = 503, .code = "unavailable", .message = "there is no memory to go on with the answer; try again"};
}

std::unique_ptr<Generation> Generation::start(const ServedModel& model, GenerationJob job,
                                              ServerMetrics& metrics, Mailbox::Wake wake) {
  std::vector<PreparedPrompt> prompts = std::move(job.prompts);
  const GenerationOptions asked = std::move(job.options);
  job.writer->set_options(asked);
  // Not a unique_ptr's constructor call: it is private.
  std::unique_ptr<Generation> generation(
      new Generation(model, std::move(job), metrics, std::move(wake)));
  generation->submit(std::move(prompts), asked);
  return generation;
}

Generation::Generation(const ServedModel& model, GenerationJob job, ServerMetrics& metrics,
                       Mailbox::Wake wake)
    : model_(model),
      metrics_(metrics),
      writer_(std::move(job.writer)),
      options_(writer_->options()),
      history_(job.history),
      cache_log_(job.cache_log),
      tenant_(job.tenant),
      waits_(job.waits),
      asked_(job.asked),
      next_turn_(std::move(job.next_turn)),
      keeps_answer_(job.keeps_answer ||
                    ((history_ != nullptr || next_turn_ != nullptr) && options_.attention.window == 0)),
      salt_(std::move(job.salt)),
      max_waiting_bytes_(job.max_waiting_bytes),
      mailbox_(std::make_shared<Mailbox>(std::move(wake), max_waiting_bytes_)),
      held_bytes_(job.num_repeated_bytes) {
  // The engine goes by its own.
  options_.sampling.logit_bias = std::vector<std::pair<TokenId, float>>();
  options_.sampling.constraint = nullptr;
}

// Of thousands of requests in line each may ask for many choices: they are made when there is something to put into them.
void Generation::make_choices() {
  const auto stops = options_.stop.empty() ? nullptr : std::make_shared<const StopStrings>(std::move(options_.stop));
  ToolCallRules thoughts = options_.tool_calls;
  thoughts.are_read = false;  // calls do not matter
  choices_.reserve(static_cast<std::size_t>(num_unfinished_));
  for (std::size_t prompt = 0; prompt < continues_text_.size(); ++prompt) {
    for (int i = 0; i < options_.best_of; ++i) {
      Choice& choice = choices_.emplace_back(TextStream(model_.tokenizer, stops, options_.include_stop,
                                                        !options_.skip_special_tokens, continues_text_[prompt],
                                                        options_.sampling.min_tokens));
      if (options_.sampling.num_logprobs >= 0) {
        choice.decoder.emplace(model_.tokenizer, !options_.skip_special_tokens, continues_text_[prompt]);
      }
      if (thoughts.parts_thoughts || thoughts.is_harmony) choice.thought_meter.emplace(thoughts);
      choice.index = static_cast<int>(choices_.size()) - 1;
      choice.prompt = static_cast<int>(prompt);
    }
  }
}

Generation::~Generation() {
  mailbox_->close();
  for (std::size_t prompt = 0; prompt < request_ids_.size(); ++prompt) {
    if (num_open_[prompt] > 0) model_.engine.cancel(request_ids_[prompt]);
  }
  tell_of_interrupted();
  for (const OpenPrompt& prompt : open_prompts_) cache_log_->close(prompt);
  if (!done_) observe_unfinished("abort");
}

bool Generation::is_behind(std::size_t times) const {
  return !may_pause() && mailbox_->size_bytes() / times > max_waiting_bytes_;
}

void Generation::keep_pace() {
  const bool was_paused = is_paused_;
  is_paused_ = may_pause() && mailbox_->size_bytes() > (was_paused ? max_waiting_bytes_ / 2 : max_waiting_bytes_);
  if (is_paused_ == was_paused) return;
  for (std::size_t prompt = 0; prompt < request_ids_.size(); ++prompt) {
    if (num_open_[prompt] > 0) model_.engine.pause(request_ids_[prompt], is_paused_);
  }
  for (WaitPredictor::Place& place : places_) place.hold(is_paused_, steady_now_ns());
}

// What was generated may come back all the same.
void Generation::tell_of_interrupted() noexcept {
  if (done_) return;
  try {
    for (const Choice& choice : choices_) {
      if (choice.done()) continue;
      if (history_ != nullptr) history_->remember_broken(salt_, asked_, choice.token_ids);
      if (shows_all() && first_of(choice).cache_report) tell_answer(choice);
    }
  } catch (const std::exception&) {
    // Without memory, a report will say less.
  }
}

void Generation::submit(std::vector<PreparedPrompt> prompts, const GenerationOptions& asked) {
  request_ids_.reserve(prompts.size());
  if (asked.sampling.constraint) form_field_ = asked.format.is_text() ? "tools" : asked.format.field;  // calls are demanded
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    metrics_.count_kept_turns(prompts[i].num_kept_turns, prompts[i].num_kept_tokens);
    if (cache_log_ != nullptr) open(prompts[i], asked);
    if (waits_ != nullptr) places_.emplace_back(*waits_, static_cast<std::int64_t>(prompts[i].tokens.size()), steady_now_ns());
    count_prompt_logprobs(prompts[i].tokens.size());
    if (options_.return_token_ids && !options_.stream)
      num_entries_ += prompts[i].tokens.size() * static_cast<std::size_t>(options_.n);
    Request request;
    request.prompt = std::move(prompts[i].tokens);
    request.prediction = std::move(prompts[i].prediction);
    request.sampling = asked.sampling;
    if (!asked.has_max_tokens) {  // else the engine holds it to what the prompt leaves
      request.sampling.max_tokens = prompts[i].max_tokens;
      request.sampling.min_tokens = std::min(request.sampling.min_tokens, prompts[i].max_tokens);
    }
    continues_text_.push_back(prompts[i].continues_text);
    max_tokens_.push_back(prompts[i].max_tokens);
    num_open_.push_back(options_.best_of);
    num_unfinished_ += options_.best_of;
    request.n = options_.best_of;
    if (options_.best_of > options_.n) {  // they are chosen by what their tokens' logprobs sum to
      request.sampling.num_logprobs = std::max(request.sampling.num_logprobs, 0);
    }
    request.tenant = tenant_;
    request.priority = asked.priority;
    request.waits_until_shared = options_.hands_over;
    request.pins = std::move(prompts[i].pins);
    request.salt = salt_;
    request.attention_window = options_.attention.window;
    request.attention_sinks = options_.attention.num_sinks;
    request.on_update = [mailbox = mailbox_, prompt = static_cast<int>(i)](RequestUpdate&& update) {
      mailbox->push(prompt, std::move(update));
    };
    request_ids_.push_back(model_.engine.submit(std::move(request)));
  }
}

// However slow the reader is, they come all at once, and for all choices of a prompt as one list: so they count from the
// beginning. What is written of them is there for each choice in a body, and in a stream one choice after the other.
void Generation::count_prompt_logprobs(std::size_t num_prompt) {
  const int num_best = options_.sampling.num_prompt_logprobs;
  if (num_best < 0 || num_prompt < 2) return;
  const std::size_t num_tokens = num_prompt - 1;
  const auto num_each = static_cast<std::size_t>(num_best);
  const std::size_t num_written = num_tokens * (num_each + 1) * kWrittenEntryBytes;
  const std::size_t num_before = prompt_logprob_bytes_;
  prompt_logprob_bytes_ += num_tokens * (sizeof(OutputToken) + num_each * sizeof(TokenLogprob));
  if (!options_.stream) {
    prompt_logprob_bytes_ += num_written * static_cast<std::size_t>(options_.n);
  } else if (num_written > largest_event_bytes_) {
    prompt_logprob_bytes_ += num_written - std::exchange(largest_event_bytes_, num_written);
  }
  held_bytes_ += prompt_logprob_bytes_ - num_before;
  num_untold_ += options_.best_of;
}

void Generation::open(PreparedPrompt& prompt, const GenerationOptions& asked) {
  PromptOrigin origin = std::move(prompt.origin);
  origin.id = writer_->id();
  if (!open_prompts_.empty()) origin.id = fmt::format("{}-{}", origin.id, open_prompts_.size());
  origin.tenant = tenant_;
  origin.salt = hash_text(salt_);
  origin.conversation = hash_text(asked.prompt_cache_key);
  origin.num_shareable = options_.attention.num_shareable();
  OpenPrompt open = cache_log_->open(std::move(origin), prompt.tokens, asked.comparison_id);
  open.normalised = std::move(prompt.normalised);
  open.num_kept_tokens = prompt.num_kept_tokens;
  open_prompts_.push_back(std::move(open));
}

// Of the first choice's first update.
void Generation::report(Choice& choice, const RequestUpdate& update) {
  if (cache_log_ == nullptr || update.choice != 0 || choice.cache_report) return;
  choice.cache_report = cache_log_->explain(open_prompts_[static_cast<std::size_t>(choice.prompt)], update);
}

// Whichever the client goes on with: it has edited none.
void Generation::tell_answer(const Choice& choice) const {
  if (cache_log_ == nullptr) return;
  cache_log_->complete(open_prompts_[static_cast<std::size_t>(choice.prompt)], choice.token_ids);
}

const Choice& Generation::first_of(const Choice& choice) const {
  return choices_[static_cast<std::size_t>(choice.prompt * options_.best_of)];
}

std::string Generation::advance(std::size_t max_bytes) {
  std::string out;
  // What the last call returned has been written.
  if (options_.stream && num_untold_ == 0) held_bytes_ -= std::exchange(prompt_logprob_bytes_, 0);
  if (options_.stream && !std::exchange(begun_, true)) writer_->begin(out);
  while (!done_ && !has_large_reply_ && out.size() < max_bytes) {
    const bool was_alive = model_.engine.alive();  // asked first: it may deliver the end, and end
    std::optional<Mailbox::Item> item = mailbox_->pop();
    if (!item) {
      if (mailbox_->has_lost()) {
        fail(out, no_memory());
      } else if (!was_alive) {
        fail(out, stopped(kEngineStopped));
      }
      break;
    }
    has_large_reply_ = options_.stream && is_large(item->update);
    if (has_large_reply_) {
      large_item_ = std::move(item);
    } else {
      take(std::move(*item), out);
    }
  }
  return out;
}

bool Generation::is_large(const RequestUpdate& update) const {
  if (update.prompt_logprobs == nullptr) return false;
  const auto num_each = static_cast<std::size_t>(options_.sampling.num_prompt_logprobs) + 1;
  return update.prompt_logprobs->size() * num_each > kManyEntries;
}

std::string Generation::write_reply() {
  has_large_reply_ = false;
  std::string out;
  if (large_item_) {
    take(*std::exchange(large_item_, std::nullopt), out);
  } else {
    finish(out);
  }
  return out;
}

std::string Generation::interrupt() {
  return break_off(stopped("the server ends, and the answer is not complete; try again"));
}

std::string Generation::break_off(const ApiError& error) {
  std::string out = advance(0);  // its beginning
  if (std::exchange(large_item_, std::nullopt)) has_large_reply_ = false;  // that nobody will write
  if (!done_ && !has_large_reply_) fail(out, error);
  return out;
}

std::string Generation::cancel() {
  std::string out = advance(0);  // its beginning
  if (!done_) writer_->cancelled(out);
  return out;
}

std::string Generation::ping() {
  std::string out;
  if (options_.stream && !done_) writer_->ping(out);
  return out;
}

std::unique_ptr<NextTurn> Generation::take_next_turn() {
  if (!done_ || failed() || next_turn_ == nullptr) return nullptr;
  const Choice& answer = choices_.front();
  next_turn_->answer = answer.text;
  next_turn_->tokens.insert(next_turn_->tokens.end(), answer.token_ids.begin(), answer.token_ids.end());
  return std::move(next_turn_);
}

HttpResponse Generation::failure_response() const { return writer_->failure_response(*failure_); }

void Generation::take(Mailbox::Item item, std::string& out) {
  if (choices_.empty()) make_choices();
  const int best_of = options_.best_of;
  Choice& choice =
      choices_.at(static_cast<std::size_t>(item.prompt * best_of + item.update.choice));
  RequestUpdate& update = item.update;
  if (choice.done()) return;  // a stop string ended it before the engine knew
  if (update.finish == FinishReason::kCancelled) return fail(out, stopped(kEngineStopped));
  if (update.finish == FinishReason::kLost) return fail(out, stopped(kWorkerLost));
  if (update.finish == FinishReason::kNoMemory) return fail(out, no_memory());
  if (update.finish == FinishReason::kStuck) return fail(out, stuck(form_field_));

  const bool engine_ended_it = update.finish != FinishReason::kNone;
  observe(choice, update);
  ChoiceDelta delta = absorb(choice, update);
  keep(choice, delta);
  report(choice, update);
  if (choice.done()) {
    --num_unfinished_;
    remember(choice);
    if (shows_all()) tell_answer(choice);
    observe_finished(choice, choice.finish == FinishReason::kStop ? "stop" : "length");
    const auto prompt = static_cast<std::size_t>(item.prompt);
    --num_open_[prompt];
    if (!engine_ended_it) model_.engine.cancel_choice(request_ids_[prompt], update.choice);
  }
  emit(choice, std::move(delta), out);
  if (num_unfinished_ > 0) return;
  has_large_reply_ = !options_.stream && num_entries_ > kManyEntries;
  if (!has_large_reply_) finish(out);
}

// The token that opens a thought and the one that ends it are part of it.
void Generation::count_thought(Choice& choice, std::string_view text) {
  const bool was_in_thought = choice.thought_meter->is_in_thought();
  choice.thought_meter->push(text);
  choice.num_thought_tokens += was_in_thought || choice.thought_meter->is_in_thought() ? 1 : 0;
}

// Decodes the update's tokens, up to the stop string if there is one.
ChoiceDelta Generation::absorb(Choice& choice, RequestUpdate& update) {
  ChoiceDelta delta;
  if (update.prompt_logprobs != nullptr) --num_untold_;
  delta.prompt_logprobs = std::move(update.prompt_logprobs);
  choice.usage = update.usage;
  choice.times = update.times;
  for (OutputToken& token : update.tokens) {
    const std::string text = choice.text_stream.push(token.token);
    delta.text += text;
    if (choice.thought_meter) count_thought(choice, text);
    choice.sum_logprob += token.logprob;
    ++choice.num_tokens;
    delta.tokens.push_back(std::move(token));
    if (choice.text_stream.stopped()) {
      choice.finish = FinishReason::kStop;
      choice.stop_string = choice.text_stream.stop_string();
      return delta;
    }
  }
  choice.finish = update.finish;
  choice.stop_token = update.stop_token;
  if (!choice.done()) return delta;
  delta.text += choice.text_stream.finish();
  if (choice.text_stream.stopped()) {  // what was held back made a stop string after all
    choice.finish = FinishReason::kStop;
    choice.stop_string = choice.text_stream.stop_string();
  }
  return delta;
}

// Of a stream only what will be needed: an endless one, which is not remembered, is to take no memory.
void Generation::keep(Choice& choice, const ChoiceDelta& delta) {
  if (options_.attention.window == 0) {
    for (const OutputToken& token : delta.tokens) choice.token_ids.push_back(token.token);
  }
  if (!keeps_answer_ && options_.stream) return;
  choice.text += delta.text;
  held_bytes_ += delta.text.size();
}

void Generation::remember(const Choice& choice) const {
  if (history_ != nullptr) history_->remember(salt_, asked_, choice.text, choice.token_ids);
}

void Generation::observe(Choice& choice, const RequestUpdate& update) {
  const bool is_first = choice.num_tokens == 0;
  // A stop token comes as late as any other, though it is not shown.
  if (update.tokens.empty() && !update.stop_token) return;
  const RequestTimes& times = update.times;
  if (is_first) {
    if (waits_ != nullptr) places_.at(static_cast<std::size_t>(choice.prompt)).begin(steady_now_ns());
    metrics_.observe_first_token(static_cast<double>(times.first_token_ns - times.arrived_ns) *
                                 1e-9);
  } else if (!update.follows_pause) {
    metrics_.observe_inter_token(
        static_cast<double>(times.last_token_ns - choice.times.last_token_ns) * 1e-9);
  }
}

void Generation::observe_finished(const Choice& choice, const char* reason) {
  // A prompt is computed once, for the first of its choices.
  const bool is_first = (&choice - choices_.data()) % options_.best_of == 0;
  metrics_.observe_finished({.reason = reason,
                             .num_prompt_tokens = choice.usage.num_prompt_tokens,
                             .num_cached_tokens = is_first ? choice.usage.num_cached_tokens
                                                           : choice.usage.num_prompt_tokens,
                             .num_output_tokens = choice.num_generated(),
                             .max_tokens = max_tokens_.at(static_cast<std::size_t>(choice.prompt)),
                             .times = choice.times});
}

// Of those that the engine has, whether or not there are choices yet.
void Generation::observe_unfinished(const char* reason) {
  for (const Choice& choice : choices_) {
    if (!choice.done()) observe_finished(choice, reason);
  }
  if (!choices_.empty()) return;
  for (std::size_t prompt = 0; prompt < request_ids_.size(); ++prompt) {
    for (int i = 0; i < options_.best_of; ++i)
      metrics_.observe_finished({.reason = reason, .max_tokens = max_tokens_[prompt]});
  }
}

void Generation::emit(Choice& choice, ChoiceDelta delta, std::string& out) {
  const auto num_each = static_cast<std::size_t>(std::max(0, options_.sampling.num_logprobs) + 1);
  const std::size_t written_bytes = writer_->num_written_logprobs() * kWrittenEntryBytes;
  const bool shows_tokens = options_.sampling.num_logprobs >= 0 || options_.return_token_ids;
  if (!options_.stream) {
    if (delta.prompt_logprobs != nullptr) {
      choice.prompt_logprobs = std::move(delta.prompt_logprobs);
      num_entries_ += choice.prompt_logprobs->size() * num_each;
    }
    if (!shows_tokens) return;
    const std::size_t num_entries = delta.tokens.size() * num_each;
    num_entries_ += num_entries;
    held_bytes_ += delta.tokens.size() * sizeof(OutputToken) + num_entries * (sizeof(TokenLogprob) + written_bytes);
    choice.tokens.insert(choice.tokens.end(), std::make_move_iterator(delta.tokens.begin()),
                         std::make_move_iterator(delta.tokens.end()));
    return;
  }
  const bool has_news = !delta.text.empty() || choice.done() || delta.prompt_logprobs != nullptr ||
                        (shows_tokens && !delta.tokens.empty());
  if (!has_news) return;  // everything is held back for now
  held_bytes_ += delta.tokens.size() * num_each * written_bytes;
  writer_->delta(choice, std::move(delta), choices_, out);
}

void Generation::finish(std::string& out) {
  done_ = true;
  // To the engine, and so to vLLM's metrics, each prompt is a request.
  for (std::size_t i = 0; i < num_open_.size(); ++i) metrics_.observe_n(options_.n);
  if (options_.stream) return writer_->end(choices_, out);
  std::vector<Choice*> shown = chosen();
  if (!shows_all()) {
    for (const Choice* choice : shown) tell_answer(*choice);
  }
  out = writer_->whole(shown, choices_);
}

void Generation::fail(std::string& out, const ApiError& error) {
  done_ = true;
  failure_ = error;
  observe_unfinished("error");
  if (options_.stream) writer_->failure(*failure_, out);
}

// Of each prompt's best_of choices the n with the greatest mean logprob, numbered anew.
std::vector<Choice*> Generation::chosen() {
  const auto mean = [](const Choice* choice) {
    return choice->num_tokens > 0 ? choice->sum_logprob / choice->num_tokens : -1e30;
  };
  std::vector<Choice*> shown;
  for (auto first = choices_.begin(); first != choices_.end(); first += options_.best_of) {
    std::vector<Choice*> group;
    for (int i = 0; i < options_.best_of; ++i) group.push_back(&first[i]);
    if (options_.n < options_.best_of) {
      std::stable_sort(group.begin(), group.end(),
                       [&](const Choice* a, const Choice* b) { return mean(a) > mean(b); });
    }
    shown.insert(shown.end(), group.begin(), group.begin() + options_.n);
  }
  for (std::size_t i = 0; i < shown.size(); ++i) shown[i]->index = static_cast<int>(i);
  return shown;
}

}  // namespace larder
