#include "server/api/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/error.h"
#include "server/api/kv_transfer.h"
#include "server/api/openai_tools.h"
#include "server/api/prediction.h"
#include "server/api/sampling_lists.h"
#include "server/chat/session_store.h"
#include "server/chat/text_file.h"
#include "server/json_fields.h"

namespace larder {
namespace {

constexpr std::size_t kMaxTemplateKwargs = 256;  // a template looks through all for each name
constexpr std::size_t kMaxTemplateKwargsBytes = std::size_t{1} << 20;

// What vLLM and llama.cpp have besides, and OpenAI had; a value that changes nothing is none.
void refuse_other_servers_fields(const Fields& fields) {
  constexpr const char* kInsteadOfBudget = "send max_tokens, or chat_template_kwargs.enable_thinking, if the template takes it";
  static const struct {
    const char* name;
    Json neutral;
    const char* instead;
  } kFields[] = {{"allowed_token_ids", Json::array(), "send logit_bias"},
                 {"bad_words", Json::array(), "send logit_bias"},
                 {"repeat_penalty", 1, "send repetition_penalty"},
                 {"n_predict", -1, "send max_tokens"},
                 {"prompt_logprobs", Json(), "send echo and logprobs to /v1/completions"},
                 {"length_penalty", 1, "leave it out"},
                 {"typical_p", 1, "leave it out"},
                 {"mirostat", 0, "leave it out"},
                 {"dry_multiplier", 0, "leave it out"},
                 {"xtc_probability", 0, "leave it out"},
                 {"dynatemp_range", 0, "leave it out"},
                 {"thinking_token_budget", Json(), kInsteadOfBudget},
                 {"thinking_budget_tokens", -1, kInsteadOfBudget},
                 {"reasoning_budget", -1, kInsteadOfBudget},
                 {"reasoning_budget_tokens", -1, kInsteadOfBudget},
                 {"lora", Json::array(), "leave it out"},
                 {"functions", Json::array(), "send tools and tool_choice"},
                 {"function_call", "none", "send tools and tool_choice"},
                 {"chat_template", Json(), "give the server --chat-template"},
                 {"documents", Json::array(), "send chat_template_kwargs.documents, if the template takes them"}};
  for (const auto& [name, neutral, instead] : kFields) {
    const Json* value = fields.find(name);
    if (value != nullptr && *value != neutral) fields.fail(name, fmt::format("is not supported; {}", instead));
  }
  const Json* sigma = fields.find("top_n_sigma");
  if (sigma != nullptr && !(sigma->is_number() && *sigma <= 0)) fields.fail("top_n_sigma", "is not supported; send min_p");
}

// Accepting these and then not obeying them would answer another question than the one asked.
void refuse_missing_features(const Fields& fields) {
  for (const char* name : {"web_search_options", "audio", "moderation"}) {
    if (fields.has(name)) fields.fail(name, "is not supported; leave it out");
  }
  refuse_other_servers_fields(fields);
  const Json* modalities = fields.find("modalities");
  if (modalities != nullptr && *modalities != Json::array({"text"}) && *modalities != Json::array()) {
    fields.fail("modalities", "only [\"text\"] is supported");
  }
  if (fields.boolean("use_beam_search", false)) {
    fields.fail("use_beam_search", "beam search is not supported; use best_of");
  }
}

void read_sampling(const Fields& fields, const RequestRules& rules, SamplingParams& sampling) {
  const auto number = [&](const char* name, Range<double> range, float& value) {
    if (const auto given = fields.number(name, range)) value = static_cast<float>(*given);
  };
  number("temperature", {0, 2}, sampling.temperature);
  number("top_p", {0, 1}, sampling.top_p);
  number("min_p", {0, 1}, sampling.min_p);
  number("repetition_penalty", {0.01, 10}, sampling.repetition_penalty);
  number("frequency_penalty", {-2, 2}, sampling.frequency_penalty);
  number("presence_penalty", {-2, 2}, sampling.presence_penalty);
  if (const auto k = fields.integer("top_k", {-1, kMaxInt32})) {
    sampling.top_k = static_cast<int>(std::max<std::int64_t>(*k, 0));  // -1 and 0: all
  }
  settle_top_p(sampling);
  const auto seed = fields.integer("seed", {std::numeric_limits<std::int64_t>::min(),
                                            std::numeric_limits<std::int64_t>::max()});
  // So clients of vLLM and llama.cpp ask for a new one.
  if (seed && *seed != -1) sampling.seed = static_cast<std::uint64_t>(*seed);
  sampling.min_tokens =
      static_cast<int>(fields.integer("min_tokens", {0, rules.max_model_len}).value_or(0));
  sampling.ignore_eos = fields.boolean("ignore_eos", false);
  read_stop_token_ids(fields, rules, sampling);
  read_logit_bias(fields, rules, sampling);
}

void read_stream(const Fields& fields, GenerationOptions& options) {
  options.stream = fields.boolean("stream", false);
  const Json* value = fields.find("stream_options");
  if (value == nullptr) return;
  if (!options.stream) fields.fail("stream_options", "is for \"stream\": true only; leave it out");
  const Fields inner(*value, "stream_options");
  options.include_usage = inner.boolean("include_usage", false);
  options.continuous_usage = inner.boolean("continuous_usage_stats", false);
}

void read_truncation(const Fields& fields, const RequestRules& rules, GenerationOptions& options) {
  const auto given = fields.integer("truncate_prompt_tokens", {-1, rules.max_model_len - 1});
  if (!given) return;
  if (*given == 0) {
    fields.fail("truncate_prompt_tokens", "must be at least 1, or -1 for as many as fit");
  }
  options.truncate_prompt_tokens = static_cast<int>(*given);
}

// What fits together is the engine's to say.
void read_attention(const Fields& fields, const RequestRules& rules, GenerationOptions& options) {
  options.attention = rules.attention;
  if (const auto window = fields.integer("attention_window", {0, kMaxEndlessTokens})) {
    options.attention = {.window = static_cast<int>(*window), .num_sinks = 0};
  }
  if (const auto num_sinks = fields.integer("attention_sinks", {0, kMaxEndlessTokens})) {
    options.attention.num_sinks = static_cast<int>(*num_sinks);
  }
}

constexpr int kMinute = 60;

// Whether, and how long, the whole prompt is to stay in the cache.
void read_cache_options(const Fields& fields, bool takes_long, GenerationOptions& options) {
  // The older form, which goes with the other one.
  const bool is_long = read_either(fields, "prompt_cache_retention", "in_memory", "24h") == "24h";
  const int least_ttl_s = is_long ? 24 * 60 * kMinute : 0;
  const Json* value = fields.find("prompt_cache_options");
  if (value == nullptr) {
    options.pin_ttl_s = least_ttl_s;
    return;
  }
  const Fields inner(*value, "prompt_cache_options");
  // Explicit: only what the request marks is to be kept.
  options.marks_whole_prompt = read_either(inner, "mode", "implicit", "explicit") != "explicit";
  const auto ttl = inner.string("ttl", kMaxNameBytes);
  const bool is_half_day = takes_long && ttl == "12h";
  if (ttl && *ttl != "30m" && !is_half_day) {
    inner.fail("ttl", fmt::format("must be \"30m\"{}, it is \"{}\"",
                                  takes_long ? " or \"12h\"" : "", shorten(*ttl)));
  }
  options.cache_ttl_s = (is_half_day ? 12 * 60 : 30) * kMinute;
  if (options.marks_whole_prompt)
    options.pin_ttl_s = std::max(ttl ? options.cache_ttl_s : 0, least_ttl_s);
}

void set_max_tokens(const Fields& fields, const char* name, std::int64_t min,
                    GenerationOptions& options) {
  const Json* value = fields.find(name);
  if (value != nullptr && *value == Json(-1)) return;  // so clients of llama.cpp leave it out
  // More than the model's length is not an error: it means "as many as there is room for".
  const auto given = fields.integer(name, {min, kMaxInt32});
  if (!given) return;
  options.sampling.max_tokens = static_cast<int>(*given);
  options.has_max_tokens = true;
}

// llama.cpp's reasoning_format and vLLM's include_reasoning.
void read_thoughts(const Fields& fields, GenerationOptions& options) {
  options.shows_thoughts = fields.boolean("include_reasoning", true);
  const auto format = fields.string("reasoning_format", kMaxNameBytes);
  if (format && !is_one_of(*format, {"auto", "deepseek", "none"})) {
    fields.fail("reasoning_format", fmt::format("must be \"auto\", \"deepseek\" or \"none\", it is \"{}\"", shorten(*format)));
  }
  if (format) options.parts_thoughts = *format != "none";
  if (options.shows_thoughts) return;
  if (format == "none") fields.fail("include_reasoning", "cannot be false with \"reasoning_format\": \"none\"; leave that out");
  options.parts_thoughts = true;
}

std::string text_of_part(const Fields& part, const std::string& type) {
  const Json* value = part.find(type);
  if (type == "file") {
    if (value == nullptr) part.fail(type, "is missing; send an object with file_data");
    return text_of_file(Fields(*value, part.path_of(type)));
  }
  if (value == nullptr || !value->is_string()) part.fail(type, "must be a string");
  return value->get<std::string>();
}

// Text parts become one string: what templates of text models expect. The request learns where the
// parts of its last message are, and which of them are marked.
Json flatten_content(const Json& content, const std::string& param, ChatRequest& request) {
  if (content.is_null() || content.is_string()) return content;
  if (!content.is_array()) {
    fail_field(param, fmt::format("must be a string or an array of parts, it is {}",
                                  describe_type(content)));
  }
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Fields part(content[i], fmt::format("{}[{}]", param, i));
    const auto type = part.string("type", kMaxNameBytes).value_or("text");
    if (type != "text" && type != "refusal" && type != "file") {
      part.fail("type",
                fmt::format("\"{}\" is not supported, this model reads text only", shorten(type)));
    }
    if (i > 0) text += '\n';
    text += text_of_part(part, type);
    request.messages.back().parts.push_back({.end = text.size()});
    if (auto mark = read_breakpoint(part, request.options.cache_ttl_s)) {
      mark->message = static_cast<int>(request.messages.size()) - 1;
      mark->part = static_cast<int>(i);
      request.marks.push_back(*mark);
    }
  }
  return text;
}

// Clients send back what they were sent, with null for what there is not; to templates, such a member
// is there.
void drop_absent_members(Json& message) {
  // Erasing from an ordered object moves all that comes behind.
  Json::object_t present;
  for (auto& [name, value] : message.get_ref<Json::object_t&>()) {
    const bool is_absent = (value.is_null() && name != "content") ||
                           (name == "tool_calls" && value == Json::array());
    if (!is_absent) present.emplace_back(name, std::move(value));
  }
  message = std::move(present);
}

void keep_latest_marks(ChatRequest& request) {
  std::vector<CacheMark>& marks = request.marks;
  const std::size_t most = kMaxCacheMarks - (request.options.marks_whole_prompt ? 1 : 0);
  if (marks.size() <= most) return;
  marks.erase(marks.begin(), marks.end() - static_cast<std::ptrdiff_t>(most));
}

void read_messages(const Json& value, ChatRequest& request) {
  if (!value.is_array() || value.empty()) {
    fail_field("messages", "must be an array with at least one message");
  }
  std::size_t values_left = JsonLimits{}.max_values;
  request.messages.reserve(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    request.messages.push_back({.json = value[i], .sent_as = static_cast<int>(i)});
    Json& message = request.messages.back().json;
    const std::string path = fmt::format("messages[{}]", i);
    const Fields fields(message, path);
    const auto role = fields.string("role", kMaxNameBytes);
    if (!role || role->empty())
      fields.fail("role", "is missing; send system, user, assistant or tool");
    if (!is_one_of(*role, {"system", "developer", "user", "assistant", "tool", "function"}))
      fields.fail("role", fmt::format("must be system, developer, user, assistant or tool, it is \"{}\"", shorten(*role)));
    const bool has_content = message.contains("content");
    const bool may_lack =
        *role == "assistant" && (fields.has("tool_calls") || fields.has("refusal"));
    if (!fields.has("content") && !may_lack) fields.fail("content", "is missing; send a string");
    if (has_content) {
      message["content"] = flatten_content(message["content"], path + ".content", request);
    }
    drop_absent_members(message);
    parse_tool_arguments(message, path, values_left);
    // OpenAI's newer name for the same role, unknown to most templates.
    if (*role == "developer") message["role"] = "system";
  }
  keep_latest_marks(request);
}

std::vector<Prompt> read_prompts(const Fields& fields, const RequestRules& rules) {
  const Json* value = fields.find("prompt");
  if (value == nullptr) {
    fields.fail("prompt",
                "is missing; send a string, an array of strings, token ids, or arrays of them");
  }
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array() || value->empty()) {
    fields.fail("prompt",
                "must be a string, an array of strings, token ids, or arrays of them, not empty");
  }
  if (value->front().is_number()) return {read_token_ids(*value, "prompt", rules.vocab_size)};
  if (value->size() > static_cast<std::size_t>(rules.limits.max_prompts)) {
    fields.fail("prompt", fmt::format("at most {} prompts in a request, there are {}; split it",
                                      rules.limits.max_prompts, value->size()));
  }
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const Json& item = (*value)[i];
    if (item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else {
      prompts.emplace_back(read_token_ids(item, fmt::format("prompt[{}]", i), rules.vocab_size));
    }
  }
  return prompts;
}

