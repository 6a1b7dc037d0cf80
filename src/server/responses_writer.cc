#include "server/responses_writer.h"

#include <utility>

#include "server/response_items.h"
#include "server/sse.h"
#include "server/unix_time.h"
#include "server/utf8.h"

namespace larder {
namespace {

class ResponsesWriter final : public ReplyWriter {
 public:
  ResponsesWriter(std::string model_name, const Tokenizer& tokenizer, ResponseDraft draft)
      : ReplyWriter(make_id("resp_"), std::move(model_name)),
        tokenizer_(tokenizer),
        draft_(std::move(draft)),
        created_s_(unix_time_s()),
        item_id_(make_id("msg_")) {}

  void begin(std::string& out) override {
    for (const char* name : {"response.created", "response.in_progress"}) {
      send(out, name, {{"response", response("in_progress")}});
    }
  }

  void delta(Choice& choice, ChoiceDelta delta, std::span<const Choice>,
             std::string& out) override {
    if (draft_.prewarms) return;
    if (!std::exchange(choice.begun, true)) open_item(out);
    Json shown = logprobs(delta.tokens);
    for (const Json& logprob : shown) logprobs_.push_back(logprob);
    if (delta.text.empty()) return;
    Json event = place(true);
    event["delta"] = std::move(delta.text);
    event["logprobs"] = std::move(shown);
    send(out, "response.output_text.delta", std::move(event));
  }

  void end(std::span<const Choice> all, std::string& out) override {
    const Choice& choice = all.front();
    const Json body = complete(choice);
    if (!draft_.prewarms) close_item(body["output"][0], out);
    const bool is_complete = body["status"] == "completed";
    send(out, is_complete ? "response.completed" : "response.incomplete", {{"response", body}});
  }

  void failure(const ApiError& error, std::string& out) override {
    Json body = response("failed");
    body["error"] = {{"code", "server_error"}, {"message", error.message}};
    send(out, "response.failed", {{"response", std::move(body)}});
  }

  std::string whole(std::span<Choice*> shown, std::span<const Choice>) override {
    logprobs_ = logprobs(shown.front()->tokens);
    return dump_json(complete(*shown.front()));
  }

  HttpResponse failure_response(const ApiError& error) const override {
    return error_response(error);
  }

 private:
  Json response(const char* status) const {
    Json body = {{"id", id()}, {"object", "response"}, {"created_at", created_s_}};
    body["status"] = status;
    body["completed_at"] = nullptr;
    body["error"] = nullptr;
    body["incomplete_details"] = nullptr;
    body["model"] = model_name();
    body["output"] = Json::array();
    for (const auto& [key, value] : draft_.echo.items()) body[key] = value;
    body["conversation"] = nullptr;
    if (!draft_.conversation_id.empty()) body["conversation"] = {{"id", draft_.conversation_id}};
    body["usage"] = nullptr;
    return body;
  }

  void add_report(const CacheReport& report, Json& body) const {
    Json told = openai_diagnostics(report);
    if (!told.is_null()) body["prompt_cache_diagnostics"] = std::move(told);
    if (options_.wants_cache_report) body["larder"]["cache"] = cache_report_json(report);
  }

