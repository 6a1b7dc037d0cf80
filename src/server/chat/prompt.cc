#include "server/chat/prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "server/answer/tool_calls.h"
#include "server/chat/render_chat.h"
#include "server/json_fields.h"
#include "server/message_role.h"
#include "server/utf8.h"
#include "server/white_space.h"
#include "tokenizer/jinja/jinja_unicode.h"

namespace larder {
namespace {

constexpr std::size_t kMaxRestBytes = 16;  // of a token that a reader has seen in part

int max_len(const GenerationOptions& options, const ServedModel& model) {
  return options.attention.window > 0 ? kMaxEndlessTokens : model.max_model_len;
}

[[noreturn]] void fail_too_long(const std::string& param, std::string_view num_tokens,
                                const GenerationOptions& options, const ServedModel& model) {
  const int most = max_len(options, model);
  // Clients know this error by its words: Anthropic's by "prompt is too long", OpenAI's by those or by "this model's
  // maximum context length is" (its code does not reach what catches it).
  const std::string reason =
      *options.truncation != '\0'
          ? fmt::format("this model's maximum context length is {} tokens, but the prompt is too long: it has {} "
                        "tokens, and one must be left for the answer; shorten it or send {}",
                        most, num_tokens, options.truncation)
          : fmt::format("prompt is too long: {} tokens > {} maximum, as the model takes {} and one "
                        "must be left for the answer; shorten it",
                        num_tokens, most - 1, most);
  throw Error(ErrorKind::kPromptTooLong, param + ": " + reason, param);
}

// A text this long cannot fit whatever its tokens are: spares the encoding of megabytes.
void refuse_hopeless_text(std::string_view text, const std::string& param,
                          const GenerationOptions& options, const ServedModel& model) {
  constexpr std::size_t kMaxBytesPerToken = 1024;
  const auto max_bytes = static_cast<std::size_t>(max_len(options, model)) * kMaxBytesPerToken;
  if (text.size() <= max_bytes || options.truncate_prompt_tokens) return;
  fail_too_long(param, fmt::format("more than {}", max_len(options, model)), options, model);
}

// Pins move with the tokens when the first ones go; the whole prompt may be another one.
void finish_pins(PreparedPrompt& prompt, std::size_t num_dropped, const GenerationOptions& options) {
  for (PromptPin& pin : prompt.pins) pin.num_tokens -= static_cast<int>(num_dropped);
  std::erase_if(prompt.pins, [](const PromptPin& pin) { return pin.num_tokens < kBlockSize; });
  if (!options.marks_whole_prompt) return;
  const auto num_tokens = static_cast<int>(prompt.tokens.size());
  if (prompt.pins.empty() || prompt.pins.back().num_tokens < num_tokens) {
    prompt.pins.push_back({.num_tokens = num_tokens, .ttl_s = options.pin_ttl_s});
  } else {
    prompt.pins.back().ttl_s = std::max(prompt.pins.back().ttl_s, options.pin_ttl_s);
  }
}

// Behind a special token a text begins anew, with the space that encoding puts before each.
bool ends_in_text(const std::vector<TokenId>& tokens, const Tokenizer& tokenizer) {
  return !tokens.empty() && !tokenizer.is_special(tokens.back());
}

// To the last tokens, as many as truncate_prompt_tokens says; where it is not given, to all.
void truncate(std::vector<TokenId>& tokens, const GenerationOptions& options,
              const ServedModel& model) {
  if (!options.truncate_prompt_tokens) return;
  const int longest = max_len(options, model);
  const int answer = std::max(options.answer_tokens(longest).value_or(1), 1);
  const int most = std::max({longest - answer, longest / 4, 1});
  const int keep = *options.truncate_prompt_tokens < 0 ? most : *options.truncate_prompt_tokens;
  const auto num_kept = std::min(tokens.size(), static_cast<std::size_t>(keep));
  tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(num_kept));
}

// The field is told in errors: the tokenizer knows of no request.
Encoding encode(std::string_view text, std::span<const TextSpan> spans, bool add_special_tokens,
                std::span<const ExactSpan> exact, const std::string& field,
                const ServedModel& model) {
  try {
    return model.tokenizer.encode(text, spans, add_special_tokens, exact, model.max_text_tokens());
  } catch (const Error& error) {
    throw Error(error.kind(), error.message(), field);
  }
}

// From an encoded prompt to one that can be computed.
void finish_prompt(PreparedPrompt& prompt, const std::string& param,
                   const GenerationOptions& options, const ServedModel& model) {
  std::vector<TokenId>& tokens = prompt.tokens;
  const std::size_t num_before = tokens.size();
  const int wanted = options.has_max_tokens ? options.sampling.max_tokens : model.max_model_len;
  truncate(tokens, options, model);
  if (tokens.empty()) fail_field(param, "is empty; send at least one token");
  const auto most = static_cast<std::size_t>(max_len(options, model));
  if (tokens.size() + 1 > most) {
    fail_too_long(param, std::to_string(tokens.size()), options, model);
  }
  const int room = max_len(options, model) - static_cast<int>(tokens.size());
  prompt.max_tokens = std::min(wanted, room);
  finish_pins(prompt, num_before - tokens.size(), options);
}

// What the answer may be in part, as far as an answer may get that long; null = the request does not say.
std::shared_ptr<const std::vector<TokenId>> encode_prediction(const GenerationOptions& options, const ServedModel& model) {
  constexpr std::size_t kMostTokens = 32'768;  // all of them are looked at for each guess
  constexpr std::size_t kBytesOfToken = 16;    // of long ones
  if (options.prediction.empty()) return nullptr;
  const int longest = options.has_max_tokens ? options.sampling.max_tokens : max_len(options, model);
  const std::size_t most = std::min(kMostTokens, static_cast<std::size_t>(std::max(longest, 1)));
  std::size_t size = std::min(options.prediction.size(), kBytesOfToken * most);
  while (size < options.prediction.size() && (options.prediction[size] & 0xC0) == 0x80) --size;  // whole characters
  const TextSpan whole{0, size, false, -1};
  std::vector<TokenId> tokens;
  try {
    tokens = encode(std::string_view(options.prediction).substr(0, size), {&whole, 1}, false, {}, "prediction", model).tokens;
  } catch (const Error& error) {  // it is not the prompt that is too long
    throw Error(ErrorKind::kInvalidArgument, error.message(), error.param());
  }
  tokens.resize(std::min(tokens.size(), most));
  tokens.shrink_to_fit();
  return tokens.empty() ? nullptr : std::make_shared<const std::vector<TokenId>>(std::move(tokens));
}

// Ends the prompt where the last message's own text ends, so that the model goes on with it.
void cut_after_last_message(RenderedPrompt& prompt, std::size_t num_messages) {
  const auto last = static_cast<std::int32_t>(num_messages) - 1;
  while (!prompt.spans.empty() && prompt.spans.back().message != last) prompt.spans.pop_back();
  if (prompt.spans.empty()) {
    fail_field("continue_final_message", "the template does not print the last message");
  }
  prompt.text.resize(prompt.spans.back().end);
}

// Whether the answer goes on in a thought that the template has begun, or the message that it continues.
bool ends_in_thought(const RenderedPrompt& prompt, const ChatRequest& request) {
  const std::string_view text = prompt.text;
  if (!request.continue_final_message) return request.add_generation_prompt && trimmed(text).ends_with(kThought);
  const auto last = static_cast<std::int32_t>(request.messages.size()) - 1;
  std::size_t begin = text.size();
  for (auto span = prompt.spans.rbegin(); span != prompt.spans.rend() && span->message == last && !span->trusted; ++span)
    begin = span->begin;
  const std::string_view said = trimmed(text.substr(begin));
  const bool has_begun = said.starts_with(kThought) || trimmed(text.substr(0, begin)).ends_with(kThought);
  return has_begun && said.find(kThoughtEnd) == said.npos;
}

// The span as far as it prints what was generated; nullopt: it prints something else. Many templates
// trim an answer.
std::optional<ExactSpan> match_turn(std::string_view text, const Json& message,
                                    const KnownTurn& turn, const Tokenizer& tokenizer) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return std::nullopt;
  if (trimmed(text) != trimmed(content->get_ref<const std::string&>())) return std::nullopt;
  const std::span<const TokenId> tokens(*turn.tokens);
  const Spelling spelling = tokenizer.spell(tokens, text);
  if (spelling.num_bytes == 0) return std::nullopt;
  // Else another answer that begins alike would be cut where it goes its own way.
  if (turn.broke_off && spelling.num_bytes + kMaxRestBytes < text.size()) return std::nullopt;
  return ExactSpan{.begin = 0, .end = spelling.num_bytes, .tokens = tokens.first(spelling.num_tokens)};
}

