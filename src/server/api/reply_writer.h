// What every API knows of an answer, and how each writes its replies.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "engine/text_stream.h"
#include "server/answer/answer_scanner.h"
#include "server/api/openai_request.h"
#include "server/chat/prompt.h"
#include "server/http_message.h"
#include "server/json_reader.h"
#include "server/report/cache_report.h"
#include "server/sse.h"
#include "tokenizer/tokenizer.h"

namespace larder {

// One answer, as far as it has come.
struct Choice {
  explicit Choice(TextStream stream) : text_stream(std::move(stream)) {}

  int index = 0;   // in the reply
  int prompt = 0;  // which prompt it answers
  TextStream text_stream;
  FinishReason finish = FinishReason::kNone;
  std::optional<TokenId> stop_token;  // generated, but not shown
  std::string stop_string;  // what stopped it, "" if no string did
  RequestUsage usage;
  RequestTimes times;
  int num_tokens = 0;              // up to the stop string
  int num_thought_tokens = 0;      // of those
  std::optional<AnswerScanner> thought_meter;  // by which they are counted; nullopt = thoughts are text
  double sum_logprob = 0;          // for best_of
  std::optional<StreamDecoder> decoder;  // of tokens shown, as text_stream decodes; only with logprobs
  std::size_t num_characters = 0;  // up to the next token, for text_offset
  bool begun = false;              // a chunk was sent
  // Everything, for a reply that is not streamed, and where answers are remembered.
  std::string text;
  std::vector<TokenId> token_ids;  // only where answers are remembered
  std::vector<OutputToken> tokens;
  SharedTokens prompt_logprobs;
  // Why tokens of the prompt were computed: from the first update on, in its first choice.
  std::optional<CacheReport> cache_report;

  bool done() const { return finish != FinishReason::kNone; }
  int num_generated() const { return num_tokens + (stop_token ? 1 : 0); }
};

// What a step added to a choice. The text may lag behind the tokens: half characters and possible
// beginnings of a stop string are held back.
struct ChoiceDelta {
  std::string text;
  std::vector<OutputToken> tokens = {};
  SharedTokens prompt_logprobs = nullptr;
};

// How one API writes a reply, whole or as a stream of events. A stream is begin(), then delta() for
// every step's news of a choice, then end(); failure() may end it at any time. Events are appended to
// out as they go over the wire (sse.h). Thread: the connection's strand; the setters before the first
// reply.
class ReplyWriter {
 public:
  ReplyWriter(std::string id, std::string model_name);
  virtual ~ReplyWriter() = default;

  // What the client is to call this reply.
  const std::string& id() const { return id_; }

  void set_options(ReplyOptions options) { options_ = std::move(options); }
  ReplyOptions& options() { return options_; }
  // What became of a long conversation, for the reply's larder.history.
  void set_history(Json report) { history_ = std::move(report); }
  void set_prompts(std::vector<std::vector<TokenId>> prompts) { prompts_ = std::move(prompts); }

  // Once, as soon as the request is in the engine: nothing is known of the prompt's usage.
  virtual void begin(std::string& out) { (void)out; }
  // all: every choice of the reply, this one among them; usage is complete from the first on.
  virtual void delta(Choice& choice, ChoiceDelta delta, std::span<const Choice> all,
                     std::string& out) = 0;
  // All choices have ended.
  virtual void end(std::span<const Choice> all, std::string& out) = 0;
  // Nothing was sent for a while: what keeps the connection alive.
  virtual void ping(std::string& out) { out += kSseComment; }
  // Of one that need not be waited for: what is told of it until it has ended.
  virtual Json state() const { return nullptr; }
  // In place of what is missing, end() included: nobody wants more of it.
  virtual void cancelled(std::string& out) { (void)out; }
  // Likewise, as it cannot go on.
  virtual void failure(const ApiError& error, std::string& out) = 0;

  // The body of a reply that is not streamed; shown are the choices to show, all those computed.
  virtual std::string whole(std::span<Choice*> shown, std::span<const Choice> all) = 0;
  // How many times what was said of all tokens, as text, is in memory at once before the reply has ended.
  virtual std::size_t num_written_logprobs() const { return options_.stream ? 0 : 1; }
  // In its place.
  virtual HttpResponse failure_response(const ApiError& error) const = 0;

  // Headers of every reply.
  virtual std::vector<std::pair<std::string, std::string>> headers() const { return {{"x-request-id", id_}}; }

 protected:
  const std::string& model_name() const { return model_name_; }
  // Kept only when the reply shows them: with return_token_ids or echo.
  const std::vector<TokenId>& prompt_tokens(const Choice& choice) const;

  // Adds what is Larder's own to a reply, if there is anything.
  void add_larder(Json& body) const {
    if (!history_.is_null()) body["larder"]["history"] = history_;
  }

  ReplyOptions options_;
  std::vector<std::vector<TokenId>> prompts_;

 private:
  const std::string id_;
  const std::string model_name_;
  Json history_;
};

std::unique_ptr<ReplyWriter> make_messages_writer(std::string model_name);
std::unique_ptr<ReplyWriter> make_chat_writer(std::string model_name, const Tokenizer& tokenizer);
// echo: per prompt what to put first; empty = no echo.
std::unique_ptr<ReplyWriter> make_completion_writer(std::string model_name,
                                                    const Tokenizer& tokenizer,
                                                    std::vector<EchoedPrompt> echo);

// usage{prompt_tokens, ..., prompt_tokens_details}: each prompt counts once, however many choices.
Json usage_json(std::span<const Choice> choices);
// llama.cpp's timings: the cached and the computed part of the prompt, and the answer.
Json timings_json(std::span<const Choice> choices);

// A logprob that JSON can hold: -infinity becomes -9999.
double finite_logprob(float logprob);

}  // namespace larder
