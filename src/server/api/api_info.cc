// Router's handlers that answer at once.
#include <fmt/format.h>

#include <utility>

#include "cluster/worker_links.h"
#include "server/api/item_page.h"
#include "server/api/router.h"
#include "server/api/web_page.h"
#include "server/json_fields.h"
#include "server/request_id.h"
#include "server/unix_time.h"
#include "server/upstream/upstream.h"
#include "server/url.h"
#include "server/utf8.h"

namespace larder {

Json Router::describe_model() const {
  Json model = {{"id", model_.name},
                {"object", "model"},
                {"created", model_.created_s},
                {"owned_by", "larder"},
                {"root", model_.name},
                {"parent", nullptr},
                {"max_model_len", model_.max_model_len}};
  // And as Anthropic's API has it: one path serves the clients of both.
  model["type"] = "model";
  model["display_name"] = model_.name;
  model["created_at"] = rfc3339(model_.created_s);
  model["lifecycle"] = "active";
  model["max_input_tokens"] = model_.max_model_len - 1;
  model["max_tokens"] = model_.max_model_len - 1;
  model["permission"] = Json::array();
  model["aliases"] = model_.aliases;
  model["meta"] = model_.metadata;
  return model;
}

Reply Router::models(const HttpRequest&, Mailbox::Wake) const {
  Json list = {{"object", "list"}};
  list["data"] = Json::array({describe_model()});
  if (upstream_ != nullptr && upstream_->config().when.named) {
    for (const UpstreamModel& model : upstream_->config().models)
      list["data"].push_back(describe_upstream_model(model));
  }
  list["has_more"] = false;
  list["first_id"] = model_.name;
  list["last_id"] = list["data"].back()["id"];
  return {json_response(list), nullptr};
}

Reply Router::one_model(const HttpRequest& request, Mailbox::Wake) const {
  const std::string name =
      percent_decode(std::string_view(request.path).substr(sizeof("/v1/models/") - 1));
  if (const UpstreamModel* const remote = upstream_model(name))
    return {json_response(describe_upstream_model(*remote)), nullptr};
  require_model(name);
  return {json_response(describe_model()), nullptr};
}

Reply Router::tokenize(const HttpRequest& request, Mailbox::Wake wake) const {
  const Json body = parse_body(request);
  const Fields fields(body, "");
  require_model(fields.string("model", request.body.size()).value_or(""));
  std::vector<TokenId> tokens;
  if (fields.has("messages")) {
    ChatRequest chat = parse_chat_request(body, rules());
    SettledChat settled;
    if (auto errand = settle_chat(request, chat, settled)) return generate(request, *std::move(errand), std::move(wake));
    tokens = tokens_of_any_number(std::move(chat), model_);
  } else {
    const auto prompt = fields.string("prompt", request.body.size());
    if (!prompt) fields.fail("prompt", "is missing; send a string, or messages for a chat");
    tokens = encode_raw(*prompt, fields.boolean("add_special_tokens", true), "prompt", model_).tokens;
  }
  Json reply = {{"count", tokens.size()}, {"max_model_len", model_.max_model_len}};
  reply["tokens"] = tokens;
  reply["token_strs"] = nullptr;
  if (fields.boolean("return_token_strs", false)) {
    reply["token_strs"] = Json::array();
    for (const TokenId token : tokens) {
      reply["token_strs"].push_back(to_valid_utf8(model_.tokenizer.token_text(token)));
    }
  }
  return {json_response(reply), nullptr};
}

// As vLLM has it, for routers that look for a request's prompt among the blocks they know of.
Reply Router::render_chat_request(const HttpRequest& request, Mailbox::Wake wake) const {
  ChatRequest chat = parse_chat_request(parse_body(request), rules());
  require_model(chat.options.model);
  SettledChat settled;
  if (auto errand = settle_chat(request, chat, settled)) return generate(request, *std::move(errand), std::move(wake));
  Json reply = {{"request_id", "chatcmpl-" + make_request_id()}, {"model", model_.name}};
  reply["token_ids"] = tokens_of_any_number(std::move(chat), model_);
  return {json_response(reply), nullptr};
}

// As vLLM has it, for clients that render chats and end texts themselves.
Reply Router::tokenizer_info(const HttpRequest&, Mailbox::Wake) const {
  const Tokenizer& tokenizer = model_.tokenizer;
  const auto text_of = [&](std::optional<TokenId> token) {
    return token ? Json(to_valid_utf8(tokenizer.token_text(*token))) : Json();
  };
  Json reply = {{"tokenizer_class", "larder"}, {"model_max_length", model_.max_model_len}};
  reply["bos_token"] = text_of(tokenizer.bos());
  reply["eos_token"] = text_of(tokenizer.eos());
  reply["pad_token"] = nullptr;
  reply["chat_template"] = model_.chat_template.source();
  return {json_response(reply), nullptr};
}

Reply Router::detokenize(const HttpRequest& request, Mailbox::Wake) const {
  const Json body = parse_body(request);
  const Fields fields(body, "");
  require_model(fields.string("model", request.body.size()).value_or(""));
  const Json* tokens = fields.find("tokens");
  if (tokens == nullptr) fields.fail("tokens", "is missing; send an array of token ids");
  const auto ids = read_token_ids(*tokens, "tokens", model_.tokenizer.vocab_size());
  Json reply = Json::object();
  reply["prompt"] = model_.tokenizer.decode(ids, true);
  return {json_response(reply), nullptr};
}

Reply Router::health(const HttpRequest&, Mailbox::Wake) const {
  if (!model_.engine.alive())
    return {error_response({.status = 503,
                            .code = "engine_dead",
                            .message = "the engine has ended; restart the server"}),
            nullptr};
  if (gauges_.is_leaving)
    return {error_response({.status = 503, .code = "draining", .message = "the server is about to end; ask another one"}),
            nullptr};
  return {{.content_type = ""}, nullptr};
}

Reply Router::version(const HttpRequest&, Mailbox::Wake) const {
  return {json_response(Json::object({{"version", LARDER_VERSION}})), nullptr};
}

// What it shows it asks for as any client does, with a key if that takes one.
Reply Router::page(const HttpRequest&, Mailbox::Wake) const {
  HttpResponse response{.content_type = "text/html; charset=utf-8", .body = std::string(web_page())};
  response.headers = {{"content-security-policy",
                       "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
                       "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                      {"x-content-type-options", "nosniff"},
                      {"referrer-policy", "no-referrer"},
                      {"cache-control", "no-cache"}};
  return {std::move(response), nullptr};
}

Reply Router::metrics_page(const HttpRequest&, Mailbox::Wake) const {
  const Engine& engine = model_.engine;
  const KvEventPublisher* publisher = model_.kv_events;
  const ServerState state{.kv_events = publisher == nullptr ? std::nullopt : std::optional(publisher->stats()),
                          .upstream = upstream_ == nullptr ? std::nullopt : std::optional(upstream_->metrics().stats()),
                          .workers = model_.workers == nullptr ? std::vector<WorkerStats>() : model_.workers->stats(),
                          .engine_alive = engine.alive(),
                          .kv_types = engine.kv_types(),
                          .num_connections = gauges_.num_connections.load(),
                          .bookkeeping = {.prompt_bytes = cache_log_->size_bytes(),
                                          .answer_bytes = history_->size_bytes(),
                                          .session_bytes = sessions_->size_bytes(),
                                          .draft_bytes = drafts_->used(),
                                          .next_turn_bytes = next_turns_ == nullptr ? 0 : next_turns_->used(),
                                          .summary_bytes = summaries_->size_bytes(),
                                          .format_bytes = constraints_->size_bytes(),
                                          .background_event_bytes = backgrounds_->event_bytes()}};
  HttpResponse response{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                        .body = metrics_.serialize(engine.stats(), engine.config(), state)};
  return {std::move(response), nullptr};
}

Reply Router::load(const HttpRequest&, Mailbox::Wake) const {
  return {json_response(Json::object({{"server_load", gauges_.num_generations.load()}})), nullptr};
}

Reply Router::cache_reports(const HttpRequest& request, Mailbox::Wake) const {
  constexpr std::size_t kMost = 1000;
  Json list = {{"object", "list"}};
  list["data"] = cache_log_->list(tenant_of(request), read_limit(request.query, kMost, kMost));
  return {json_response(list), nullptr};
}

Reply Router::cache_report(const HttpRequest& request, Mailbox::Wake) const {
  const std::string_view prefix = "/v1/cache/requests/";
  const std::string id =
      percent_decode(std::string_view(request.path).substr(prefix.size()));
  const std::optional<Json> report = cache_log_->find(id, tenant_of(request));
  if (report) return {json_response(*report), nullptr};
  throw Error(ErrorKind::kNotFound,
              fmt::format("id: there is no report of \"{}\"; the last {} are kept, from when their "
                          "first token comes", shorten(id), CacheLogLimits{}.max_reports),
              "id");
}

Reply Router::reset_prefix_cache(const HttpRequest&, Mailbox::Wake) const {
  model_.engine.reset_prefix_cache();
  return {{.content_type = ""}, nullptr};
}

}  // namespace larder
