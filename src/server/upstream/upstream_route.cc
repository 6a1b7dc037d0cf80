#include "server/upstream/upstream_route.h"

#include <boost/beast/core/string.hpp>
#include <utility>

#include "base/check.h"
#include "server/json_fields.h"

namespace larder {

std::string_view name_of(UpstreamReason reason) {
  switch (reason) {
    case UpstreamReason::kNamed:
      return "named";
    case UpstreamReason::kLong:
      return "long";
    case UpstreamReason::kBusy:
      return "busy";
  }
  return "";
}

std::optional<UpstreamReason> UpstreamRoute::reason_after(const Error& refusal) const {
  // A text that is too long for the tokenizer is for the model, too.
  const bool is_long = refusal.kind() == ErrorKind::kPromptTooLong || refusal.kind() == ErrorKind::kTooLarge;
  if (is_long && if_long != nullptr) return UpstreamReason::kLong;
  // The waiting line is no field of the request.
  const bool is_busy = refusal.kind() == ErrorKind::kUnavailable && refusal.param().empty();
  if (is_busy && if_busy != nullptr) return UpstreamReason::kBusy;
  return std::nullopt;
}

UpstreamRoute find_route(const UpstreamConfig& config, std::string asked_model, bool is_local) {
  UpstreamRoute route;
  route.asked_model = std::move(asked_model);
  if (is_local) {
    if (config.when.if_long) route.if_long = &config.models.front();
    if (config.when.if_busy) route.if_busy = &config.models.front();
  } else if (config.when.named) {
    route.named = config.find_model(route.asked_model);
  }
  return route;
}

bool must_stay(const Json& body, std::string_view asked_route) {
  const bool says_local = boost::beast::iequals({asked_route.data(), asked_route.size()}, "local");
  // A slip of the pen is not to send anything away.
  if (!asked_route.empty() && !says_local)
    fail_field("x-larder-route", "the header may say \"local\" alone; leave it out");
  const Fields fields(body, "");
  return fields.boolean("x_larder_local_only", false) || says_local;
}

UpstreamCall make_call(UpstreamReason reason, const UpstreamRoute& route, const HttpRequest& request) {
  const UpstreamModel* const model = reason == UpstreamReason::kNamed  ? route.named
                                     : reason == UpstreamReason::kLong ? route.if_long
                                                                       : route.if_busy;
  CHECK(model != nullptr, static_cast<int>(reason));
  constexpr std::string_view kVersion = "/v1";
  CHECK(request.path.starts_with(kVersion));
  UpstreamCall call{.reason = reason, .style = style_of(request.path), .path = request.path.substr(kVersion.size())};
  call.passed = request.passed;
  if (call.style == ApiStyle::kAnthropic) {
    // Clients of its betas say so in both.
    if (!request.query.empty()) call.path += "?" + request.query;
    call.version = request.anthropic_version;
    call.beta = request.anthropic_beta;
  }
  if (route.asked_model != model->remote_name) call.edit = edit_model(request.body, model->remote_name);
  return call;
}

}  // namespace larder
