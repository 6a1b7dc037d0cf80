// Router's part in responses that go on without their clients.
#include <utility>

#include "server/api/background_response.h"
#include "server/api/response_plan.h"
#include "server/api/router.h"
#include "server/json_fields.h"
#include "server/url.h"

namespace larder {

Reply Router::run_in_background(const HttpRequest& request, BackgroundResponse::Origin origin, GenerationJob job,
                                Mailbox::Wake wake) const {
  const auto response = backgrounds_->make(std::move(origin));
  std::unique_ptr<Generation> generation = begin(request, std::move(job), response->make_wake());
  Reply reply{.response = json_response(generation->state())};  // before anything has come of it
  reply.response.headers = generation->headers();
  reply.response.headers.emplace_back("x-larder-route", "local");
  if (response->events() != nullptr) {
    reply.response.body.clear();
    reply.events = EventReader::begin(response->events(), 0, std::move(wake));
  }
  backgrounds_->start(response, std::move(generation));
  return reply;
}

HttpResponse Router::find_response(const HttpRequest& request, const std::string& id) const {
  const std::string owner = owner_of(request);
  // One that ends meanwhile is stored then.
  for (int i = 0; i < 2; ++i) {
    if (const ResponsePtr response = sessions_->find_response(owner, id)) return json_response(response->body);
    const auto running = backgrounds_->find(owner, id);
    if (running == nullptr) continue;
    if (auto state = running->state()) return *std::move(state);
  }
  fail_no_response(id, "response_id");
}

Reply Router::get_response(const HttpRequest& request, Mailbox::Wake) const {
  if (query_parameter(request.query, "stream") == "true")
    fail_field("stream", "a stored response is not streamed again; leave it out");
  return {find_response(request, path_values("/v1/responses/{id}", request.path).at(0))};
}

Reply Router::cancel_response(const HttpRequest& request, Mailbox::Wake) const {
  const std::string id = path_values("/v1/responses/{id}/cancel", request.path).at(0);
  const std::string owner = owner_of(request);
  if (const auto running = backgrounds_->find(owner, id)) running->cancel();
  const ResponsePtr response = sessions_->find_response(owner, id);
  if (response == nullptr) fail_no_response(id, "response_id");
  if (!response->is_background)
    fail_field("response_id", "this response was not made with \"background\": true, only one that was can be cancelled");
  return {json_response(response->body)};
}

Reply Router::delete_response(const HttpRequest& request, Mailbox::Wake) const {
  const std::string id = path_values("/v1/responses/{id}", request.path).at(0);
  const std::string owner = owner_of(request);
  if (const auto running = backgrounds_->find(owner, id)) running->cancel();
  backgrounds_->forget_events(owner, id);
  if (!sessions_->remove_response(owner, id)) fail_no_response(id, "response_id");
  return {json_response(Json::object({{"id", id}, {"object", "response"}, {"deleted", true}}))};
}

}  // namespace larder
