// Router's part in what goes upstream.
#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "server/api/router.h"
#include "server/json_fields.h"
#include "server/unix_time.h"
#include "server/upstream/upstream.h"

namespace larder {

const UpstreamModel* Router::upstream_model(const std::string& name) const {
  if (upstream_ == nullptr || !upstream_->config().when.named) return nullptr;
  return upstream_->config().find_model(name);
}

Json Router::describe_upstream_model(const UpstreamModel& model) {
  return {{"id", model.name},          {"object", "model"}, {"created", 0},    {"owned_by", "upstream"},
          {"root", model.remote_name}, {"parent", nullptr}, {"type", "model"}, {"display_name", model.name},
          // Nobody has said when: Anthropic's clients expect a time.
          {"created_at", rfc3339(0)},  {"lifecycle", "active"}};
}

std::optional<HttpResponse> Router::refuse_loop(const HttpRequest& head) const {
  constexpr std::size_t kMostBytes = 7 * 18;  // of as many names, with what is between them
  if (upstream_ == nullptr || head.passed.empty()) return std::nullopt;
  const bool is_own = head.passed.find(upstream_->id()) != head.passed.npos;
  if (!is_own && head.passed.size() <= kMostBytes) return std::nullopt;
  return error_response(
      {.status = 508,
       .code = "upstream_loop",
       .message = is_own ? "--upstream leads back to this server, which has passed the request on already; give it "
                           "the address of another"
                         : "too many servers have passed the request on; see where each --upstream leads"},
      head);
}

UpstreamRoute Router::find_upstream(const HttpRequest& request, const Json& body) const {
  if (upstream_ == nullptr) return {};
  const UpstreamApis& apis = upstream_->config().apis;
  if (!(style_of(request.path) == ApiStyle::kAnthropic ? apis.anthropic : apis.openai)) return {};
  const Fields fields(body, "");
  std::string model = fields.string("model", kMaxNameBytes).value_or("");
  if (must_stay(body, request.asked_route)) return {};
  const bool is_local = model.empty() || model_.answers_to(model);
  // What one server of a cluster has prepared is for another one of it.
  if (is_local && fields.has("kv_transfer_params")) return {};
  return find_route(upstream_->config(), std::move(model), is_local);
}

Reply Router::go_upstream(const HttpRequest& request, const UpstreamRoute& route, UpstreamReason reason) const {
  Reply reply;
  reply.upstream = make_call(reason, route, request);
  return reply;
}

Reply Router::here_or_upstream(const HttpRequest& request, LocalHandler here, Mailbox::Wake wake) const {
  Json body = parse_body(request);
  const UpstreamRoute route = find_upstream(request, body);
  if (route.named != nullptr) return go_upstream(request, route, UpstreamReason::kNamed);
  try {
    return (this->*here)(request, std::move(body), route, std::move(wake));
  } catch (const Error& refusal) {
    const std::optional<UpstreamReason> reason = route.reason_after(refusal);
    if (!reason) throw;
    return go_upstream(request, route, *reason);
  }
}

void Router::require_short_wait(const UpstreamRoute& route) const {
  if (route.if_busy == nullptr) return;
  const std::chrono::duration<double> most = upstream_->config().max_wait;
  const double wait_s = upstream_->waits().predict_s(steady_now_ns());
  if (wait_s <= most.count()) return;
  throw Error(ErrorKind::kUnavailable, fmt::format("the wait is {:.1f} s", wait_s));
}

void Router::require_room_for_answers(const UpstreamRoute& route, const GenerationOptions& options,
                                      const std::vector<PreparedPrompt>& prompts) const {
  if (route.if_long == nullptr || !options.has_max_tokens || options.attention.window > 0) return;
  for (const PreparedPrompt& prompt : prompts) {
    const auto num_tokens = static_cast<std::int64_t>(prompt.tokens.size()) + options.sampling.max_tokens;
    if (num_tokens > model_.max_model_len)
      throw Error(ErrorKind::kPromptTooLong, fmt::format("prompt and answer have {} tokens", num_tokens));
  }
}

Reply Router::chat(const HttpRequest& request, Mailbox::Wake wake) const {
  return here_or_upstream(request, &Router::chat_here, std::move(wake));
}

Reply Router::completions(const HttpRequest& request, Mailbox::Wake wake) const {
  return here_or_upstream(request, &Router::complete_here, std::move(wake));
}

}  // namespace larder
