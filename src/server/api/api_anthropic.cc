// Router's handlers of Anthropic's API.
#include <utility>

#include "server/api/anthropic_request.h"
#include "server/api/router.h"
#include "server/request_id.h"

namespace larder {

Reply Router::messages(const HttpRequest& request, Mailbox::Wake wake) const {
  return here_or_upstream(request, &Router::messages_here, std::move(wake));
}

// Every client has to give max_tokens, and gives the most that it would take: that an answer of that length has no room
// here makes a request none for the upstream.
Reply Router::messages_here(const HttpRequest& request, Json body, const UpstreamRoute& route,
                            Mailbox::Wake wake) const {
  ChatRequest chat = parse_messages_request(std::exchange(body, {}), rules());
  require_model(chat.options.model);
  require_short_wait(route);
  GenerationJob job = prepare_job(request, chat);
  if (job.errand) return generate(request, std::move(job), std::move(wake));
  job.writer = make_messages_writer(model_.name);
  job.options = std::move(chat.options);
  keep_next_turn(std::move(chat), job);
  return generate(request, std::move(job), std::move(wake));
}

Reply Router::count_tokens(const HttpRequest& request, Mailbox::Wake wake) const {
  Json body = parse_body(request);
  const UpstreamRoute route = find_upstream(request, body);
  if (route.named != nullptr) return go_upstream(request, route, UpstreamReason::kNamed);
  ChatRequest chat = parse_count_tokens_request(std::move(body), rules());
  require_model(chat.options.model);
  SettledChat settled;
  if (auto errand = settle_chat(request, chat, settled)) return generate(request, *std::move(errand), std::move(wake));
  const std::size_t num_tokens = tokens_of_any_number(std::move(chat), model_).size();
  HttpResponse response = json_response(Json::object({{"input_tokens", num_tokens}}));
  response.headers.emplace_back("request-id", "req_" + make_request_id());
  response.headers.emplace_back("x-larder-route", "local");
  return {std::move(response), nullptr};
}

}  // namespace larder
