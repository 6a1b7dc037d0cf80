// Router's part in responses that go on without their clients.
#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <utility>

#include "base/error.h"
#include "server/api/background_response.h"
#include "server/api/response_plan.h"
#include "server/api/router.h"
#include "server/json_fields.h"
#include "server/url.h"

namespace larder {
namespace {

// The event that a reader wants first; 0 = all.
int read_place(const std::string& query) {
  const std::optional<std::string> after = query_parameter(query, "starting_after");
  if (!after) return 0;
  int number = 0;
  const auto [end, error] = std::from_chars(after->data(), after->data() + after->size(), number);
  const bool is_number = error == std::errc() && end == after->data() + after->size() && number >= 0;
  if (!is_number || number == INT32_MAX)
    fail_field("starting_after", fmt::format("must be the sequence_number of an event, it is \"{}\"", shorten(*after)));
  return number + 1;
}

}  // namespace

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

Reply Router::get_response(const HttpRequest& request, Mailbox::Wake wake) const {
  const std::string id = path_values("/v1/responses/{id}", request.path).at(0);
  if (request.method == "GET" && query_parameter(request.query, "stream") == "true")
    return stream_again(request, id, std::move(wake));
  return {find_response(request, id)};
}

Reply Router::stream_again(const HttpRequest& request, const std::string& id, Mailbox::Wake wake) const {
  const int next = read_place(request.query);
  const auto events = backgrounds_->find_events(owner_of(request), id);
  if (events == nullptr) {
    (void)find_response(request, id);
    fail_field("stream", "the events of this response are not kept; those of one that was made with \"background\" and "
                         "\"stream\" are, as long as there is room for them; leave it out");
  }
  if (next < events->first())
    fail_field("starting_after", fmt::format("of this response's events those from {} on are kept, there was no room for "
                                             "more; start after that, or retrieve it without \"stream\"",
                                             events->first()));
  Reply reply;
  reply.response.headers = {{"x-request-id", id}, {"x-larder-route", "local"}};
  reply.events = EventReader::begin(events, next, std::move(wake));
  return reply;
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
