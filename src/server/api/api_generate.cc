// Router's handlers that make the engine work.
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "server/answer/answer_grammar.h"
#include "server/api/response_plan.h"
#include "server/api/router.h"
#include "server/chat/tool_prompt.h"
#include "server/json_fields.h"
#include "server/server_limits.h"
#include "server/upstream/upstream.h"

namespace larder {
namespace {

// What the model wrote to a question; nullopt: the request has not asked it yet.
std::optional<std::string> answer_to(const HttpRequest& request, const Digest& key) {
  const auto found = request.answers.find(key);
  if (found == request.answers.end()) return std::nullopt;
  const Json answer = parse_json(found->second, {});
  const Json& content = answer["choices"][0]["message"]["content"];  // null: it was a call
  return content.is_string() ? content.get<std::string>() : std::string();
}

// A reply is held until it is whole, a stream only its prompts' part. An answer that was given no end has most likely
// its own long before the context's; what it comes to hold is bounded while it grows.
void require_room_for_logprobs(const GenerationJob& job, const ServerLimits& limits) {
  const GenerationOptions& options = job.options;
  const SamplingParams& sampling = options.sampling;
  const std::int64_t per_prompt_token = std::int64_t{1} + sampling.num_prompt_logprobs;  // 0 = none
  const bool counts_answers = !options.stream && options.has_max_tokens;
  const std::int64_t per_token = counts_answers ? std::int64_t{1} + sampling.num_logprobs : 0;
  std::int64_t num_of_prompts = 0, num_of_answers = 0;
  for (const PreparedPrompt& prompt : job.prompts) {
    num_of_prompts += static_cast<std::int64_t>(prompt.tokens.size()) * per_prompt_token;
    num_of_answers += prompt.max_tokens * per_token;
  }
  num_of_prompts *= options.best_of;
  const std::int64_t num_entries = num_of_prompts + num_of_answers * options.best_of;
  if (num_entries <= limits.max_logprob_entries) return;
  const bool helps_streaming = !options.stream && num_of_prompts <= limits.max_logprob_entries;
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("{}: the reply may come to hold {} of them at once, at most {}; {}",
                          options.names.logprobs, num_entries, limits.max_logprob_entries,
                          helps_streaming ? fmt::format("lower {}, split the request or stream it",
                                                        options.names.max_tokens)
                                          : "split the request"),
              options.names.logprobs);
}

// So many choices repeat their prompt each, as text and as token ids. Returns how many bytes these take.
std::size_t require_room_for_prompts(const GenerationJob& job, const GenerationOptions& options, int num_repeats,
                                     const ServerLimits& limits) {
  std::size_t num_echoed = 0, num_of_ids = 0;  // bytes
  for (const PreparedPrompt& prompt : job.prompts) {
    if (prompt.echo) num_echoed += prompt.echo->text.size();
    if (options.return_token_ids) num_of_ids += prompt.tokens.size() * sizeof(Json);
  }
  const std::size_t num_bytes = (num_echoed + num_of_ids) * static_cast<std::size_t>(num_repeats);
  if (num_bytes <= limits.max_total_reply_bytes) return num_bytes;
  fail_field(num_echoed > num_of_ids ? "echo" : "return_token_ids",
             fmt::format("what {} choices repeat of each prompt takes {} bytes, at most {}; lower n, split the request or "
                         "leave it out",
                         num_repeats, num_bytes, limits.max_total_reply_bytes));
}

}  // namespace

AskedTokens asked_tokens(const HttpRequest& request) {
  AskedTokens asked;
  for (const auto& [key, body] : request.answers) {
    const Json usage = parse_json(body, {}).at("usage");
    const Json& details = usage.at("prompt_tokens_details");
    asked.num_input += usage.at("prompt_tokens").get<std::int64_t>();
    asked.num_cached += details.at("cached_tokens").get<std::int64_t>();
    asked.num_written += details.at("cache_write_tokens").get<std::int64_t>();
    asked.num_output += usage.at("completion_tokens").get<std::int64_t>();
    if (const auto thought = usage.find("completion_tokens_details"); thought != usage.end())
      asked.num_thought += thought->value("reasoning_tokens", std::int64_t{0});
  }
  return asked;
}

