// Router's handlers of Anthropic's API.
#include <utility>

#include "server/anthropic_request.h"
#include "server/request_id.h"
#include "server/router.h"

namespace larder {

Reply Router::messages(const HttpRequest& request, Mailbox::Wake wake) const {
  ChatRequest chat = parse_messages_request(parse_body(request), rules());
  require_model(chat.options.model);
  GenerationJob job = prepare_job(request, chat);
  job.writer = make_messages_writer(model_.name);
  job.options = std::move(chat.options);
  return generate(request, std::move(job), std::move(wake));
}

Reply Router::count_tokens(const HttpRequest& request, Mailbox::Wake) const {
  ChatRequest chat = parse_count_tokens_request(parse_body(request), rules());
  require_model(chat.options.model);
  settle_chat(request, salt_of(request, chat.options), chat);
  const std::size_t num_tokens = tokens_of_any_number(std::move(chat), model_).size();
  HttpResponse response = json_response(Json::object({{"input_tokens", num_tokens}}));
  response.headers.emplace_back("request-id", "req_" + make_request_id());
  return {std::move(response), nullptr};
}

}  // namespace larder
