#include "server/api/responses_writer.h"

#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "server/answer/answer_scanner.h"
#include "server/api/responses_echo.h"
#include "server/chat/response_items.h"
#include "server/sse.h"
#include "server/unix_time.h"
#include "server/utf8.h"

namespace larder {
namespace {

// What the API calls a call, and what is in it.
struct CallWords {
  const char* type;
  const char* id_prefix;
  const char* member;
  const char* delta;
  const char* done;
};
constexpr CallWords kFunctionCall = {"function_call", "fc_", "arguments", "response.function_call_arguments.delta",
                                     "response.function_call_arguments.done"};
constexpr CallWords kCustomCall = {"custom_tool_call", "ctc_", "input", "response.custom_tool_call_input.delta",
                                   "response.custom_tool_call_input.done"};

class ResponsesWriter final : public ReplyWriter {
 public:
  ResponsesWriter(std::string model_name, const Tokenizer& tokenizer, ResponseDraft draft)
      : ReplyWriter(make_id("resp_"), std::move(model_name)),
        tokenizer_(tokenizer),
        draft_(std::move(draft)),
        echo_(written_members(draft_.echo)),
        created_s_(unix_time_s()) {
    draft_.echo = nullptr;
    has_events_ = draft_.has_events;
    is_queued_ = draft_.is_background;
  }

  void begin(std::string& out) override {
    const char* second = is_queued_ ? "response.queued" : "response.in_progress";
    for (const char* name : {"response.created", second}) send(out, name, {{"response", state()}});
  }

  Json state() const override { return response(is_queued_ ? "queued" : "in_progress"); }

  void delta(Choice& choice, ChoiceDelta delta, std::span<const Choice>,
             std::string& out) override {
    leave_queue(out);
    if (!draft_.prewarms) take(choice, delta.text, std::move(delta.tokens), out);
  }

  void end(std::span<const Choice> all, std::string& out) override {
    Json body = complete(all.front());
    const bool is_complete = body["status"] == "completed";
    send(out, is_complete ? "response.completed" : "response.incomplete", {{"response", std::move(body)}});
  }

  void failure(const ApiError& error, std::string& out) override {
    Json body = response("failed");
    body["error"] = {{"code", "server_error"}, {"message", error.message}};
    if (draft_.is_background) store(body, {});
    send(out, "response.failed", {{"response", std::move(body)}});
  }

  // The API has no event of its own for it.
  void cancelled(std::string& out) override {
    close_thought(false, out);
    close_message(false, out);
    Json body = response("cancelled");
    body["output"] = std::move(output_);
    std::vector<ItemPtr> output;
    for (const Json& item : body["output"]) output.push_back(make_item(item));
    store(body, std::move(output));
    send(out, "response.incomplete", {{"response", std::move(body)}});
  }

  // The stream's steps, without its events, make the whole.
  std::string whole(std::span<Choice*> shown, std::span<const Choice>) override {
    has_events_ = false;
    std::string events;
    Choice& choice = *shown.front();
    if (!draft_.prewarms) take(choice, choice.text, std::exchange(choice.tokens, {}), events);
    return dump_json(complete(choice));
  }

  // In the item and in the body; of a stream in the message's last events, which repeat it, and once more as one of them
  // is written.
  std::size_t num_written_logprobs() const override {
    if (!draft_.wants_logprobs) return 0;
    return options_.stream ? 6 : 2;
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
    for (const auto& [key, value] : echo_.items()) body[key] = value;
    body["conversation"] = nullptr;
    if (!draft_.conversation_id.empty()) body["conversation"] = {{"id", draft_.conversation_id}};
    body["usage"] = nullptr;
    add_larder(body);
    return body;
  }

  void add_report(const CacheReport& report, Json& body) const {
    Json told = openai_diagnostics(report);
    if (!told.is_null()) body["prompt_cache_diagnostics"] = std::move(told);
    if (options_.wants_cache_report) body["larder"]["cache"] = cache_report_json(report);
  }

