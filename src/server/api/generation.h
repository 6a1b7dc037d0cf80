// One HTTP request's work in the engine: from prompts to the bytes of its reply.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/api/openai_request.h"
#include "server/api/reply_writer.h"
#include "server/chat/history_tokens.h"
#include "server/chat/long_history.h"
#include "server/chat/next_turn.h"
#include "server/chat/prompt.h"
#include "server/chat/served_model.h"
#include "server/http_message.h"
#include "server/mailbox.h"
#include "server/report/cache_log.h"
#include "server/report/metrics.h"
#include "server/wait_predictor.h"

namespace larder {

// A question for the model, whose answer a request takes before it can be prepared.
struct Errand {
  Digest key{};
  bool is_for_stream = false;  // whose client is to hear meanwhile that something is done
};

struct GenerationJob {
  GenerationOptions options;
  std::vector<PreparedPrompt> prompts;  // at least one
  std::string salt;                     // derived, see auth.h
  std::unique_ptr<ReplyWriter> writer;
  CacheLog* cache_log = nullptr;        // outlives the generation; null = no reports
  std::uint64_t tenant = 0;             // of the API key, for the log
  WaitPredictor* waits = nullptr;       // that is told of its prompts, and outlives it; null = nobody
  std::size_t num_repeated_bytes = 0;  // of its prompts, in the reply
  std::size_t max_waiting_bytes = 0;  // for a stream's reader, before that has consequences, see Generation::keep_pace()
  // Where the answers' tokens are remembered, for when they come back as history; null = nowhere.
  HistoryTokens* history = nullptr;
  Digest asked{};  // HistoryTokens', of the message that they answer
  std::optional<HistoryReport> history_report;  // what became of a long conversation
  std::unique_ptr<NextTurn> next_turn = nullptr;  // to be prepared once the answer is there; null = it is not
  bool keeps_answer = false;  // the writer needs Choice::text and token_ids of a stream, too
  std::optional<Errand> errand = std::nullopt;  // that it is, rather than the request itself
};

// Two halves meet here: the engine thread, which only drops updates into the mailbox, and the
// connection's strand, which takes them, decodes, looks for stop strings and writes JSON.
// Destruction cancels whatever the engine has not finished: a client that is gone frees its blocks.
// Thread: start() any; the rest the connection's strand.
class Generation {
 public:
  // Submits every prompt. wake is called whenever advance() has something to do. Throws Error as
  // Engine::submit does; nothing runs then.
  static std::unique_ptr<Generation> start(const ServedModel& model, GenerationJob job,
                                           ServerMetrics& metrics, Mailbox::Wake wake);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  bool streaming() const { return options_.stream; }
  bool done() const { return done_; }

  // Works off what has arrived. Streaming: returns events to send, about max_bytes at most; call
  // again until it returns "". Otherwise returns "" until done, then the whole body. What takes long to write is left.
  std::string advance(std::size_t max_bytes);
  // All of such a body or event is there; write_reply(), which any thread may call now, returns it.
  bool has_large_reply() const { return has_large_reply_; }
  std::string write_reply();
  // What it holds of text, tokens and logprobs for a body, or for the end of a stream that repeats them, and about what
  // that will be longer for them; what the reply repeats of its prompts; and what logprobs of prompts take, until they are told.
  std::size_t held_bytes() const { return held_bytes_; }
  // Set when done without a result: the engine has ended or was told to stop.
  bool failed() const { return failure_.has_value(); }
  HttpResponse failure_response() const;
  const ApiError& failure() const { return *failure_; }
  // Ends it as failed, for a server that ends before it. The bytes that tell so, of a stream.
  std::string interrupt();
  // Likewise, for one that there is no room for.
  std::string break_off(const ApiError& error);
  // Of the engine, or on the way from it.
  static ApiError no_memory();
  // Nobody wants more of it: the last bytes of a stream. It is to be destroyed then.
  std::string cancel();
  // What is told of it meanwhile, see ReplyWriter.
  Json state() const { return writer_->state(); }
  // Once it is done: what the next turn is prepared by, with the answer. nullptr: nothing is.
  std::unique_ptr<NextTurn> take_next_turn();
  // Bytes for a stream in which nothing has happened for a while; "" = none.
  std::string ping();
  // Headers of the reply, whichever it becomes.
  std::vector<std::pair<std::string, std::string>> headers() const { return writer_->headers(); }

