// The shape of chat completions.
#include <utility>

#include "server/choices_writer.h"
#include "server/request_id.h"
#include "server/utf8.h"

namespace larder {
namespace {

class ChatWriter final : public ChoicesWriter {
 public:
  ChatWriter(std::string model_name, const Tokenizer& tokenizer)
      : ChoicesWriter("chatcmpl-" + make_request_id(), std::move(model_name), tokenizer) {}

 private:
  std::string_view object_name(bool streaming) const override {
    return streaming ? "chat.completion.chunk" : "chat.completion";
  }

  Json stream_choice(Choice& choice, ChoiceDelta& delta) override {
    Json message = Json::object();
    if (!choice.begun) message["role"] = "assistant";
    if (!choice.begun || !delta.text.empty()) message["content"] = std::move(delta.text);
    Json result = {{"index", choice.index}, {"delta", std::move(message)}};
    result["logprobs"] =
        wants_logprobs() && !delta.tokens.empty() ? logprobs(delta.tokens) : Json();
    result["finish_reason"] = finish_reason(choice);
    if (choice.done()) result["stop_reason"] = stop_reason(choice);
    if (options_.return_token_ids) result["token_ids"] = token_ids(delta.tokens);
    return result;
  }

  Json whole_choice(Choice& choice) override {
    Json message = {{"role", "assistant"}, {"content", std::move(choice.text)}};
    message["refusal"] = nullptr;
    Json result = {{"index", choice.index}, {"message", std::move(message)}};
    result["logprobs"] = wants_logprobs() ? logprobs(choice.tokens) : Json();
    result["finish_reason"] = finish_reason(choice);
    result["stop_reason"] = stop_reason(choice);
    if (options_.return_token_ids) result["token_ids"] = token_ids(choice.tokens);
    return result;
  }

  void add_prompt_tokens(Json& body) const override {
    body["prompt_token_ids"] = prompts_.front();  // all choices of a chat share one prompt
  }

  Json logprobs(std::span<const OutputToken> tokens) const {
    Json content = Json::array();
    for (const OutputToken& token : tokens) {
      Json entry = describe(token.token, token.logprob);
      Json best = Json::array();
      for (const TokenLogprob& other : token.best)
        best.push_back(describe(other.token, other.logprob));
      entry["top_logprobs"] = std::move(best);
      content.push_back(std::move(entry));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }

  Json describe(TokenId token, float logprob) const {
    const std::string text = token_text(token);
    Json bytes = Json::array();
    for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
    return {{"token", to_valid_utf8(text)},
            {"logprob", finite_logprob(logprob)},
            {"bytes", std::move(bytes)}};
  }
};

}  // namespace

std::unique_ptr<ReplyWriter> make_chat_writer(std::string model_name, const Tokenizer& tokenizer) {
  return std::make_unique<ChatWriter>(std::move(model_name), tokenizer);
}

}  // namespace larder