  // The response as it ended, which is stored now.
  Json complete(const Choice& choice) {
    const bool is_complete = this->is_complete(choice);
    Json body = response(is_complete ? "completed" : "incomplete");
    if (is_complete) {
      body["completed_at"] = unix_time_s();
    } else {
      body["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    body["output"] = std::move(output_);
    body["usage"] = responses_usage_json(choice);
    if (choice.cache_report) add_report(*choice.cache_report, body);
    body["timings"] = timings_json({&choice, 1});
    keep(body, choice);
    return body;
  }

  void keep(const Json& body, const Choice& choice) {
    if (draft_.store == nullptr) return;
    std::vector<ItemPtr> output;
    for (const Json& item : body["output"]) {
      // Those tokens are the message's if it is all that was generated.
      const bool is_all = item["type"] == "message" && text_of(item) == choice.text;
      output.push_back(make_item(
          item, is_all ? std::make_shared<const std::vector<TokenId>>(choice.token_ids) : nullptr));
    }
    if (!draft_.conversation_id.empty() && !draft_.prewarms) {
      // It may have been deleted meanwhile; then there is nothing to append to.
      draft_.store->modify(draft_.owner, draft_.conversation_id, [&](Conversation& conversation) {
        append_input(conversation.items);
        conversation.items.insert(conversation.items.end(), output.begin(), output.end());
      });
    }
    if (draft_.keeps_response) store(body, std::move(output));
  }

  void store(const Json& body, std::vector<ItemPtr> output) {
    auto stored = std::make_shared<StoredResponse>();
    stored->id = id();
    stored->body = body;
    stored->previous = std::move(draft_.previous);
    stored->context = std::move(draft_.context);
    stored->input = std::move(draft_.input);
    stored->output = std::move(output);
    stored->is_background = draft_.is_background;
    draft_.store->put(draft_.owner, std::move(stored));
  }

  // What the input refers to may be there. An id that another item has taken meanwhile is left to that.
  void append_input(std::vector<ItemPtr>& items) const {
    std::map<std::string_view, const StoredItem*> present;  // not by hashes: clients choose the ids
    for (const ItemPtr& item : draft_.input) present.emplace(item->id(), nullptr);
    for (const ItemPtr& item : items) {
      const auto found = present.find(item->id());
      if (found != present.end()) found->second = item.get();
    }
    for (const ItemPtr& item : draft_.input) {
      const StoredItem* there = present[item->id()];
      if (there == item.get()) continue;
      if (there == nullptr) {
        items.push_back(item);
        continue;
      }
      Json renamed = item->json;
      renamed["id"] = make_id("item_");
      items.push_back(make_item(std::move(renamed), item->tokens));
    }
  }

  // In the line, or while its prompt is computed.
  void leave_queue(std::string& out) {
    if (std::exchange(is_queued_, false)) send(out, "response.in_progress", {{"response", state()}});
  }

  bool is_complete(const Choice& choice) const {
    return draft_.prewarms || choice.finish != FinishReason::kLength;
  }

  // News of the answer: texts and calls become items. Token by token where logprobs are to stand beside
  // their texts.
  void take(Choice& choice, std::string_view text, std::vector<OutputToken> tokens, std::string& out) {
    if (!std::exchange(begun_, true) && !draft_.compaction.is_null()) {
      add_item(std::move(draft_.compaction), out);
    }
    if (draft_.wants_logprobs) expect(*choice.decoder, std::move(tokens));
    while (!expected_.empty() && expected_.front().num_bytes <= text.size()) {
      const std::string_view piece = text.substr(0, expected_.front().num_bytes);
      text.remove_prefix(piece.size());
      waiting_tokens_.push_back(std::move(expected_.front().token));
      expected_.pop_front();
      put(scanner().push(piece), out);
    }
    if (!expected_.empty()) expected_.front().num_bytes -= text.size();
    put(scanner().push(text), out);
    if (choice.done()) finish(choice, out);
  }

  void finish(const Choice& choice, std::string& out) {
    put(scanner().finish(), out);
    // Their text is not shown: of a stop string, of half a character.
    for (Expected& expected : expected_) waiting_tokens_.push_back(std::move(expected.token));
    close_thought(is_complete(choice), out);
    const bool is_silent = num_calls_ == 0 && !message_;
    if (is_silent) open_message(out);
    if (message_ && !waiting_tokens_.empty()) add_text("", out);
    close_message(is_complete(choice), out);
  }

  // The text comes later, as far as it is shown.
  void expect(StreamDecoder& decoder, std::vector<OutputToken> tokens) {
    for (OutputToken& token : tokens) {
      const std::size_t num_bytes = decoder.push(token.token).size();
      expected_.push_back({num_bytes, std::move(token)});
    }
  }

  void put(std::vector<AnswerPiece> pieces, std::string& out) {
    std::size_t num_behind = 0;
    for (const AnswerPiece& piece : pieces) num_behind += piece.text.size();
    for (AnswerPiece& piece : pieces) {
      num_behind -= piece.text.size();
      if (piece.is_thought) {
        close_message(true, out);
        add_thought(std::move(piece.text), out);
        drop_logprobs_before(num_behind);
        continue;
      }
      close_thought(true, out);
      if (!piece.call) {
        // Of headers before it, or a thought's tags, no text is shown.
        const bool is_first = !std::exchange(has_text_, true);
        const ToolCallRules& rules = options_.tool_calls;
        if (rules.is_harmony || (rules.parts_thoughts && is_first)) drop_logprobs_before(num_behind + piece.text.size());
        add_text(std::move(piece.text), out);
        continue;
      }
      close_message(true, out);
      add_call(*piece.call, out);
      drop_logprobs_before(num_behind);
    }
  }

  // Of the tokens that wrote a call or a thought; those of the text behind it, so many bytes, still wait.
  void drop_logprobs_before(std::size_t num_bytes) {
    auto begin = waiting_tokens_.end();
    for (std::size_t covered = 0; covered < num_bytes && begin != waiting_tokens_.begin();)
      covered += tokenizer_.token_bytes((--begin)->token, true).size();
    waiting_tokens_.erase(waiting_tokens_.begin(), begin);
  }

  AnswerScanner& scanner() {
    if (!scanner_) scanner_.emplace(options_.tool_calls);
    return *scanner_;
  }

  // A token whose text has not come.
  struct Expected {
    std::size_t num_bytes = 0;
    OutputToken token;
  };

  // Of tokens, one after another: "[{...},{...}", or nothing.
  using WrittenLogprobs = std::vector<std::uint8_t>;
  static Json whole_list(WrittenLogprobs logprobs) {
    if (logprobs.empty()) return Json::array();
    logprobs.push_back(']');
    return written_json(std::move(logprobs));
  }

  // A message that is being written.
  struct Message {
    std::string id, text;
    WrittenLogprobs logprobs;
  };

  // Where an event of the open item belongs.
  Json place(const std::string& item_id) const {
    return {{"item_id", item_id}, {"output_index", output_.size()}};
  }
  Json place_in_message() const {
    Json event = place(message_->id);
    event["content_index"] = 0;
    return event;
  }

  void add_text(std::string text, std::string& out) {
    if (!message_) open_message(out);
    WrittenLogprobs shown;  // of a stream
    for (const OutputToken& token : std::exchange(waiting_tokens_, {})) {
      const std::string logprob = dump_json(logprob_of(token));
      append(logprob, message_->logprobs);
      if (has_events_) append(logprob, shown);
    }
    message_->text += text;
    Json event = place_in_message();
    event["delta"] = std::move(text);
    event["logprobs"] = whole_list(std::move(shown));
    send(out, "response.output_text.delta", std::move(event));
  }

  static void append(std::string_view logprob, WrittenLogprobs& to) {
    to.push_back(to.empty() ? '[' : ',');
    to.insert(to.end(), logprob.begin(), logprob.end());
  }

  void open_message(std::string& out) {
    message_.emplace();
    message_->id = make_id("msg_");
    Json item = make_output_message(message_->id, "", true);
    const Json part = item["content"][0];
    item["content"] = Json::array();
    open_item(std::move(item), out);
    Json event = place_in_message();
    event["part"] = part;
    send(out, "response.content_part.added", std::move(event));
  }

  void close_message(bool is_whole, std::string& out) {
    if (!message_) return;
    Json item = make_output_message(message_->id, message_->text, is_whole,
                                    whole_list(std::move(message_->logprobs)));
    if (has_events_) tell_message(item["content"][0], out);
    close_item(std::move(item), out);
    message_.reset();
  }

  void tell_message(const Json& part, std::string& out) {
    Json event = place_in_message();
    event["text"] = part["text"];
    event["logprobs"] = part["logprobs"];
    send(out, "response.output_text.done", std::move(event));
    event = place_in_message();
    event["part"] = part;
    send(out, "response.content_part.done", std::move(event));
  }

  Json thought_item() const {
    Json item = {{"id", thought_->id}, {"type", "reasoning"}, {"summary", Json::array()}};
    item["content"] = Json::array();
    return item;
  }
  Json place_in_thought() const {
    Json event = place(thought_->id);
    event["content_index"] = 0;
    return event;
  }
  static Json thought_part(std::string text) { return {{"type", "reasoning_text"}, {"text", std::move(text)}}; }

  void add_thought(std::string text, std::string& out) {
    Json event;
    if (!thought_) {
      thought_.emplace();
      thought_->id = make_id("rs_");
      open_item(thought_item(), out);
      event = place_in_thought();
      event["part"] = thought_part("");
      send(out, "response.content_part.added", std::move(event));
    }
    thought_->text += text;
    event = place_in_thought();
    event["delta"] = std::move(text);
    send(out, "response.reasoning_text.delta", std::move(event));
  }

  void close_thought(bool is_whole, std::string& out) {
    if (!thought_) return;
    Json item = thought_item();
    item["content"].push_back(thought_part(std::move(thought_->text)));
    item["status"] = is_whole ? "completed" : "incomplete";
    Json event = place_in_thought();
    event["text"] = item["content"][0]["text"];
    send(out, "response.reasoning_text.done", std::move(event));
    event = place_in_thought();
    event["part"] = item["content"][0];
    send(out, "response.content_part.done", std::move(event));
    close_item(std::move(item), out);
    thought_.reset();
  }

  void add_call(const ToolCall& call, std::string& out) {
    ++num_calls_;
    const CallWords& words = is_custom(options_.tool_calls, call) ? kCustomCall : kFunctionCall;
    Json item = {{"id", make_id(words.id_prefix)}, {"type", words.type}, {"status", "completed"}};
    item["call_id"] = make_id("call_");
    const auto known = draft_.tool_names.find(call.name);
    item["name"] = known != draft_.tool_names.end() ? known->second.name : call.name;
    if (known != draft_.tool_names.end() && !known->second.space.empty()) item["namespace"] = known->second.space;
    item[words.member] = "";
    open_item(item, out);
    item[words.member] = &words == &kCustomCall ? custom_input(call.arguments) : dump_json(call.arguments);
    Json event = place(item["id"]);
    event["delta"] = item[words.member];
    send(out, words.delta, std::move(event));
    event = place(item["id"]);
    if (&words == &kFunctionCall) event["name"] = item["name"];
    event[words.member] = item[words.member];
    send(out, words.done, std::move(event));
    close_item(std::move(item), out);
  }

  void add_item(Json item, std::string& out) {
    Json event = {{"output_index", output_.size()}};
    event["item"] = item;
    send(out, "response.output_item.added", std::move(event));
    close_item(std::move(item), out);
  }
  void open_item(Json item, std::string& out) {
    item["status"] = "in_progress";
    Json event = {{"output_index", output_.size()}};
    event["item"] = std::move(item);
    send(out, "response.output_item.added", std::move(event));
  }
  void close_item(Json item, std::string& out) {
    if (has_events_) {
      Json event = {{"output_index", output_.size()}};
      event["item"] = item;
      send(out, "response.output_item.done", std::move(event));
    }
    output_.push_back(std::move(item));
  }

  void send(std::string& out, const char* type, Json fields) {
    if (!has_events_) return;
    Json event = {{"type", type}, {"sequence_number", sequence_number_++}};
    for (auto& [key, value] : fields.items()) event[key] = std::move(value);
    append_named_event(out, type, event);
  }

  Json logprob_of(const OutputToken& token) const {
    Json entry = describe(token.token, token.logprob);
    entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& other : token.best) {
      entry["top_logprobs"].push_back(describe(other.token, other.logprob));
    }
    return entry;
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
  const Json echo_;  // of the draft, written
  const std::int64_t created_s_;
  int sequence_number_ = 0;
  Json output_ = Json::array();  // items that are complete
  std::optional<Message> message_;
  std::optional<Message> thought_;
  std::optional<AnswerScanner> scanner_;  // once the options are known
  std::deque<Expected> expected_;
  std::vector<OutputToken> waiting_tokens_;  // whose text the scanner holds back
  int num_calls_ = 0;
  bool has_events_ = true;
  bool is_queued_ = false;  // of one in the background: nothing has come of it
  bool has_text_ = false;  // some of it was told
  bool begun_ = false;
};

}  // namespace

Json responses_usage_json(const Choice& choice) {
  const RequestUsage& usage = choice.usage;
  constexpr int kShortTtl_s = 30 * 60;
  const int num_pinned = usage.num_pinned_beyond(0);
  const int num_long = usage.num_pinned_beyond(kShortTtl_s);
  Json details = {{"cached_tokens", usage.num_cached_tokens},
                  {"cache_write_tokens", usage.num_written_tokens()}};
  // What stays for no time of its own is of neither kind.
  if (num_pinned > 0) {
    details["cache_write_tokens_details"] = {{"ttl_30m_tokens", num_pinned - num_long},
                                             {"ttl_12h_tokens", num_long}};
  }
  Json result = {{"input_tokens", usage.num_prompt_tokens}};
  result["input_tokens_details"] = std::move(details);
  result["output_tokens"] = choice.num_generated();
  result["output_tokens_details"] = {{"reasoning_tokens", choice.num_thought_tokens}};
  result["total_tokens"] = usage.num_prompt_tokens + choice.num_generated();
  return result;
}

std::unique_ptr<ReplyWriter> make_responses_writer(std::string model_name,
                                                   const Tokenizer& tokenizer,
                                                   ResponseDraft draft) {
  return std::make_unique<ResponsesWriter>(std::move(model_name), tokenizer, std::move(draft));
}

}  // namespace larder