std::string Router::salt_of(const HttpRequest& request, const GenerationOptions& options) const {
  const std::optional<Digest> key = keys_.empty() ? std::nullopt : key_of(request);
  return derive_salt(key ? std::optional(keys_.cache_owner(*key)) : std::nullopt,
                     options.cache_salt);
}

std::optional<GenerationJob> Router::settle_chat(const HttpRequest& request, ChatRequest& chat, SettledChat& settled) const {
  constexpr std::size_t kMaxErrands = 32;  // of one request
  const Summarizer summarizer{
      .table = *summaries_,
      .tokenizer = model_.tokenizer,
      .salt = salt_of(request, chat.options),
      .measure = [&](const ChatRequest& asked) { return measure_chat(asked, model_); },
      .answer = [&](const Digest& key) { return answer_to(request, key); },
      .may_ask = request.answers.size() < kMaxErrands,
      .max_model_len = model_.max_model_len};
  settled = settle(chat, model_, summarizer, *history_);
  if (SummaryQuestion* const question = settled.question()) return prepare_errand(summarizer.salt, std::move(*question));
  if (settled.history && !request.answers.empty()) {
    const AskedTokens asked = asked_tokens(request);
    settled.history->summary_usage = {{"answers", request.answers.size()},
                                      {"input_tokens", asked.num_input},
                                      {"cached_tokens", asked.num_cached},
                                      {"output_tokens", asked.num_output}};
  }
  return std::nullopt;
}

GenerationJob Router::prepare_errand(std::string salt, SummaryQuestion question) const {
  ChatRequest& chat = question.chat;
  GenerationJob job;
  job.errand.emplace(question.key);
  job.salt = std::move(salt);
  adapt_chat(chat, model_.abilities);
  chat.known_turns = recall_turns(*history_, job.salt, chat);
  job.prompts.push_back(prepare_chat(chat, model_));
  job.prompts.back().origin.is_servers_own = true;
  // Whatever clients are shown: what the model thinks of it is no answer.
  part_thoughts(chat.options.tool_calls, job.prompts.back());
  job.writer = make_chat_writer(model_.name, model_.tokenizer);
  job.options = std::move(chat.options);
  return job;
}

GenerationJob Router::prepare_job(const HttpRequest& request, ChatRequest& chat) const {
  SettledChat settled;
  if (auto errand = settle_chat(request, chat, settled)) {
    errand->errand->is_for_stream = chat.options.stream;
    return *std::move(errand);
  }
  GenerationJob job;
  job.salt = salt_of(request, chat.options);
  for (const std::string& name : settled.normalised) metrics_.count_normalisation(name);
  job.history_report = std::move(settled.history);
  job.prompts.push_back(prepare_chat(chat, model_));
  job.prompts.back().normalised = std::move(settled.normalised);
  constrain(chat, job.prompts.back().ends_in_thought);
  // An endless answer never comes back, and half of one does not come back alone.
  if (chat.options.attention.window == 0 && !chat.continue_final_message) {
    job.history = history_.get();
    job.asked = settled.last;
  }
  return job;
}

void Router::constrain(ChatRequest& chat, bool ends_in_thought) const {
  GenerationOptions& options = chat.options;
  ToolCallRules& calls = options.tool_calls;
  // A call that is demanded is one that can be read, whatever the template would have the model write.
  if (options.tool_choice.has_to_call()) calls.are_read = true;
  const Json& tools = chat.tools.is_null() ? chat.adapted_tools : chat.tools;
  static const Json kNone;
  const AnswerRules rules{.format = options.format,
                          .tool_choice = options.tool_choice,
                          .takes_many_calls = calls.takes_many,
                          .is_harmony = calls.is_harmony && !calls.begins_in_text && has_harmony_tokens(model_.tokenizer),
                          .spelling = calls.spelling,
                          .tools = calls.are_read ? tools : kNone};
  options.sampling.constraint = constraints_->find(rules);
  // What may be nothing but JSON or calls is no thought, whatever the prompt ends with; and a text that was asked for as
  // it is stays whole.
  const bool is_free = options.format.is_text() && !options.tool_choice.has_to_call();
  calls.begins_in_thought = ends_in_thought && is_free;
  calls.parts_thoughts = options.parts_thoughts.value_or(config_.parts_thoughts) && is_free;
  if (calls.is_harmony && options.parts_thoughts == false)
    fail_field("reasoning_format", "this model's thoughts are messages of their own, not part of its text; leave it out");
}

