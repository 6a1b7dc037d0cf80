#include "server/upstream/upstream_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"

namespace larder {
namespace {

using testing::HasSubstr;
using testing::Not;

template <class Function>
std::string message_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.message();
  }
  return "";
}

TEST(UpstreamUrlTest, Parts) {
  const UpstreamUrl url = parse_upstream_url("https://api.example.com/v1");
  EXPECT_TRUE(url.is_tls);
  EXPECT_EQ(url.host, "api.example.com");
  EXPECT_EQ(url.port, "443");
  EXPECT_EQ(url.authority, "api.example.com");
  EXPECT_EQ(url.path, "/v1");
}

TEST(UpstreamUrlTest, PortsAndPaths) {
  const UpstreamUrl plain = parse_upstream_url("http://127.0.0.1:8000");
  EXPECT_FALSE(plain.is_tls);
  EXPECT_EQ(plain.port, "8000");
  EXPECT_EQ(plain.authority, "127.0.0.1:8000");
  EXPECT_EQ(plain.path, "");
  EXPECT_EQ(parse_upstream_url("https://a:443/").authority, "a");
  EXPECT_EQ(parse_upstream_url("https://a:80/").authority, "a:80");
  EXPECT_EQ(parse_upstream_url("https://a/b/v1//").path, "/b/v1");
  const UpstreamUrl v6 = parse_upstream_url("http://[::1]:81/v1");
  EXPECT_EQ(v6.host, "::1");
  EXPECT_EQ(v6.authority, "[::1]:81");
  EXPECT_EQ(parse_upstream_url("http://[::1]").authority, "[::1]");
}

TEST(UpstreamUrlTest, WhatIsNone) {
  for (const char* text : {"",
                           "api.example.com/v1",
                           "ftp://a",
                           "https://",
                           "https:///v1",
                           "http://:80",
                           "http://a:",
                           "http://a:0",
                           "http://a:65536",
                           "http://a:8x",
                           "http://a b/v1",
                           "http://a/v1?x=1",
                           "http://a/v1#x",
                           "http://[::1",
                           "http://[x]/",
                           "http://[::1]x",
                           "http://a\r\nX: y/",
                           "http://a/v1/chat/completions",
                           "http://a/v1/messages/",
                           "http://a\\b/",
                           "http://\xc3\xa4/",
                           "http://::1/"}) {
    EXPECT_THAT(message_of([&] { parse_upstream_url(text); }), HasSubstr("--upstream: ")) << text;
  }
}

TEST(UpstreamUrlTest, AKeyInItIsNotShown) {
  const std::string message = message_of([] { parse_upstream_url("https://me:sk-123@example.com/v1"); });
  EXPECT_THAT(message, HasSubstr("--upstream-key-env"));
  EXPECT_THAT(message, Not(HasSubstr("sk-123")));
}

TEST(UpstreamModelsTest, NamesAndOtherNames) {
  const auto models = parse_upstream_models("a,b=org/remote:latest,c=d=e");
  ASSERT_EQ(models.size(), 3U);
  EXPECT_EQ(models[0].name, "a");
  EXPECT_EQ(models[0].remote_name, "a");
  EXPECT_EQ(models[1].name, "b");
  EXPECT_EQ(models[1].remote_name, "org/remote:latest");
  EXPECT_EQ(models[2].remote_name, "d=e");
  UpstreamConfig config;
  config.models = models;
  EXPECT_EQ(config.find_model("b")->remote_name, "org/remote:latest");
  EXPECT_EQ(config.find_model("org/remote:latest"), nullptr);
}

TEST(UpstreamModelsTest, WhatIsNone) {
  for (const std::string& text :
       {std::string(), std::string("a,"), std::string(",a"), std::string("=a"), std::string("a="), std::string("a,b,a"),
        std::string("a\xff"), std::string(5000, 'a')}) {
    EXPECT_THAT(message_of([&] { parse_upstream_models(text); }), HasSubstr("--upstream-models: ")) << text;
  }
}

TEST(UpstreamPoliciesTest, Each) {
  const UpstreamPolicies all = parse_upstream_policies("busy,named,long");
  EXPECT_TRUE(all.named && all.if_long && all.if_busy);
  const UpstreamPolicies one = parse_upstream_policies("long");
  EXPECT_TRUE(!one.named && one.if_long && !one.if_busy);
  for (const char* text : {"", "named,", "failed", "Named", "named long"}) {
    EXPECT_THAT(message_of([&] { parse_upstream_policies(text); }), HasSubstr("--upstream-when: ")) << text;
  }
}

TEST(UpstreamApisTest, Each) {
  const UpstreamApis both = parse_upstream_apis("anthropic,openai");
  EXPECT_TRUE(both.openai && both.anthropic);
  const UpstreamApis one = parse_upstream_apis("anthropic");
  EXPECT_TRUE(!one.openai && one.anthropic);
  for (const char* text : {"", "openai,", "Anthropic", "both"}) {
    EXPECT_THAT(message_of([&] { parse_upstream_apis(text); }), HasSubstr("--upstream-api: ")) << text;
  }
}

TEST(UpstreamKeyTest, FromTheEnvironment) {
  ::setenv("LARDER_TEST_KEY", "sk-123", 1);
  EXPECT_EQ(read_upstream_key("LARDER_TEST_KEY"), "sk-123");
  ::setenv("LARDER_TEST_KEY", "sk-123\n", 1);
  const std::string message = message_of([] { read_upstream_key("LARDER_TEST_KEY"); });
  EXPECT_THAT(message, HasSubstr("LARDER_TEST_KEY"));
  EXPECT_THAT(message, Not(HasSubstr("sk-123")));
  ::setenv("LARDER_TEST_KEY", "", 1);
  EXPECT_THAT(message_of([] { read_upstream_key("LARDER_TEST_KEY"); }), HasSubstr("is empty"));
  ::unsetenv("LARDER_TEST_KEY");
  EXPECT_THAT(message_of([] { read_upstream_key("LARDER_TEST_KEY"); }), HasSubstr("is not set"));
}

TEST(UpstreamConfigTest, Loopback) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "localhost", "a.localhost"})
    EXPECT_TRUE(is_loopback_host(host));
  for (const char* host : {"10.0.0.1", "::2", "example.com", "localhost.example.com"})
    EXPECT_FALSE(is_loopback_host(host));
}

}  // namespace
}  // namespace larder
