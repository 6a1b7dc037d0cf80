#include "server/upstream/upstream_route.h"

#include <gtest/gtest.h>

#include "server/upstream/upstream_exchange.h"

namespace larder {
namespace {

UpstreamConfig config_with(const char* policies) {
  UpstreamConfig config;
  config.models = parse_upstream_models("big=remote-big,other");
  config.when = parse_upstream_policies(policies);
  return config;
}

Error error_of(ErrorKind kind, const std::string& param = "") { return {kind, "why", param}; }

TEST(UpstreamRouteTest, Named) {
  const UpstreamConfig config = config_with("named");
  EXPECT_EQ(find_route(config, "big", false).named, &config.models[0]);
  EXPECT_EQ(find_route(config, "other", false).named, &config.models[1]);
  EXPECT_EQ(find_route(config, "remote-big", false).named, nullptr);
  const UpstreamRoute local = find_route(config, "tiny", true);
  EXPECT_TRUE(local.named == nullptr && local.if_long == nullptr && local.if_busy == nullptr);
}

TEST(UpstreamRouteTest, LongAndBusyMoveRequestsForTheLocalModelAlone) {
  const UpstreamConfig config = config_with("long,busy");
  EXPECT_EQ(find_route(config, "big", false).named, nullptr);
  const UpstreamRoute unknown = find_route(config, "unknown", false);
  EXPECT_TRUE(unknown.if_long == nullptr && unknown.if_busy == nullptr);
  const UpstreamRoute local = find_route(config, "", true);
  EXPECT_EQ(local.if_long, &config.models[0]);
  EXPECT_EQ(local.if_busy, &config.models[0]);
}

TEST(UpstreamRouteTest, AfterWhichRefusals) {
  const UpstreamConfig all = config_with("named,long,busy");
  const UpstreamRoute route = find_route(all, "tiny", true);
  EXPECT_EQ(route.reason_after(error_of(ErrorKind::kPromptTooLong, "messages")), UpstreamReason::kLong);
  EXPECT_EQ(route.reason_after(error_of(ErrorKind::kTooLarge, "prompt")), UpstreamReason::kLong);
  EXPECT_EQ(route.reason_after(error_of(ErrorKind::kUnavailable)), UpstreamReason::kBusy);
  // A field's own want of room, an error of the request, the engine's end.
  EXPECT_EQ(route.reason_after(error_of(ErrorKind::kUnavailable, "input")), std::nullopt);
  EXPECT_EQ(route.reason_after(error_of(ErrorKind::kInvalidArgument, "n")), std::nullopt);
  EXPECT_EQ(route.reason_after(error_of(ErrorKind::kStopped)), std::nullopt);
  const UpstreamConfig named = config_with("named");
  EXPECT_EQ(find_route(named, "tiny", true).reason_after(error_of(ErrorKind::kPromptTooLong)), std::nullopt);
  EXPECT_EQ(find_route(named, "tiny", true).reason_after(error_of(ErrorKind::kUnavailable)), std::nullopt);
}

TEST(UpstreamRouteTest, WhatMustStay) {
  const auto stays = [](const char* body, const char* header) { return must_stay(parse_json(body, {}), header); };
  EXPECT_FALSE(stays("{}", ""));
  EXPECT_FALSE(stays(R"({"x_larder_local_only": false})", ""));
  EXPECT_FALSE(stays(R"({"x_larder_local_only": null})", ""));
  EXPECT_TRUE(stays(R"({"x_larder_local_only": true})", ""));
  EXPECT_TRUE(stays("{}", "local"));
  EXPECT_TRUE(stays("{}", "Local"));
  EXPECT_THROW(stays("{}", "upstream"), Error);
  EXPECT_THROW(stays(R"({"x_larder_local_only": "true"})", ""), Error);
  EXPECT_THROW(stays(R"({"x_larder_local_only": 1})", "local"), Error);
}

TEST(UpstreamRouteTest, Calls) {
  const UpstreamConfig config = config_with("named,long");
  HttpRequest request;
  request.path = "/v1/chat/completions";
  request.query = "beta=true";
  request.anthropic_version = "2023-06-01";
  request.body = R"({"model":"big"})";
  const UpstreamCall call = make_call(UpstreamReason::kNamed, find_route(config, "big", false), request);
  EXPECT_EQ(call.path, "/chat/completions");
  EXPECT_EQ(call.version, "");
  EXPECT_EQ(apply_edit(request.body, call.edit), R"({"model":"remote-big"})");
  // Under the same name nothing is changed, also not how it is written.
  request.path = "/v1/completions";
  request.body = R"({"model":"oth\u0065r"})";
  const auto edited = [&](UpstreamReason reason, const UpstreamRoute& route) {
    return apply_edit(request.body, make_call(reason, route, request).edit);
  };
  EXPECT_EQ(edited(UpstreamReason::kNamed, find_route(config, "other", false)), request.body);
  request.body = "{}";
  EXPECT_EQ(edited(UpstreamReason::kLong, find_route(config, "", true)), R"({"model":"remote-big"})");
}

TEST(UpstreamRouteTest, CallsOfAnthropicsApi) {
  const UpstreamConfig config = config_with("named");
  HttpRequest request;
  request.path = "/v1/messages/count_tokens";
  request.query = "beta=true";
  request.anthropic_version = "2023-06-01";
  request.anthropic_beta = "a,b";
  request.passed = "someone";
  request.body = R"({"model":"big"})";
  const UpstreamCall call = make_call(UpstreamReason::kNamed, find_route(config, "big", false), request);
  EXPECT_EQ(call.style, ApiStyle::kAnthropic);
  EXPECT_EQ(call.path, "/messages/count_tokens?beta=true");
  EXPECT_EQ(call.version, "2023-06-01");
  EXPECT_EQ(call.beta, "a,b");
  EXPECT_EQ(call.passed, "someone");
  EXPECT_EQ(apply_edit(request.body, call.edit), R"({"model":"remote-big"})");
}

TEST(UpstreamHeadersTest, WhichArePassedOn) {
  for (const char* name : {"Retry-After", "x-request-id", "OpenAI-Processing-Ms", "openai-version", "X-Larder-Other",
                           "Request-Id", "anthropic-ratelimit-requests-remaining"})
    EXPECT_TRUE(passes_upstream_header(name)) << name;
  for (const char* name : {"", "Connection", "Keep-Alive", "Proxy-Authenticate", "TE", "Trailer", "Transfer-Encoding",
                           "Upgrade", "Content-Length", "Set-Cookie", "Server", "Date", "Location", "WWW-Authenticate",
                           "Access-Control-Allow-Origin", "openai-", "xopenai-a", "anthropic-", "X-Larder-Route", "Content-Type",
                           "OpenAI-Organization", "openai-project", "anthropic-organization-id"})
    EXPECT_FALSE(passes_upstream_header(name)) << name;
}

}  // namespace
}  // namespace larder