// The untrusted spans from first on that are of its message and follow each other: a content of several parts is as many.
std::size_t end_of_stretch(const std::vector<TextSpan>& spans, std::size_t first) {
  std::size_t end = first + 1;
  if (spans[first].trusted) return end;
  while (end < spans.size() && !spans[end].trusted && spans[end].message == spans[first].message) ++end;
  return end;
}

// Where the template prints known answers.
class TurnFinder {
 public:
  TurnFinder(const RenderedPrompt& prompt, const ChatRequest& request, const Tokenizer& tokenizer)
      : prompt_(prompt), request_(request), tokenizer_(tokenizer) {}

  std::vector<ExactSpan> find() {
    std::vector<const KnownTurn*> turns(request_.messages.size());
    for (const KnownTurn& turn : request_.known_turns) turns.at(turn.message) = &turn;
    const std::vector<TextSpan>& spans = prompt_.spans;
    for (std::size_t i = 0; i < spans.size();) {
      const std::size_t end = end_of_stretch(spans, i);
      const auto index = static_cast<std::size_t>(spans[i].message);
      const bool is_known = !spans[i].trusted && spans[i].message >= 0 && index < turns.size() && turns[index] != nullptr;
      // Else a part of it may be the answer, as where the thought before it is printed with nothing between.
      if (is_known && !take(i, end, *turns[index]))
        for (std::size_t part = i; part < end; ++part) take(part, part + 1, *turns[index]);
      i = end;
    }
    return std::move(found_);
  }