void read_completion_logprobs(const Fields& fields, const RequestRules& rules,
                              CompletionRequest& request) {
  SamplingParams& sampling = request.options.sampling;
  // Some clients send false for none.
  const Json* value = fields.find("logprobs");
  if (value != nullptr && value->is_boolean() && !value->get<bool>()) return;
  if (const auto k = fields.integer("logprobs", {0, rules.limits.max_logprobs})) {
    sampling.num_logprobs = static_cast<int>(*k);
    if (request.echo) sampling.num_prompt_logprobs = static_cast<int>(*k);
  }
  // Harnesses that score a prompt ask for one token more and drop the last entry of the arrays. An
  // end token has no entry, so that they would drop a token of the prompt: here it is a token like
  // others. Not to a form, which says itself when the answer may end.
  const bool scores_prompt = request.echo && sampling.num_logprobs >= 0 && sampling.max_tokens == 1 &&
                             request.options.format.is_text();
  if (scores_prompt) sampling.ignore_eos = true;
}

void read_best_of(const Fields& fields, const RequestRules& rules, CompletionRequest& request) {
  GenerationOptions& options = request.options;
  const auto given = fields.integer("best_of", {1, rules.limits.max_n});
  if (given) options.best_of = static_cast<int>(*given);
  if (options.best_of < options.n) {
    fields.fail("best_of", fmt::format("must be at least n, which is {}", options.n));
  }
  if (options.best_of > options.n && options.stream) {
    fields.fail("best_of", "cannot be streamed above n; set \"stream\": false");
  }
  const std::size_t num_choices =
      request.prompts.size() * static_cast<std::size_t>(options.best_of);
  if (num_choices > static_cast<std::size_t>(rules.limits.max_choices)) {
    fields.fail("prompt",
                fmt::format("{} prompts times {} choices are {}, at most {}; split the request",
                            request.prompts.size(), options.best_of, num_choices,
                            rules.limits.max_choices));
  }
}

