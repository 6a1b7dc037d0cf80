// The shape of chat completions.
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "server/answer/answer_scanner.h"
#include "server/api/choices_writer.h"
#include "server/request_id.h"
#include "server/utf8.h"

namespace larder {
namespace {

class ChatWriter final : public ChoicesWriter {
 public:
  ChatWriter(std::string model_name, const Tokenizer& tokenizer)
      : ChoicesWriter("chatcmpl-" + make_request_id(), std::move(model_name), tokenizer) {}

 private:
  // What a stream's text has had of calls.
  struct Calls {
    explicit Calls(const ToolCallRules& rules) : scanner(rules) {}

    AnswerScanner scanner;
    int num_calls = 0;
  };

  std::string_view object_name(bool streaming) const override {
    return streaming ? "chat.completion.chunk" : "chat.completion";
  }

  Json stream_choice(Choice& choice, ChoiceDelta& delta) override {
    Json message = Json::object();
    if (!choice.begun) message["role"] = "assistant";
    Calls* calls = calls_of(choice);
    if (calls != nullptr) take_calls(choice, *calls, delta.text, message);
    if (!choice.begun || !delta.text.empty()) message["content"] = std::move(delta.text);
    Json result = {{"index", choice.index}, {"delta", std::move(message)}};
    result["logprobs"] =
        wants_logprobs() && !delta.tokens.empty() ? logprobs(delta.tokens) : Json();
    result["finish_reason"] = finish_reason(choice, calls != nullptr && calls->num_calls > 0);
    if (choice.done()) result["stop_reason"] = stop_reason(choice);
    if (options_.return_token_ids) result["token_ids"] = token_ids(delta.tokens, choice);
    return result;
  }

  Json whole_choice(Choice& choice) override {
    Json calls = Json::array();
    std::string text, thoughts;
    if (is_scanned()) {
      for (const AnswerPiece& piece : split_answer(choice.text, options_.tool_calls)) {
        if (piece.call) calls.push_back(call_json(*piece.call));
        (piece.is_thought ? thoughts : text) += piece.text;
      }
    } else {
      text = std::move(choice.text);
    }
    Json message = {{"role", "assistant"}};
    message["content"] = text.empty() && !calls.empty() ? Json() : Json(std::move(text));
    if (options_.shows_thoughts && !thoughts.empty()) message["reasoning_content"] = std::move(thoughts);
    message["refusal"] = nullptr;
    const bool has_calls = !calls.empty();
    if (has_calls) message["tool_calls"] = std::move(calls);
    Json result = {{"index", choice.index}, {"message", std::move(message)}};
    result["logprobs"] = nullptr;
    result["finish_reason"] = finish_reason(choice, has_calls);
    result["stop_reason"] = stop_reason(choice);
    if (options_.return_token_ids) result["token_ids"] = token_ids(choice.tokens, choice);
    return result;
  }

  bool is_scanned() const {
    const ToolCallRules& rules = options_.tool_calls;
    return rules.are_read || rules.is_harmony || rules.parts_thoughts;
  }

  // nullptr: its text is read for none.
  Calls* calls_of(const Choice& choice) {
    if (!is_scanned()) return nullptr;
    return &calls_.try_emplace(choice.index, options_.tool_calls).first->second;
  }

  // Leaves of the text what is neither that nor a thought.
  void take_calls(const Choice& choice, Calls& calls, std::string& text, Json& message) const {
    std::vector<AnswerPiece> pieces = calls.scanner.push(text);
    if (choice.done()) std::ranges::move(calls.scanner.finish(), std::back_inserter(pieces));
    text.clear();
    std::string thoughts;
    for (const AnswerPiece& piece : pieces) {
      (piece.is_thought ? thoughts : text) += piece.text;
      if (!piece.call) continue;
      Json call = {{"index", calls.num_calls++}};
      call.update(call_json(*piece.call));
      message["tool_calls"].push_back(std::move(call));
    }
    if (options_.shows_thoughts && !thoughts.empty()) message["reasoning_content"] = std::move(thoughts);
  }

  Json call_json(const ToolCall& call) const {
    const std::string id = "call_" + make_request_id();
    if (is_custom(options_.tool_calls, call))
      return {{"id", id}, {"type", "custom"}, {"custom", {{"name", call.name}, {"input", custom_input(call.arguments)}}}};
    return {{"id", id},
            {"type", "function"},
            {"function", {{"name", call.name}, {"arguments", dump_json(call.arguments)}}}};
  }

  static Json finish_reason(const Choice& choice, bool has_calls) {
    const bool is_call = has_calls && choice.finish == FinishReason::kStop;
    return is_call ? Json("tool_calls") : ChoicesWriter::finish_reason(choice);
  }

  void add_prompt_tokens(Json& body) const override {
    body["prompt_token_ids"] = prompts_.front();  // all choices of a chat share one prompt
  }

  Json logprobs(std::span<const OutputToken> tokens) const {
    Json content = Json::array();
    for (const OutputToken& token : tokens) content.push_back(entry_of(token));
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }

  void write_logprobs(Choice& choice, std::string& out) override {
    const char* before = R"({"content":[)";
    for (const OutputToken& token : choice.tokens) {
      out += std::exchange(before, ",");
      out += dump_json(entry_of(token));
    }
    if (choice.tokens.empty()) out += before;
    out += R"(],"refusal":null})";
  }

  Json entry_of(const OutputToken& token) const {
    Json entry = describe(token.token, token.logprob);
    Json best = Json::array();
    for (const TokenLogprob& other : token.best) best.push_back(describe(other.token, other.logprob));
    entry["top_logprobs"] = std::move(best);
    return entry;
  }

  Json describe(TokenId token, float logprob) const {
    const std::string text = token_text(token);
    Json bytes = Json::array();
    for (const char byte : tokenizer_.token_bytes(token, true)) bytes.push_back(static_cast<unsigned char>(byte));
    return {{"token", to_valid_utf8(text)},
            {"logprob", finite_logprob(logprob)},
            {"bytes", std::move(bytes)}};
  }

  std::map<int, Calls> calls_;  // by choice
};

}  // namespace

std::unique_ptr<ReplyWriter> make_chat_writer(std::string model_name, const Tokenizer& tokenizer) {
  return std::make_unique<ChatWriter>(std::move(model_name), tokenizer);
}

}  // namespace larder
