#include "server/api/router.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <exception>
#include <utility>

#include "server/json_fields.h"
#include "server/upstream/upstream.h"
#include "server/url.h"

namespace larder {

using Handler = Reply (Router::*)(const HttpRequest&, Mailbox::Wake) const;

struct Router::Route {
  std::string_view method;
  std::string_view path;  // a pattern, see url.h
  bool is_public;         // needs no API key
  bool takes_json;
  bool is_quick;    // takes microseconds, whatever is stored
  bool only_reads;  // so that it may be asked again
  Handler handler;
};

const Router::Route Router::kRoutes[] = {
    {"POST", "/v1/chat/completions", false, true, false, false, &Router::chat},
    {"POST", "/v1/completions", false, true, false, false, &Router::completions},
    {"POST", "/v1/responses", false, true, false, false, &Router::create_response},
    {"POST", "/v1/responses/input_tokens", false, true, false, true, &Router::count_input_tokens},
    {"POST", "/v1/responses/compact", false, true, false, true, &Router::compact_response},
    {"GET", "/v1/responses/{id}", false, false, false, true, &Router::get_response},
    {"DELETE", "/v1/responses/{id}", false, false, false, false, &Router::delete_response},
    {"POST", "/v1/responses/{id}/cancel", false, false, false, false, &Router::cancel_response},
    {"GET", "/v1/responses/{id}/input_items", false, false, false, true, &Router::list_input_items},
    {"POST", "/v1/conversations", false, true, false, false, &Router::create_conversation},
    {"GET", "/v1/conversations/{id}", false, false, false, true, &Router::get_conversation},
    {"POST", "/v1/conversations/{id}", false, true, false, false, &Router::update_conversation},
    {"DELETE", "/v1/conversations/{id}", false, false, false, false, &Router::delete_conversation},
    {"GET", "/v1/conversations/{id}/items", false, false, false, true, &Router::list_items},
    {"POST", "/v1/conversations/{id}/items", false, true, false, false, &Router::create_items},
    {"GET", "/v1/conversations/{id}/items/{item}", false, false, false, true, &Router::get_item},
    {"DELETE", "/v1/conversations/{id}/items/{item}", false, false, false, false, &Router::delete_item},
    {"POST", "/v1/messages", false, true, false, false, &Router::messages},
    {"POST", "/v1/messages/count_tokens", false, true, false, true, &Router::count_tokens},
    {"GET", "/v1/models", false, false, true, true, &Router::models},
    {"GET", "/v1/models/", false, false, true, true, &Router::one_model},
    {"POST", "/v1/chat/completions/render", false, true, false, true, &Router::render_chat_request},
    {"POST", "/tokenize", false, true, false, true, &Router::tokenize},
    {"POST", "/detokenize", false, true, false, true, &Router::detokenize},
    {"GET", "/tokenizer_info", false, false, true, true, &Router::tokenizer_info},
    {"GET", "/", true, false, true, true, &Router::page},
    {"GET", "/health", true, false, true, true, &Router::health},
    {"GET", "/version", true, false, true, true, &Router::version},
    {"GET", "/metrics", false, false, true, true, &Router::metrics_page},
    {"GET", "/load", false, false, true, true, &Router::load},
    {"GET", "/v1/cache/requests", false, false, false, true, &Router::cache_reports},
    {"GET", "/v1/cache/requests/", false, false, false, true, &Router::cache_report},
    {"POST", "/reset_prefix_cache", false, false, false, false, &Router::reset_prefix_cache},
};

namespace {

std::vector<std::string> tier_names(const Engine& engine) {
  const EngineStats stats = engine.stats();
  return {stats.tier_names.begin(), stats.tier_names.end()};
}

}  // namespace

Router::Router(const ServerConfig& config, const ServedModel& model, ServerMetrics& metrics, const ServerGauges& gauges)
    : config_(config),
      model_(model),
      metrics_(metrics),
      gauges_(gauges),
      keys_(config.api_keys, config.api_key_groups),
      history_(std::make_unique<HistoryTokens>(config.limits.max_history_bytes)),
      sessions_(std::make_unique<SessionStore>(
          SessionStore::Limits{.max_bytes = config.limits.max_session_bytes, .max_count = config.limits.max_sessions})),
      drafts_(std::make_unique<MemoryBudget>(config.limits.max_total_draft_bytes)),
      next_turns_(config.anticipates && may_reprint_answers(model.abilities, model.tokenizer)
                      ? std::make_unique<MemoryBudget>(config.limits.max_next_turn_bytes)
                      : nullptr),
      cache_log_(std::make_unique<CacheLog>(model.tokenizer, metrics, tier_names(model.engine),
                                            CacheLogLimits{.max_ledger_bytes = config.limits.max_ledger_bytes})),
      summaries_(std::make_unique<Summarizer::Table>(config.limits.max_summary_bytes)),
      constraints_(std::make_unique<ConstraintTable>(model.tokenizer, config.limits.max_constraint_bytes)),
      upstream_(config.upstream ? std::make_unique<Upstream>(*config.upstream) : nullptr),
      backgrounds_(std::make_unique<BackgroundResponses>(config.limits)) {}

Router::~Router() = default;

namespace {

// HEAD is a GET whose body is not sent.
std::string_view method_of(const HttpRequest& request) {
  return request.method == "HEAD" ? std::string_view("GET") : std::string_view(request.method);
}

// Its reason, where it is for load that a request is refused; else null. The line is no field of the request; of its
// fields, the input has to wait for room itself, the others say what the answer is to be.
const char* rejection_of(const Error& error) {
  if (error.kind() == ErrorKind::kStopped) return "engine_stopped";
  if (error.kind() != ErrorKind::kUnavailable) return nullptr;
  if (error.param().empty()) return "queue_full";
  if (error.param() == "background") return "background_full";
  return error.param() == "input" ? "body_memory" : "format_memory";
}

// "application/json", whatever its parameters. Browsers send no such body to other sites unasked,
// so that no web page can make its visitor's server work.
bool is_json_type(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.remove_suffix(1);
  return boost::beast::iequals({type.data(), type.size()}, "application/json");
}

}  // namespace

const Router::Route* Router::find(const HttpRequest& request) {
  for (const Route& route : kRoutes) {
    if (route.method == method_of(request) && path_matches(route.path, request.path)) return &route;
  }
  return nullptr;
}

HttpResponse Router::refuse_path(const HttpRequest& request) {
  std::string allowed;
  std::string_view pattern;
  for (const Route& route : kRoutes) {
    if (!path_matches(route.path, request.path)) continue;
    if (pattern.empty()) pattern = route.path;
    if (!allowed.empty()) allowed += ", ";
    allowed += route.method == "GET" ? "GET, HEAD" : route.method;
  }
  const std::string path = shorten(request.path);
  if (allowed.empty()) {
    return error_response(
        {.status = 404,
         .code = "unknown_path",
         .message = fmt::format("there is no {}; see /v1/chat/completions, /v1/completions, "
                                "/v1/responses, /v1/messages, /v1/models",
                                path)},
        request);
  }
  // What is no path of its own may have been taken for an id.
  HttpResponse response = error_response(
      {.status = 405,
       .code = "method_not_allowed",
       .message = fmt::format("there is no {} {}; {} takes {}", shorten(request.method), path,
                              pattern == request.path ? "it" : pattern, allowed)},
      request);
  response.headers.emplace_back("Allow", allowed);
  return response;
}

bool Router::allows_origin(const std::string& origin) const {
  return !origin.empty() &&
         std::ranges::any_of(config_.cors_origins, [&](const std::string& allowed) {
           return allowed == "*" || allowed == origin;
         });
}

void Router::add_cors(const HttpRequest& request, HttpResponse& response) const {
  if (!allows_origin(request.origin)) return;
  response.headers.emplace_back("Access-Control-Allow-Origin", request.origin);
  // Pages see few headers of a reply beside those that are named here.
  response.headers.emplace_back("Access-Control-Expose-Headers",
                                "Request-Id, X-Request-Id, X-Should-Retry, Retry-After, Retry-After-Ms, X-Larder-Route");
  response.headers.emplace_back("Vary", "Origin");
}

std::optional<Digest> Router::key_of(const HttpRequest& request) const {
  const auto bearer = keys_.match(request.authorization);
  return bearer ? bearer : keys_.match_key(request.api_key);
}

std::optional<HttpResponse> Router::refuse_host(const HttpRequest& head) const {
  if (!keys_.empty() || config_.allow_open_network || head.host.empty()) return std::nullopt;
  if (head.path == "/health") return std::nullopt;  // proxies check it by names of their own, and it tells nothing
  const std::string host = host_of(head.host);
  const bool is_allowed =
      is_fixed_host(host) ||  // as what the server listens on is
      std::ranges::any_of(config_.cors_origins, [&](const std::string& origin) {
        return origin == "*" || host_of(origin) == host;
      });
  if (is_allowed) return std::nullopt;
  return error_response(
      {.status = 403,
       .code = "host_not_allowed",
       .message = fmt::format("Host: \"{}\" is no name of this server; call it by its address, such "
                              "as 127.0.0.1, let that name in with --cors http://{}, or give --api-key",
                              shorten(host), shorten(host))},
      head);
}

std::optional<HttpResponse> Router::refuse_web_page(const HttpRequest& head,
                                                    const Route& route) const {
  if (route.takes_json) {
    if (is_json_type(head.content_type)) return std::nullopt;
    return error_response(
        {.status = 415,
         .code = "unsupported_media_type",
         .message = "the body must be JSON; send \"Content-Type: application/json\""},
        head);
  }
  // Browsers do send these unasked, and keep but the reply from the page.
  const bool is_foreign = !head.origin.empty() && !allows_origin(head.origin);
  if (route.method != "POST" || !is_foreign) return std::nullopt;
  const std::string origin = shorten(head.origin);
  return error_response(
      {.status = 403,
       .code = "origin_not_allowed",
       .message = fmt::format("Origin: web pages of {} may not call; let them with --cors {}",
                              origin, origin)},
      head);
}

std::optional<HttpResponse> Router::check_head(const HttpRequest& head) const {
  if (auto refusal = refuse_host(head)) return refusal;
  if (head.method == "OPTIONS" && allows_origin(head.origin)) {
    // Clients add headers of their own (x-stainless-*); whoever may call may send them all.
    const std::string allowed_headers =
        head.asked_headers.empty()
            ? "Authorization, Content-Type, X-Api-Key, Anthropic-Version, Anthropic-Beta, "
              "Anthropic-Dangerous-Direct-Browser-Access"
            : head.asked_headers;
    return HttpResponse{.status = 204,
                        .content_type = "",
                        .headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                                    {"Access-Control-Allow-Headers", allowed_headers},
                                    {"Access-Control-Max-Age", "86400"}}};
  }
  const Route* route = find(head);
  if (route == nullptr) return refuse_path(head);
  if (!route->is_public && !keys_.empty() && !key_of(head)) {
    const bool is_openai = error_style_of(head) == ApiStyle::kOpenAi;
    HttpResponse refusal = error_response(
        {.status = 401,
         .code = "invalid_api_key",
         .message = fmt::format("the API key is missing or wrong; send \"{}\"",
                                is_openai ? "Authorization: Bearer KEY" : "x-api-key: KEY")},
        head);
    // Claude Code would try ten times, for some minutes, before it tells.
    refusal.headers.emplace_back("x-should-retry", "false");
    return refusal;
  }
  if (!head.content_encoding.empty() && !boost::beast::iequals(head.content_encoding, "identity")) {
    return error_response(
        {.status = 415,
         .code = "unsupported_encoding",
         .message = "compressed bodies are not taken; send it without Content-Encoding"},
        head);
  }
  if (auto refusal = refuse_loop(head)) return refusal;
  return refuse_web_page(head, *route);
}