void Router::keep_next_turn(ChatRequest chat, GenerationJob& job) const {
  if (next_turns_ == nullptr) return;
  const AskedTurn asked{.options = job.options, .salt = job.salt, .prompt = job.prompts.front().tokens};
  job.next_turn = keep_for_next_turn(std::move(chat), asked, *next_turns_);
}

void Router::prepare_next_turn(NextTurn turn) const noexcept {
  try {
    if (model_.engine.stats().num_waiting > 0) return;  // nor will there be time soon
    auto expected = begin_next_turn(std::move(turn), *history_, model_);
    if (!expected || std::ssize(expected->prompt) >= model_.max_model_len) return;
    model_.engine.anticipate(std::move(*expected));
  } catch (const std::exception&) {
    // Without memory nothing is done ahead.
  }
}

std::uint64_t Router::tenant_of(const HttpRequest& request) const {
  const std::optional<Digest> key = keys_.empty() ? std::nullopt : key_of(request);
  return key ? hash_text(to_hex(*key)) : 0;
}

std::unique_ptr<Generation> Router::begin(const HttpRequest& request, GenerationJob job, Mailbox::Wake wake) const {
  require_room_for_logprobs(job, config_.limits);
  if (job.salt.empty()) job.salt = salt_of(request, job.options);
  job.cache_log = cache_log_.get();
  if (upstream_ != nullptr && upstream_->config().when.if_busy) job.waits = &upstream_->waits();
  job.tenant = tenant_of(request);
  job.max_waiting_bytes = config_.limits.max_stream_buffer_bytes;
  if (job.history_report) job.writer->set_history(job.history_report->json());
  return Generation::start(model_, std::move(job), metrics_, std::move(wake));
}

Reply Router::generate(const HttpRequest& request, GenerationJob job, Mailbox::Wake wake) const {
  Reply reply{.errand = job.errand};
  reply.generation = begin(request, std::move(job), std::move(wake));
  return reply;
}

Reply Router::chat_here(const HttpRequest& request, Json body, const UpstreamRoute& route, Mailbox::Wake wake) const {
  ChatRequest chat = parse_chat_request(std::exchange(body, {}), rules());
  require_model(chat.options.model);
  require_short_wait(route);
  GenerationJob job = prepare_job(request, chat);
  if (job.errand) return generate(request, std::move(job), std::move(wake));
  require_room_for_answers(route, chat.options, job.prompts);
  const int num_repeats = chat.options.stream ? chat.options.n : 1;  // a reply that is whole tells it once
  job.num_repeated_bytes = require_room_for_prompts(job, chat.options, num_repeats, config_.limits);
  job.writer = make_chat_writer(model_.name, model_.tokenizer);
  if (chat.options.return_token_ids) job.writer->set_prompts({job.prompts.front().tokens});
  job.options = std::move(chat.options);
  keep_next_turn(std::move(chat), job);
  return generate(request, std::move(job), std::move(wake));
}

Reply Router::complete_here(const HttpRequest& request, Json body, const UpstreamRoute& route,
                            Mailbox::Wake wake) const {
  CompletionRequest completion = parse_completion_request(std::exchange(body, {}), rules());
  require_model(completion.options.model);
  require_short_wait(route);
  GenerationJob job;
  job.prompts = prepare_completion(completion, model_);
  require_room_for_answers(route, completion.options, job.prompts);
  job.num_repeated_bytes = require_room_for_prompts(job, completion.options, completion.options.n, config_.limits);
  completion.options.sampling.constraint = constraints_->find(
      {.format = completion.options.format, .tool_choice = completion.options.tool_choice, .tools = {}});
  std::vector<EchoedPrompt> echo;
  std::vector<std::vector<TokenId>> tokens;
  for (std::size_t i = 0; i < job.prompts.size(); ++i) {
    const bool shown = completion.echo || completion.options.return_token_ids;
    if (shown) tokens.push_back(job.prompts[i].tokens);
    if (completion.echo) echo.push_back(std::move(*job.prompts[i].echo));
  }
  job.writer = make_completion_writer(model_.name, model_.tokenizer, std::move(echo));
  job.writer->set_prompts(std::move(tokens));
  job.options = std::move(completion.options);
  return generate(request, std::move(job), std::move(wake));
}

}  // namespace larder