 private:
  // Whether the spans [first, end) print what was generated.
  bool take(std::size_t first, std::size_t end, const KnownTurn& turn) {
    const std::size_t begin = prompt_.spans[first].begin;
    const auto text = std::string_view(prompt_.text).substr(begin, prompt_.spans[end - 1].end - begin);
    auto exact = match_turn(text, request_.messages[turn.message].json, turn, tokenizer_);
    if (!exact) return false;
    exact->begin += begin;
    exact->end += begin;
    // The role's name may read the same as the answer, and stands before it.
    if (last_message_ == turn.message) found_.pop_back();
    last_message_ = turn.message;
    found_.push_back(*exact);
    return true;
  }

  const RenderedPrompt& prompt_;
  const ChatRequest& request_;
  const Tokenizer& tokenizer_;
  std::vector<ExactSpan> found_;
  std::optional<std::size_t> last_message_;  // of those found
};

// Which message each token belongs to: what a template prints before a message is counted to it.
std::vector<PromptPart> parts_of(std::span<const std::int32_t> messages) {
  std::vector<PromptPart> parts;
  int begin = 0;
  std::int32_t last = -1;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i] < 0) continue;
    if (messages[i] != last || parts.empty()) parts.push_back({begin, messages[i], static_cast<int>(i)});
    last = messages[i];
    begin = static_cast<int>(i) + 1;
  }
  const auto end = static_cast<int>(messages.size());
  if (begin < end) parts.push_back({begin, -1, end});
  return parts;
}

// Of what the template looks at.
std::uint64_t effort_of(const Json& template_kwargs, const ChatTemplate& chat_template) {
  std::string told;
  for (const char* name : {"reasoning_effort", "enable_thinking", "thinking"}) {
    const bool is_asked = chat_template.source().find(name) != std::string::npos;
    if (is_asked && template_kwargs.is_object() && template_kwargs.contains(name))
      told += name + dump_json(template_kwargs[name]);
  }
  return hash_text(told);
}

