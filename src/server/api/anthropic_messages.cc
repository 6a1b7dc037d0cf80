// The shape of Anthropic's messages.
#include <utility>

#include "server/answer/answer_scanner.h"
#include "server/api/anthropic_request.h"
#include "server/api/reply_writer.h"
#include "server/request_id.h"
#include "server/sse.h"

namespace larder {
namespace {

// input_tokens are those neither read from the cache nor written to it.
Json usage_of(const Choice& choice) {
  const RequestUsage& usage = choice.usage;
  const int num_written = usage.num_written_tokens();
  const int num_long = usage.num_written_beyond(kShortCacheTtl_s);
  const int num_uncached = usage.num_prompt_tokens - usage.num_cached_tokens - num_written;
  return {{"input_tokens", num_uncached},
          {"cache_creation_input_tokens", num_written},
          {"cache_read_input_tokens", usage.num_cached_tokens},
          {"cache_creation",
           {{"ephemeral_5m_input_tokens", num_written - num_long},
            {"ephemeral_1h_input_tokens", num_long}}},
          {"output_tokens", choice.num_generated()},
          {"output_tokens_details", {{"thinking_tokens", choice.num_thought_tokens}}},
          {"service_tier", "standard"}};
}

class MessagesWriter final : public ReplyWriter {
 public:
  explicit MessagesWriter(std::string model_name)
      : ReplyWriter("msg_" + make_request_id(), std::move(model_name)) {}

  void delta(Choice& choice, ChoiceDelta delta, std::span<const Choice>,
             std::string& out) override {
    if (!std::exchange(choice.begun, true)) start_message(choice, out);
    for (AnswerPiece& piece : scanner().push(delta.text)) put(piece, out);
    if (!choice.done()) return;
    for (AnswerPiece& piece : scanner().finish()) put(piece, out);
    close_block(out);
    Json event = {{"type", "message_delta"}};
    event["delta"] = {{"stop_reason", stop_reason(choice, num_calls_ > 0)},
                      {"stop_sequence", stop_sequence(choice)}};
    event["usage"] = usage_of(choice);
    append_named_event(out, "message_delta", event);
  }

  void end(std::span<const Choice>, std::string& out) override {
    append_named_event(out, "message_stop", {{"type", "message_stop"}});
  }

  void ping(std::string& out) override { append_ping_event(out); }

  void failure(const ApiError& error, std::string& out) override {
    append_named_event(out, "error", anthropic_error_json(error, request_id_));
  }

  std::string whole(std::span<Choice*> shown, std::span<const Choice>) override {
    Choice& choice = *shown.front();
    Json content = Json::array();
    bool has_calls = false;
    for (AnswerPiece& piece : split_answer(choice.text, options_.tool_calls)) {
      if (piece.call) {
        content.push_back(call_block(*piece.call, std::move(piece.call->arguments)));
        has_calls = true;
      } else if (piece.is_thought) {
        content.push_back(thinking_block(std::move(piece.text)));
      } else {
        content.push_back({{"type", "text"}, {"text", std::move(piece.text)}});
      }
    }
    Json body = message(choice, std::move(content));
    body["stop_reason"] = stop_reason(choice, has_calls);
    body["stop_sequence"] = stop_sequence(choice);
    return dump_json(body);
  }

  HttpResponse failure_response(const ApiError& error) const override {
    return anthropic_error_response(error, request_id_);
  }

  std::vector<std::pair<std::string, std::string>> headers() const override {
    return {{"request-id", request_id_}};
  }

 private:
  // Options are known only after construction.
  AnswerScanner& scanner() {
    if (!scanner_) scanner_.emplace(options_.tool_calls);
    return *scanner_;
  }

  Json message(const Choice& choice, Json content) const {
    Json body = {{"id", id()}, {"type", "message"}, {"role", "assistant"}, {"model", model_name()}};
    body["content"] = std::move(content);
    body["stop_reason"] = nullptr;
    body["stop_sequence"] = nullptr;
    body["usage"] = usage_of(choice);
    body["diagnostics"] = nullptr;
    if (choice.cache_report) {
      body["diagnostics"] = anthropic_diagnostics(*choice.cache_report);
      if (options_.wants_cache_report) {
        body["larder"]["cache"] = cache_report_json(*choice.cache_report);
      }
    }
    add_larder(body);
    return body;
  }

  static Json call_block(const ToolCall& call, Json input) {
    return {{"type", "tool_use"},
            {"id", "toolu_" + make_request_id()},
            {"name", call.name},
            {"input", std::move(input)}};
  }

  // Nobody signs it: it is read as it comes back.
  static Json thinking_block(std::string text) {
    return {{"type", "thinking"}, {"thinking", std::move(text)}, {"signature", ""}};
  }

  void start_message(const Choice& choice, std::string& out) const {
    append_named_event(out, "message_start",
                       {{"type", "message_start"}, {"message", message(choice, Json::array())}});
    append_named_event(out, "ping", {{"type", "ping"}});
  }

  void put(AnswerPiece& piece, std::string& out) {
    if (piece.call) {
      ++num_calls_;
      close_block(out);
      open_block(call_block(*piece.call, Json::object()), out);
      put_delta({{"type", "input_json_delta"}, {"partial_json", dump_json(piece.call->arguments)}},
                out);
      return close_block(out);
    }
    if (is_in_block_ && is_in_thought_ != piece.is_thought) close_block(out);
    if (!is_in_block_) open_block(piece.is_thought ? thinking_block("") : Json{{"type", "text"}, {"text", ""}}, out);
    is_in_thought_ = piece.is_thought;
    if (piece.is_thought)
      put_delta({{"type", "thinking_delta"}, {"thinking", std::move(piece.text)}}, out);
    else
      put_delta({{"type", "text_delta"}, {"text", std::move(piece.text)}}, out);
  }

  void open_block(Json block, std::string& out) {
    is_in_block_ = true;
    append_named_event(out, "content_block_start",
                       {{"type", "content_block_start"},
                        {"index", num_blocks_},
                        {"content_block", std::move(block)}});
  }

  void put_delta(Json delta, std::string& out) const {
    append_named_event(out, "content_block_delta",
                       {{"type", "content_block_delta"},
                        {"index", num_blocks_},
                        {"delta", std::move(delta)}});
  }

  void close_block(std::string& out) {
    if (!std::exchange(is_in_block_, false)) return;
    append_named_event(out, "content_block_stop",
                       {{"type", "content_block_stop"}, {"index", num_blocks_}});
    ++num_blocks_;
  }

  std::string_view stop_reason(const Choice& choice, bool has_calls) const {
    if (choice.finish == FinishReason::kLength) {
      const bool is_full = choice.num_tokens < options_.sampling.max_tokens;
      return is_full ? "model_context_window_exceeded" : "max_tokens";
    }
    if (!choice.stop_string.empty()) return "stop_sequence";
    return has_calls ? "tool_use" : "end_turn";
  }

  static Json stop_sequence(const Choice& choice) {
    return choice.stop_string.empty() ? Json() : Json(choice.stop_string);
  }

  const std::string request_id_ = "req_" + make_request_id();
  std::optional<AnswerScanner> scanner_;
  int num_blocks_ = 0;  // that have ended
  int num_calls_ = 0;
  bool is_in_block_ = false;
  bool is_in_thought_ = false;  // the block is one
};

}  // namespace

std::unique_ptr<ReplyWriter> make_messages_writer(std::string model_name) {
  return std::make_unique<MessagesWriter>(std::move(model_name));
}

}  // namespace larder
