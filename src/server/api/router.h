// From a request's path to what answers it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "server/answer/answer_grammar.h"
#include "server/api/auth.h"
#include "server/api/background_response.h"
#include "server/api/generation.h"
#include "server/api/responses_request.h"
#include "server/api/server_config.h"
#include "server/chat/served_model.h"
#include "server/chat/session_store.h"
#include "server/chat/settle_chat.h"
#include "server/http_message.h"
#include "server/memory_budget.h"
#include "server/report/metrics.h"
#include "server/upstream/upstream_route.h"

namespace larder {

struct ResponseDraft;
class Upstream;

// Either a response that is ready, or work that will make one: in the engine, in the background, or the upstream's. With an
// errand the engine's is done first: its body goes into the request's answers under the errand's key, and the request is
// routed again.
struct Reply {
  HttpResponse response = {};
  std::shared_ptr<Generation> generation = nullptr;
  std::optional<Errand> errand = std::nullopt;
  std::optional<UpstreamCall> upstream = std::nullopt;
  std::shared_ptr<EventReader> events = nullptr;  // a stream's, whose head is the response's
};

// What handlers may ask about the server around them.
struct ServerGauges {
  std::atomic<int> num_connections{0};
  std::atomic<int> num_generations{0};  // requests being answered by the engine
  std::atomic<bool> is_leaving{false};  // the server is to end: others are to be asked
};

// Thread: any, concurrently. References must outlive it.
class Router {
 public:
  Router(const ServerConfig& config, const ServedModel& model, ServerMetrics& metrics,
         const ServerGauges& gauges);
  ~Router();

  // An error to send before the body is even read: wrong host, path, method, key, type
  // of content.
  // Also answers CORS preflights.
  std::optional<HttpResponse> check_head(const HttpRequest& head) const;
  // Whether route() takes microseconds only, so that an I/O thread may call it.
  bool is_quick(const HttpRequest& request) const;
  // Whether route() changes nothing.
  bool only_reads(const HttpRequest& request) const;
  // The whole request. Never throws: an Error becomes its response, anything else a 500. May take
  // long (JSON, template, tokenizer): not for I/O threads. wake: see Generation::start.
  Reply route(const HttpRequest& request, Mailbox::Wake wake) const;
  // Has the engine compute what the next turn begins with, once it has nothing else to do. Takes long, too.
  void prepare_next_turn(NextTurn turn) const noexcept;
  // Headers that every reply to this request carries.
  void add_cors(const HttpRequest& request, HttpResponse& response) const;
  // nullptr: there is none, and nothing goes there.
  Upstream* upstream() const { return upstream_.get(); }
  BackgroundResponses& backgrounds() const { return *backgrounds_; }

 private:
  struct Route;
  static const Route kRoutes[];

  std::optional<Digest> key_of(const HttpRequest& request) const;
  static const Route* find(const HttpRequest& request);
  bool allows_origin(const std::string& origin) const;
  // No web page is to read a server without keys by having its own name point to this machine.
  std::optional<HttpResponse> refuse_host(const HttpRequest& head) const;
  // No page that is not named gets to change anything.
  std::optional<HttpResponse> refuse_web_page(const HttpRequest& head, const Route& route) const;
  // Of a path that there is not, or not with this method.
  static HttpResponse refuse_path(const HttpRequest& request);

  // Of a request for a chat or the like with this body.
  // A request that this server, or too many others, have passed on.
  std::optional<HttpResponse> refuse_loop(const HttpRequest& head) const;
  UpstreamRoute find_upstream(const HttpRequest& request, const Json& body) const;
  Reply go_upstream(const HttpRequest& request, const UpstreamRoute& route, UpstreamReason reason) const;
  using LocalHandler = Reply (Router::*)(const HttpRequest&, Json, const UpstreamRoute&, Mailbox::Wake) const;
  // What `here` makes of it, unless it goes upstream by its model's name, or for how that refuses it.
  Reply here_or_upstream(const HttpRequest& request, LocalHandler here, Mailbox::Wake wake) const;
  // As a line that is full is, where the request goes upstream rather than wait for so long.
  void require_short_wait(const UpstreamRoute& route) const;
  // As a prompt that is too long is, where the request goes upstream rather than be cut.
  void require_room_for_answers(const UpstreamRoute& route, const GenerationOptions& options,
                                const std::vector<PreparedPrompt>& prompts) const;
  Reply chat_here(const HttpRequest& request, Json body, const UpstreamRoute& route, Mailbox::Wake wake) const;
  Reply complete_here(const HttpRequest& request, Json body, const UpstreamRoute& route, Mailbox::Wake wake) const;
  Reply messages_here(const HttpRequest& request, Json body, const UpstreamRoute& route, Mailbox::Wake wake) const;