void read_history(const Fields& fields, HistoryOptions& options) {
  const std::string name = fields.string("strategy", kMaxNameBytes).value_or("");
  const auto strategy = parse_history_strategy(name);
  if (!strategy) {
    fields.fail("strategy",
                fmt::format("must be {}, it is \"{}\"", kHistoryStrategies, shorten(name)));
  }
  const auto max_tokens = fields.integer("max_tokens", {1, kMaxInt32});
  options = {.strategy = *strategy, .max_tokens = static_cast<int>(max_tokens.value_or(0))};
}

}  // namespace

void settle_top_p(SamplingParams& sampling) {
  if (sampling.top_p > 0) return;
  sampling.top_p = 1;
  sampling.top_k = 1;
}

void read_larder_options(const Fields& fields, const RequestRules& rules,
                         GenerationOptions& options) {
  options.normalisation = rules.normalisation;
  options.history = rules.history;
  const Json* value = fields.find("larder");
  if (value == nullptr) return;
  const Fields own(*value, "larder");
  options.wants_cache_report = own.boolean("cache_report", false);
  if (const Json* history = own.find("history")) {
    read_history(Fields(*history, "larder.history"), options.history);
  }
  const Json* names = own.find("normalise");
  if (names == nullptr) return;
  options.normalisation = {};
  if (!names->is_array()) own.fail("normalise", "must be an array of names; [] is none");
  for (const Json& name : *names) {
    const bool is_known =
        name.is_string() && add_normalisation(name.get<std::string>(), options.normalisation);
    if (!is_known) own.fail("normalise", fmt::format("may hold {}", kNormalisations));
  }
}