  // The response as it ended, which is stored now.
  Json complete(const Choice& choice) {
    const bool is_complete = draft_.prewarms || choice.finish != FinishReason::kLength;
    Json body = response(is_complete ? "completed" : "incomplete");
    if (is_complete) {
      body["completed_at"] = unix_time_s();
    } else {
      body["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    if (!draft_.prewarms) {
      body["output"].push_back(
          make_output_message(item_id_, choice.text, is_complete, std::move(logprobs_)));
    }
    body["usage"] = responses_usage_json(choice);
    if (choice.cache_report) add_report(*choice.cache_report, body);
    body["timings"] = timings_json({&choice, 1});
    keep(body, choice);
    return body;
  }

  void keep(const Json& body, const Choice& choice) {
    if (draft_.store == nullptr) return;
    SessionStore& store = *draft_.store;
    std::vector<ItemPtr> output;
    for (const Json& item : body["output"]) {
      output.push_back(store.make_item(
          item, std::make_shared<const std::vector<TokenId>>(choice.token_ids)));
    }
    if (!draft_.conversation_id.empty() && !draft_.prewarms) {
      // It may have been deleted meanwhile; then there is nothing to append to.
      store.modify(draft_.owner, draft_.conversation_id, [&](Conversation& conversation) {
        auto& items = conversation.items;
        items.insert(items.end(), draft_.input.begin(), draft_.input.end());
        items.insert(items.end(), output.begin(), output.end());
      });
    }
    if (!draft_.keeps_response) return;
    auto stored = std::make_shared<StoredResponse>();
    stored->id = id();
    stored->body = body;
    stored->previous = std::move(draft_.previous);
    stored->context = std::move(draft_.context);
    stored->input = std::move(draft_.input);
    stored->output = std::move(output);
    store.put(draft_.owner, std::move(stored));
  }

  // Where a text event belongs.
  Json place(bool in_part) const {
    Json event = {{"item_id", item_id_}, {"output_index", 0}};
    if (in_part) event["content_index"] = 0;
    return event;
  }

  void open_item(std::string& out) {
    Json item = make_output_message(item_id_, "", true);
    const Json part = item["content"][0];
    item["content"] = Json::array();
    item["status"] = "in_progress";
    send(out, "response.output_item.added", {{"output_index", 0}, {"item", std::move(item)}});
    Json event = place(true);
    event["part"] = part;
    send(out, "response.content_part.added", std::move(event));
  }

  void close_item(const Json& item, std::string& out) {
    const Json& part = item["content"][0];
    Json event = place(true);
    event["text"] = part["text"];
    event["logprobs"] = part["logprobs"];
    send(out, "response.output_text.done", std::move(event));
    event = place(true);
    event["part"] = part;
    send(out, "response.content_part.done", std::move(event));
    send(out, "response.output_item.done", {{"output_index", 0}, {"item", item}});
  }

  void send(std::string& out, const char* type, Json fields) {
    Json event = {{"type", type}, {"sequence_number", sequence_number_++}};
    for (auto& [key, value] : fields.items()) event[key] = std::move(value);
    append_named_event(out, type, event);
  }

  Json logprobs(std::span<const OutputToken> tokens) const {
    Json list = Json::array();
    if (!draft_.wants_logprobs) return list;
    for (const OutputToken& token : tokens) {
      Json entry = describe(token.token, token.logprob);
      entry["top_logprobs"] = Json::array();
      for (const TokenLogprob& other : token.best) {
        entry["top_logprobs"].push_back(describe(other.token, other.logprob));
      }
      list.push_back(std::move(entry));
    }
    return list;
  }

  Json describe(TokenId token, float logprob) const {
    const std::string text(tokenizer_.token_bytes(token, true));
    Json bytes = Json::array();
    for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
    return {{"token", to_valid_utf8(text)},
            {"bytes", std::move(bytes)},
            {"logprob", finite_logprob(logprob)}};
  }

  const Tokenizer& tokenizer_;
  ResponseDraft draft_;
  const std::int64_t created_s_;
  const std::string item_id_;
  int sequence_number_ = 0;
  Json logprobs_ = Json::array();
};

}  // namespace

Json responses_usage_json(const Choice& choice) {
  const RequestUsage& usage = choice.usage;
  constexpr int kShortTtl_s = 30 * 60;
  int num_short = 0, num_long = 0;
  for (const WrittenTokens& written : usage.written) {
    (written.ttl_s > kShortTtl_s ? num_long : num_short) += written.num_tokens;
  }
  Json details = {{"cached_tokens", usage.num_cached_tokens},
                  {"cache_write_tokens", num_short + num_long}};
  details["cache_write_tokens_details"] = {{"ttl_30m_tokens", num_short},
                                           {"ttl_12h_tokens", num_long}};
  Json result = {{"input_tokens", usage.num_prompt_tokens}};
  result["input_tokens_details"] = std::move(details);
  result["output_tokens"] = choice.num_tokens;
  result["output_tokens_details"] = {{"reasoning_tokens", 0}};
  result["total_tokens"] = usage.num_prompt_tokens + choice.num_tokens;
  return result;
}

std::unique_ptr<ReplyWriter> make_responses_writer(std::string model_name,
                                                   const Tokenizer& tokenizer,
                                                   ResponseDraft draft) {
  return std::make_unique<ResponsesWriter>(std::move(model_name), tokenizer, std::move(draft));
}

}  // namespace larder