  Reply chat(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply completions(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply create_response(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply compact_response(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply count_input_tokens(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply get_response(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply cancel_response(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply delete_response(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply list_input_items(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply create_conversation(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply get_conversation(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply update_conversation(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply delete_conversation(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply list_items(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply create_items(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply get_item(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply delete_item(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply messages(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply count_tokens(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply tokenize(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply render_chat_request(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply tokenizer_info(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply detokenize(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply models(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply one_model(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply health(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply version(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply page(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply metrics_page(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply load(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply cache_reports(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply cache_report(const HttpRequest& request, Mailbox::Wake wake) const;
  Reply reset_prefix_cache(const HttpRequest& request, Mailbox::Wake wake) const;

  // Whose responses and conversations the request sees.
  std::string owner_of(const HttpRequest& request) const;
  // The request's items, references resolved; those to items of the history, which they follow, are
  // passed over.
  std::vector<ItemPtr> make_items(const std::string& owner, const std::vector<Json>& items,
                                  const std::string& param,
                                  const std::vector<ItemPtr>& history = {}) const;
  struct ResponsePlan;
  // Has what the draft keeps of its request count until the reply has ended.
  void hold(ResponseDraft& draft) const;
  [[noreturn]] static void fail_no_response(const std::string& id, const char* param);
  ResponsePtr find_previous(const std::string& owner, const std::string& id) const;
  // Stored or under way.
  HttpResponse find_response(const HttpRequest& request, const std::string& id) const;
  Reply stream_again(const HttpRequest& request, const std::string& id, Mailbox::Wake wake) const;
  Reply run_in_background(const HttpRequest& request, BackgroundResponse::Origin origin, GenerationJob job,
                          Mailbox::Wake wake) const;
  ResponsePlan plan_response(const HttpRequest& request, ResponsesRequest parsed) const;
  ConversationPtr require_conversation(const HttpRequest& request, const std::string& id) const;
  // Whose prompts the request may hear of.
  std::uint64_t tenant_of(const HttpRequest& request) const;
  Json parse_body(const HttpRequest& request) const;
  RequestRules rules() const;
  Json describe_model() const;
  static Json describe_upstream_model(const UpstreamModel& model);
  // That clients may ask for by this name.
  const UpstreamModel* upstream_model(const std::string& name) const;
  void require_model(const std::string& name) const;
  // Under which the request's KV is shared.
  std::string salt_of(const HttpRequest& request, const GenerationOptions& options) const;
  // Returns the errand that has to be run first; nullopt: the chat is settled.
  std::optional<GenerationJob> settle_chat(const HttpRequest& request, ChatRequest& chat, SettledChat& settled) const;
  GenerationJob prepare_errand(std::string salt, SummaryQuestion question) const;
  // A job for a chat's prompt, whose answer will be known when it comes back. Without a writer, unless it is an errand.
  GenerationJob prepare_job(const HttpRequest& request, ChatRequest& chat) const;
  // Keeps of the chat what its next turn may be prepared by. Once the job has its options.
  void keep_next_turn(ChatRequest chat, GenerationJob& job) const;
  // Has the engine hold the answer to what the request says of it.
  void constrain(ChatRequest& chat, bool ends_in_thought) const;
  std::unique_ptr<Generation> begin(const HttpRequest& request, GenerationJob job, Mailbox::Wake wake) const;
  Reply generate(const HttpRequest& request, GenerationJob job, Mailbox::Wake wake) const;

  const ServerConfig& config_;
  const ServedModel& model_;
  ServerMetrics& metrics_;
  const ServerGauges& gauges_;
  const ApiKeys keys_;
  const std::unique_ptr<HistoryTokens> history_;
  const std::unique_ptr<SessionStore> sessions_;
  const std::unique_ptr<MemoryBudget> drafts_;  // of responses that are being generated
  const std::unique_ptr<MemoryBudget> next_turns_;  // null: none is prepared
  const std::unique_ptr<CacheLog> cache_log_;
  const std::unique_ptr<Summarizer::Table> summaries_;
  const std::unique_ptr<ConstraintTable> constraints_;
  const std::unique_ptr<Upstream> upstream_;  // null = none
  const std::unique_ptr<BackgroundResponses> backgrounds_;  // whose generations refer to what is above
};

}  // namespace larder
