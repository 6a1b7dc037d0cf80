// Which requests go upstream, and why.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/http_message.h"
#include "server/json_reader.h"
#include "server/upstream/upstream_body.h"
#include "server/upstream/upstream_config.h"

namespace larder {

enum class UpstreamReason { kNamed, kLong, kBusy };
inline constexpr int kNumUpstreamReasons = 3;
// As metrics have it.
std::string_view name_of(UpstreamReason reason);

// A request that goes there. Its body is the client's, edited.
struct UpstreamCall {
  UpstreamReason reason = UpstreamReason::kNamed;
  ApiStyle style = ApiStyle::kOpenAi;
  std::string path = {};     // behind the upstream's own, with its query: "/chat/completions"
  std::string passed = {};   // the value of x-larder-via: "" = this server is the first
  std::string version = {};  // the values of anthropic-version and anthropic-beta, of that style alone; "" = none
  std::string beta = {};
  BodyEdit edit = {};
};

// What may become of one request; it stays where all are null.
struct UpstreamRoute {
  std::string asked_model;               // "" = none
  const UpstreamModel* named = nullptr;  // it asks for this one, and goes there
  const UpstreamModel* if_long = nullptr;
  const UpstreamModel* if_busy = nullptr;

  // Where a request goes that was refused here so. nullopt: nowhere.
  std::optional<UpstreamReason> reason_after(const Error& refusal) const;
};

// is_local: the name is one of the local model's.
UpstreamRoute find_route(const UpstreamConfig& config, std::string asked_model, bool is_local);

// Whether the request says that it is to stay: by "x_larder_local_only": true, or by the header x-larder-route: local,
// whose value is asked_route. Throws Error{kInvalidArgument} where either says something else.
bool must_stay(const Json& body, std::string_view asked_route);

// The call of a request with a path such as "/v1/chat/completions".
UpstreamCall make_call(UpstreamReason reason, const UpstreamRoute& route, const HttpRequest& request);

}  // namespace larder