bool Router::is_quick(const HttpRequest& request) const {
  const Route* route = find(request);
  return route == nullptr || route->is_quick;
}

bool Router::only_reads(const HttpRequest& request) const {
  const Route* route = find(request);
  return route == nullptr || route->only_reads;
}

Reply Router::route(const HttpRequest& request, Mailbox::Wake wake) const {
  try {
    const Route* found = find(request);
    if (found == nullptr) return {refuse_path(request), nullptr};
    return (this->*found->handler)(request, std::move(wake));
  } catch (const Error& error) {
    if (const char* reason = rejection_of(error)) metrics_.count_rejection(reason);
    return {error_response(to_api_error(error), request), nullptr};
  } catch (const std::exception& error) {
    spdlog::error("{} {}: {}", request.method, shorten(request.path), error.what());
    return {error_response({.status = 500,
                            .code = "internal_error",
                            .message = "the server failed on this request; its log has the reason"},
                           request),
            nullptr};
  }
}

Json Router::parse_body(const HttpRequest& request) const {
  const ServerLimits& limits = config_.limits;
  return parse_json(request.body,
                    {.max_depth = limits.max_json_depth, .max_values = limits.max_json_values});
}

RequestRules Router::rules() const {
  return {.limits = config_.limits,
          .vocab_size = model_.tokenizer.vocab_size(),
          .max_model_len = model_.max_model_len,
          .attention = model_.attention,
          .normalisation = config_.normalisation,
          .history = config_.history,
          .may_share = model_.engine.has_shared_tier()};
}

void Router::require_model(const std::string& name) const {
  if (name.empty() || model_.answers_to(name)) return;
  if (upstream_model(name) != nullptr) {
    throw Error(ErrorKind::kNotFound,
                fmt::format("model: \"{}\" is the upstream's, where only {} go, and none that is to stay local; this "
                            "server itself has \"{}\"",
                            shorten(name), describe_requests(upstream_->config().apis), model_.name),
                "model");
  }
  throw Error(
      ErrorKind::kNotFound,
      fmt::format("model: there is no \"{}\"; this server has \"{}\"", shorten(name), model_.name),
      "model");
}

}  // namespace larder