PromptOrigin origin_of(const ChatRequest& request, const RenderedPrompt& prompt, const Encoding& encoding,
                       const ChatTemplate& chat_template) {
  const std::span<const std::int32_t> messages = encoding.messages;
  PromptOrigin origin;
  origin.parts = parts_of(messages);
  origin.sent_as.reserve(request.messages.size());
  for (const ChatMessage& message : request.messages) {
    origin.roles.push_back(message.json.value("role", std::string()));
    origin.sent_as.push_back(message.sent_as);
  }
  origin.system = request.system_hash;
  origin.effort = effort_of(request.template_kwargs, chat_template);
  origin.summary = hash_text(request.summary);
  origin.num_dropped = request.num_dropped;
  origin.quoted_message = request.quoted_message;
  if (request.has_moved_time) {
    const auto last = std::find(origin.roles.rbegin(), origin.roles.rend(), "user");
    origin.timed_message = static_cast<int>(origin.roles.rend() - last) - 1;
  }
  const Json& tools = request.tools.is_null() ? request.adapted_tools : request.tools;
  if (tools.is_null()) return origin;
  origin.tools = hash_text(dump_json(tools));
  origin.sorted_tools = hash_text(nlohmann::json(tools).dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace));
  const auto is_turn = [](const std::string& role) { return !is_system_role(role); };
  const auto first = std::ranges::find_if(origin.roles, is_turn) - origin.roles.begin();
  const auto begin = std::ranges::find(messages, static_cast<std::int32_t>(first));
  origin.tools_end = static_cast<int>(begin - messages.begin());
  const auto tool = std::ranges::find_if(prompt.spans, [](const TextSpan& span) { return span.tool >= 0; });
  origin.tools_begin = num_tokens_within(encoding, tool == prompt.spans.end() ? 0 : tool->begin, prompt.text.size());
  return origin;
}

// The first num_tokens of the prompt have been cut off.
void cut_origin(PromptOrigin& origin, int num_tokens) {
  for (PromptPart& part : origin.parts) {
    part.begin = std::max(0, part.begin - num_tokens);
    part.text_begin -= num_tokens;
  }
  // Of the parts that now begin at 0, the last one has tokens left.
  const auto left =
      std::ranges::find_if(origin.parts, [](const PromptPart& part) { return part.begin > 0; });
  if (left - origin.parts.begin() > 1) origin.parts.erase(origin.parts.begin(), left - 1);
  for (int* place : {&origin.tools_begin, &origin.tools_end}) *place = std::max(0, *place - num_tokens);
}

RenderedPrompt render(TemplateInput input, const ChatTemplate& chat_template,
                      const std::string& param) {
  try {
    return render_chat(chat_template, std::move(input));
  } catch (const Error& error) {
    const bool is_long = error.kind() == ErrorKind::kPromptTooLong;
    throw Error(error.kind(), fmt::format("{}: {}{}", param, is_long ? "" : "the chat template refuses them: ", error.message()),
                param);
  }
}

// The text as it was sent, whatever encoding has made of it. Tokens that encoding puts around it, such as
// BOS, begin where it does or ends.
EchoedPrompt echo_text(const std::string& text, std::span<const std::uint32_t> begins) {
  EchoedPrompt echo;
  echo.text = text;
  echo.offsets.reserve(begins.size());
  std::size_t at = 0, num_begun = 0;  // characters that begin before at
  for (const std::size_t begin : begins) {
    if (begin > at) num_begun += count_characters(std::string_view(text).substr(at, begin - at));
    at = std::max(at, begin);
    const bool is_inside = at < text.size() && count_characters({&text[at], 1}) == 0;
    echo.offsets.push_back(static_cast<std::uint32_t>(num_begun - (is_inside ? 1 : 0)));
  }
  return echo;
}

EchoedPrompt echo_tokens(std::span<const TokenId> tokens, const Tokenizer& tokenizer) {
  EchoedPrompt echo;
  echo.offsets.reserve(tokens.size());
  StreamDecoder decoder(tokenizer, true);
  std::size_t num_characters = 0;
  for (const TokenId token : tokens) {
    echo.offsets.push_back(static_cast<std::uint32_t>(num_characters));
    const std::string piece = decoder.push(token);
    num_characters += count_characters(piece);
    echo.text += piece;
  }
  echo.text += decoder.finish();
  return echo;
}

}  // namespace

void part_thoughts(ToolCallRules& rules, const PreparedPrompt& prompt) {
  rules.parts_thoughts = true;
  rules.begins_in_thought = prompt.ends_in_thought;
}

bool can_be_continued(const Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls != message.end() && !calls->empty()) return true;
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return false;
  const std::string_view text = content->get_ref<const std::string&>();
  // Templates that trim leave nothing of a blank text.
  for (std::size_t at = 0; at < text.size();) {
    const jinja::Character c = jinja::character_at(text, at);
    if (!jinja::is_space(c.code_point)) return true;
    at += c.num_bytes;
  }
  return false;
}