GenerationOptions read_generation_options(const Fields& fields, const RequestRules& rules) {
  refuse_missing_features(fields);
  GenerationOptions options;
  options.model = fields.string("model", kMaxNameBytes).value_or("");
  read_sampling(fields, rules, options.sampling);
  const ServerLimits& limits = rules.limits;
  options.n = static_cast<int>(fields.integer("n", {1, limits.max_n}).value_or(1));
  options.best_of = options.n;
  options.stop = read_stop(fields, limits);
  options.include_stop = fields.boolean("include_stop_str_in_output", false);
  options.skip_special_tokens = fields.boolean("skip_special_tokens", true);
  read_stream(fields, options);
  options.return_token_ids = fields.boolean("return_token_ids", false);
  options.tool_calls.takes_many = fields.boolean("parallel_tool_calls", true);
  options.format = read_answer_format(fields);
  options.prediction = read_prediction(fields);
  options.logprobs_by_id = fields.boolean("return_tokens_as_token_ids", false);
  options.priority =
      static_cast<int>(fields.integer("priority", {-kMaxInt32, kMaxInt32}).value_or(0));
  read_cache_options(fields, rules.takes_long_ttl, options);
  options.prompt_cache_key = fields.string("prompt_cache_key", kMaxNameBytes).value_or("");
  options.cache_salt = fields.string("cache_salt", kMaxNameBytes).value_or("");
  read_larder_options(fields, rules, options);
  read_attention(fields, rules, options);
  read_truncation(fields, rules, options);
  return options;
}

