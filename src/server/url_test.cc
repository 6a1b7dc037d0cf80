#include "server/url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder {
namespace {

TEST(Url, PatternsStandForPaths) {
  EXPECT_TRUE(path_matches("/v1/models", "/v1/models"));
  EXPECT_FALSE(path_matches("/v1/models", "/v1/models/"));
  EXPECT_FALSE(path_matches("/v1/models", "/v1/modelsx"));
  EXPECT_FALSE(path_matches("/v1/models", "/v1"));
  EXPECT_TRUE(path_matches("/v1/models/", "/v1/models/a/b"));
  EXPECT_FALSE(path_matches("/v1/models/", "/v1/models/"));
  EXPECT_FALSE(path_matches("/v1/models/", "/v1/models"));
  EXPECT_TRUE(path_matches("/v1/c/{id}", "/v1/c/x"));
  EXPECT_FALSE(path_matches("/v1/c/{id}", "/v1/c/"));
  EXPECT_FALSE(path_matches("/v1/c/{id}", "/v1/c/x/items"));
  EXPECT_TRUE(path_matches("/v1/c/{id}/items/{item}", "/v1/c/x/items/y"));
  EXPECT_FALSE(path_matches("/v1/c/{id}/items/{item}", "/v1/c/x/items/"));
  EXPECT_FALSE(path_matches("/v1/c/{id}", "v1/c/x"));
  EXPECT_FALSE(path_matches("/v1/c/{id}", ""));
  EXPECT_THAT(path_values("/v1/c/{id}/items/{item}", "/v1/c/x%2F1/items/y"),
              ::testing::ElementsAre("x/1", "y"));
}

TEST(Url, TargetsMayBeAbsolute) {
  const auto parts = [](std::string_view target) {
    const RequestTarget split = split_target(target);
    return std::string(split.authority) + " " + std::string(split.path) + " " + std::string(split.query);
  };
  EXPECT_EQ(parts("/v1/models?a=http://b/c"), " /v1/models a=http://b/c");
  EXPECT_EQ(parts("/v1/http://b"), " /v1/http://b ");
  EXPECT_EQ(parts("/?"), " / ");
  EXPECT_EQ(parts("http://h:8080/v1/models?a=1?b"), "h:8080 /v1/models a=1?b");
  EXPECT_EQ(parts("HTTPS://[::1]:80"), "[::1]:80 / ");
  EXPECT_EQ(parts("http://h?a"), "h / a");
  EXPECT_EQ(parts("*"), " * ");
}

TEST(Url, ReadsParameters) {
  EXPECT_EQ(query_parameter("limit=2&after=a%20b&order=", "after"), "a b");
  EXPECT_EQ(query_parameter("after=a+b%2Bc", "after"), "a b+c");
  EXPECT_EQ(query_parameter("limit=2&after=a%20b&order=", "order"), "");
  EXPECT_EQ(query_parameter("limit=2", "lim"), std::nullopt);
  EXPECT_EQ(query_parameter("", "limit"), std::nullopt);
  EXPECT_EQ(query_parameter("&&limit", "limit"), "");
  EXPECT_EQ(percent_decode("a%2"), "a%2");
  EXPECT_EQ(percent_decode("%zz%41%ff"), "%zzA\uFFFD");
}

TEST(Url, TellsHostsThatCannotPointElsewhere) {
  EXPECT_EQ(host_of("127.0.0.1:8080"), "127.0.0.1");
  EXPECT_EQ(host_of("[::1]:8080"), "::1");
  EXPECT_EQ(host_of("[::1]"), "::1");
  EXPECT_EQ(host_of("LocalHost"), "localhost");
  EXPECT_EQ(host_of("http://App.example:3000"), "app.example");
  EXPECT_EQ(host_of("http://[::1]:3000"), "::1");
  EXPECT_EQ(host_of(""), "");
  for (const char* host : {"127.0.0.1", "192.168.0.7", "::1", "localhost", "a.localhost"}) {
    EXPECT_TRUE(is_fixed_host(host)) << host;
  }
  for (const char* host : {"x", "localhost.example", "notlocalhost", "127.0.0.1.example", "1.2.3"}) {
    EXPECT_FALSE(is_fixed_host(host)) << host;
  }
}

}  // namespace
}  // namespace larder