Encoding encode_raw(std::string_view text, bool add_special_tokens, const std::string& field,
                    const ServedModel& model) {
  const TextSpan whole{0, text.size(), true, -1};
  return encode(text, {&whole, 1}, add_special_tokens, {}, field, model);
}

PreparedPrompt encode_chat(const ChatRequest& request, const ServedModel& model) {
  if (request.continue_final_message && !can_be_continued(request.messages.back().json)) {
    fail_field("continue_final_message",
               "the last message is empty; leave it out and set add_generation_prompt");
  }
  const Tokenizer& tokenizer = model.tokenizer;
  TemplateInput input;
  input.messages = request.messages;
  input.tools = request.tools;
  input.extra = request.template_kwargs;
  input.add_generation_prompt = request.add_generation_prompt;
  if (const auto bos = tokenizer.bos()) input.bos_token = tokenizer.token_text(*bos);
  if (const auto eos = tokenizer.eos()) input.eos_token = tokenizer.token_text(*eos);
  const std::string param = request.options.names.messages;
  RenderedPrompt prompt = render(std::move(input), model.chat_template, param);
  if (request.continue_final_message) cut_after_last_message(prompt, request.messages.size());
  refuse_hopeless_text(prompt.text, param, request.options, model);
  std::vector<ExactSpan> exact;
  if (!request.known_turns.empty()) exact = TurnFinder(prompt, request, tokenizer).find();
  PreparedPrompt encoded;
  Encoding encoding =
      encode(prompt.text, prompt.spans, request.add_special_tokens, exact, param, model);
  encoded.origin = origin_of(request, prompt, encoding, model.chat_template);
  encoded.pins = place_marks(request.marks, prompt, encoding);
  encoded.tokens = std::move(encoding.tokens);
  encoded.continues_text =
      request.continue_final_message && ends_in_text(encoded.tokens, tokenizer);
  encoded.ends_in_thought = ends_in_thought(prompt, request);
  encoded.num_kept_turns = static_cast<int>(exact.size());
  for (const ExactSpan& span : exact) {
    encoded.num_kept_tokens += static_cast<int>(span.tokens.size());
  }
  return encoded;
}

PreparedPrompt prepare_chat(const ChatRequest& request, const ServedModel& model) {
  PreparedPrompt prompt = encode_chat(request, model);
  const auto num_encoded = static_cast<int>(prompt.tokens.size());
  finish_prompt(prompt, request.options.names.messages, request.options, model);
  cut_origin(prompt.origin, num_encoded - static_cast<int>(prompt.tokens.size()));
  prompt.prediction = encode_prediction(request.options, model);
  return prompt;
}

std::vector<TokenId> tokens_of_any_number(ChatRequest request, const ServedModel& model) {
  const std::optional<int> asked = request.options.truncate_prompt_tokens;
  request.options.truncate_prompt_tokens = -1;  // no length is refused
  std::vector<TokenId> tokens = encode_chat(request, model).tokens;
  request.options.truncate_prompt_tokens = asked;
  truncate(tokens, request.options, model);
  return tokens;
}

std::vector<PreparedPrompt> prepare_completion(const CompletionRequest& request,
                                               const ServedModel& model) {
  std::vector<PreparedPrompt> prepared;
  prepared.reserve(request.prompts.size());
  const auto prediction = encode_prediction(request.options, model);
  for (const Prompt& prompt : request.prompts) {
    const std::string param =
        request.prompts.size() == 1 ? std::string("prompt") : fmt::format("prompt[{}]", prepared.size());
    PreparedPrompt& made = prepared.emplace_back();
    const auto* text = std::get_if<std::string>(&prompt);
    if (text != nullptr) {
      refuse_hopeless_text(*text, param, request.options, model);
      Encoding encoding = encode_raw(*text, request.add_special_tokens, param, model);
      made.tokens = std::move(encoding.tokens);
      if (request.echo) made.echo = echo_text(*text, encoding.begins);
    } else {
      made.tokens = std::get<std::vector<TokenId>>(prompt);
    }
    made.continues_text = ends_in_text(made.tokens, model.tokenizer);
    finish_prompt(made, param, request.options, model);
    made.prediction = prediction;
    const bool may_be_cut = request.options.truncate_prompt_tokens.has_value();
    if (request.echo && (text == nullptr || may_be_cut)) {
      made.echo = echo_tokens(made.tokens, model.tokenizer);
    }
  }
  return prepared;
}

}  // namespace larder