Json read_template_kwargs(const Fields& fields) {
  constexpr const char* kName = "chat_template_kwargs";
  const Json* kwargs = fields.find(kName);
  if (kwargs == nullptr) return nullptr;
  (void)Fields(*kwargs, kName);
  if (kwargs->size() > kMaxTemplateKwargs)
    fields.fail(kName, fmt::format("has {} members, {} at most are taken", kwargs->size(), kMaxTemplateKwargs));
  if (const std::size_t num_bytes = memory_of(*kwargs); num_bytes > kMaxTemplateKwargsBytes)
    fields.fail(kName, fmt::format("takes {} bytes of memory, {} at most are taken", num_bytes, kMaxTemplateKwargsBytes));
  return *kwargs;
}

void read_chat_prompt(const Json& body, ChatRequest& request) {
  const Fields fields(body, "");
  const Json* messages = fields.find("messages");
  if (messages == nullptr) fields.fail("messages", "is missing; send an array of messages");
  read_messages(*messages, request);
  read_tools(fields, request);
  request.template_kwargs = read_template_kwargs(fields);
  if (const auto effort = fields.string("reasoning_effort", kMaxNameBytes)) {
    if (!request.template_kwargs.is_object()) request.template_kwargs = Json::object();
    if (!request.template_kwargs.contains("reasoning_effort")) request.template_kwargs["reasoning_effort"] = *effort;
  }
  if (fields.boolean("echo", false)) fields.fail("echo", "is for /v1/completions; leave it out");
  request.continue_final_message = fields.boolean("continue_final_message", false);
  request.add_generation_prompt =
      fields.boolean("add_generation_prompt", !request.continue_final_message);
  if (request.continue_final_message && request.add_generation_prompt) {
    fields.fail("continue_final_message", "excludes add_generation_prompt; set that to false");
  }
  request.add_special_tokens = fields.boolean("add_special_tokens", false);
}

ChatRequest parse_chat_request(const Json& body, const RequestRules& rules) {
  const Fields fields(body, "");
  ChatRequest request;
  request.options = read_generation_options(fields, rules);
  GenerationOptions& options = request.options;
  set_max_tokens(fields, "max_tokens", 1, options);
  set_max_tokens(fields, "max_completion_tokens", 1, options);  // the newer name wins
  read_thoughts(fields, options);
  const auto top = fields.integer("top_logprobs", {0, rules.limits.max_logprobs});
  if (fields.boolean("logprobs", false)) {
    options.sampling.num_logprobs = static_cast<int>(top.value_or(0));
  } else if (top.value_or(0) > 0) {
    fields.fail("top_logprobs", "needs \"logprobs\": true");
  }
  options.hands_over = read_kv_transfer(fields, rules.may_share);
  read_chat_prompt(body, request);
  options.tool_choice = read_choice_among(request.tools, std::move(options.tool_choice.custom), fields);
  return request;
}

CompletionRequest parse_completion_request(const Json& body, const RequestRules& rules) {
  const Fields fields(body, "");
  CompletionRequest request;
  request.options = read_generation_options(fields, rules);
  if (const auto suffix = fields.string("suffix", kMaxNameBytes); suffix && !suffix->empty()) {
    fields.fail("suffix", "insertion is not supported; leave it out");
  }
  request.options.hands_over = read_kv_transfer(fields, rules.may_share);
  request.echo = fields.boolean("echo", false);
  request.add_special_tokens = fields.boolean("add_special_tokens", true);
  // 0 = look at the prompt only.
  set_max_tokens(fields, "max_tokens", request.echo ? 0 : 1, request.options);
  request.options.has_max_tokens = true;  // OpenAI's default of 16 otherwise
  read_completion_logprobs(fields, rules, request);
  request.prompts = read_prompts(fields, rules);
  read_best_of(fields, rules, request);
  return request;
}

}  // namespace larder
