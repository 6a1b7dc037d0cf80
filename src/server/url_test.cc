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

TEST(Url, ReadsParameters) {
  EXPECT_EQ(query_parameter("limit=2&after=a%20b&order=", "after"), "a b");
  EXPECT_EQ(query_parameter("limit=2&after=a%20b&order=", "order"), "");
  EXPECT_EQ(query_parameter("limit=2", "lim"), std::nullopt);
  EXPECT_EQ(query_parameter("", "limit"), std::nullopt);
  EXPECT_EQ(query_parameter("&&limit", "limit"), "");
  EXPECT_EQ(percent_decode("a%2"), "a%2");
  EXPECT_EQ(percent_decode("%zz%41%ff"), "%zzA\uFFFD");
}

}  // namespace
}  // namespace larder