  // A client that does not read leaves its updates in the mailbox, which wakes it once when there are too many: then
  // nothing more is generated for it, until half of what may wait does. To be called when woken, and behind advance().
  void keep_pace();
  // Whether that many times what may wait does, of an answer that cannot pause.
  bool is_behind(std::size_t times = 1) const;

 private:
  Generation(const ServedModel& model, GenerationJob job, ServerMetrics& metrics,
             Mailbox::Wake wake);

  // Not of an endless context: what a pause gives up would have to be computed from the beginning, however long ago that
  // was.
  bool may_pause() const { return options_.attention.window == 0; }
  void tell_of_interrupted() noexcept;
  void submit(std::vector<PreparedPrompt> prompts, const GenerationOptions& asked);
  void count_prompt_logprobs(std::size_t num_prompt);
  void open(PreparedPrompt& prompt, const GenerationOptions& asked);
  void make_choices();
  void report(Choice& choice, const RequestUpdate& update);
  void tell_answer(const Choice& choice) const;
  const Choice& first_of(const Choice& choice) const;
  bool shows_all() const { return options_.best_of == options_.n; }
  bool is_large(const RequestUpdate& update) const;
  void take(Mailbox::Item item, std::string& out);
  static void count_thought(Choice& choice, std::string_view text);
  ChoiceDelta absorb(Choice& choice, RequestUpdate& update);
  void observe(Choice& choice, const RequestUpdate& update);
  void observe_finished(const Choice& choice, const char* reason);
  void observe_unfinished(const char* reason);
  void keep(Choice& choice, const ChoiceDelta& delta);
  void remember(const Choice& choice) const;
  void emit(Choice& choice, ChoiceDelta delta, std::string& out);
  void finish(std::string& out);
  void fail(std::string& out, const ApiError& error);
  std::vector<Choice*> chosen();

  const ServedModel& model_;
  ServerMetrics& metrics_;
  std::unique_ptr<ReplyWriter> writer_;
  ReplyOptions& options_;  // the writer's
  std::string form_field_;  // which asks for the constraint, if there is one
  HistoryTokens* const history_;
  CacheLog* const cache_log_;
  const std::uint64_t tenant_;
  WaitPredictor* const waits_;
  std::vector<WaitPredictor::Place> places_;  // per prompt, where there are waits_
  std::vector<OpenPrompt> open_prompts_;  // per prompt
  const Digest asked_;
  std::unique_ptr<NextTurn> next_turn_;
  const bool keeps_answer_;
  std::string salt_;
  const std::size_t max_waiting_bytes_;
  std::shared_ptr<Mailbox> mailbox_;
  std::vector<Choice> choices_;             // [num_prompts * best_of]; empty until the first update
  std::vector<std::uint64_t> request_ids_;  // per prompt, the engine's
  std::vector<int> max_tokens_;             // per prompt, as the engine was told
  std::vector<bool> continues_text_;        // per prompt, PreparedPrompt's
  std::vector<int> num_open_;               // per prompt, choices that have not ended
  int num_unfinished_ = 0;                  // choices
  std::size_t num_entries_ = 0;  // tokens and logprobs that are kept for a body
  std::size_t held_bytes_ = 0;
  std::size_t prompt_logprob_bytes_ = 0;  // of those; of a stream until all of its choices have been told
  std::size_t largest_event_bytes_ = 0;   // of those, what a stream writes of them at once
  int num_untold_ = 0;                    // choices
  bool is_paused_ = false;
  bool begun_ = false;
  bool done_ = false;
  bool has_large_reply_ = false;
  std::optional<Mailbox::Item> large_item_;  // of a stream, that makes a large event
  std::optional<ApiError> failure_;
};

}  // namespace larder
