// Who may ask the server what: keys, web pages, names.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/http/http_server.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

TEST(HttpAccess, ApiKeys) {
  ServerConfig config;
  config.api_keys = {"secret", "other"};
  TestServer server(config);
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(server.get("/version").status, 200);
  EXPECT_EQ(server.get("/v1/models").status, 401);
  EXPECT_EQ(server.get("/metrics").status, 401);
  EXPECT_EQ(server.get("/v1/models", "Authorization: Bearer wrong\r\n").status, 401);
  EXPECT_EQ(server.get("/v1/models", "Authorization: secret\r\n").status, 401);
  EXPECT_EQ(server.get("/v1/models", "Authorization: Bearer other\r\n").status, 200);
  // Agents tell their user at once, rather than try again for minutes.
  const auto refused = server.post("/v1/messages", R"({"max_tokens":1})", "Authorization: Bearer wrong\r\n");
  EXPECT_EQ(refused.status, 401);
  EXPECT_NE(refused.head.find("x-should-retry: false"), std::string::npos) << refused.head;
  // Refused before the body is even there.
  EXPECT_EQ(
      server.exchange("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n").status,
      401);
  // Two keys do not share, though the salt is the same.
  const auto cached = [&](const std::string& key) {
    return server
        .post("/v1/completions",
              R"({"prompt":"the quick brown fox jumps","max_tokens":1,"cache_salt":"s"})",
              "Authorization: Bearer " + key + "\r\n")
        .json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        .get<int>();
  };
  EXPECT_EQ(cached("secret"), 0);
  EXPECT_EQ(cached("other"), 0);
  EXPECT_GT(cached("secret"), 0);
}

TEST(HttpAccess, OpenNetworkNeedsAKey) {
  ServerConfig config;
  config.host = "0.0.0.0";
  EXPECT_THROW(TestServer{config}, Error);
  config.host = "example.org";
  EXPECT_THROW(TestServer{config}, Error);
  config.host = "0.0.0.0";
  // --api-key "$KEY" where KEY is not set.
  config.api_keys = {""};
  EXPECT_THROW(TestServer{config}, Error);
  config.api_keys = {"k", ""};
  EXPECT_THROW(TestServer{config}, Error);
  config.api_keys = {"k"};
  EXPECT_EQ(TestServer(config).get("/health").status, 200);
}

TEST(HttpAccess, WebPagesAreLetInOnlyWhenNamed) {
  const std::string preflight =
      "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a\r\nAccess-Control-Request-Method: GET\r\n"
      "Connection: close\r\n\r\n";
  TestServer closed;
  EXPECT_EQ(closed.exchange(preflight).status, 405);
  EXPECT_EQ(closed.get("/v1/models", "Origin: http://a\r\n").head.find("Access-Control"),
            std::string::npos);
  EXPECT_EQ(
      closed
          .exchange(
              "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n"
              "Connection: close\r\n\r\n{}")
          .status,
      415);
  ServerConfig config;
  config.cors_origins = {"http://a"};
  TestServer open(config);
  EXPECT_EQ(open.exchange(preflight).status, 204);
  EXPECT_EQ(open.exchange(preflight).head.find("Content-Length"), std::string::npos);
  // The vendors' clients send headers of their own.
  const auto allowed = [&](const std::string& origin, const std::string& asked) {
    return open
        .exchange(fmt::format("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: {}\r\n{}"
                              "Connection: close\r\n\r\n",
                              origin, asked))
        .head;
  };
  const std::string asked = "authorization,content-type,x-stainless-os,x-stainless-retry-count";
  const std::string asking = "Access-Control-Request-Headers: " + asked + "\r\n";
  EXPECT_NE(allowed("http://a", asking).find("Access-Control-Allow-Headers: " + asked + "\r\n"),
            std::string::npos);
  EXPECT_NE(allowed("http://a", "").find("Access-Control-Allow-Headers: Authorization, "),
            std::string::npos);
  EXPECT_EQ(allowed("http://b", asking).find("Access-Control"), std::string::npos);
  EXPECT_NE(open.get("/v1/models", "Origin: http://a\r\n").head.find("Allow-Origin: http://a"),
            std::string::npos);
  EXPECT_EQ(open.get("/v1/models", "Origin: http://b\r\n").head.find("Allow-Origin"),
            std::string::npos);
}

// A page that is not told the origin hears of no error, only that something failed.
TEST(HttpAccess, WebPagesMayReadRefusalsAndTheirHeaders) {
  ServerConfig config;
  config.cors_origins = {"http://a"};
  config.limits.max_body_bytes = 100;
  config.limits.body_timeout = std::chrono::milliseconds(100);
  const TestServer server(config);
  const auto head = [&](const std::string& more) {
    return server
        .exchange("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a\r\nContent-Type: application/json\r\n" +
                  more)
        .head;
  };
  for (const std::string& more :
       {std::string("Content-Length: 1000\r\n\r\n"), std::string("Content-Length: 10\r\n\r\n{"),
        std::string("Transfer-Encoding: gzip\r\n\r\n")}) {
    const std::string refusal = head(more);
    EXPECT_EQ(refusal.find("HTTP/1.1 4"), 0u) << refusal;
    EXPECT_NE(refusal.find("Access-Control-Allow-Origin: http://a\r\n"), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("Access-Control-Expose-Headers: Request-Id, X-Request-Id, X-Should-Retry, Retry-After, Retry-After-Ms, X-Larder-Route\r\n"),
              std::string::npos);
    EXPECT_NE(refusal.find("request-id: req_"), std::string::npos);
  }
}

// Browsers let any page send a POST without a body's type, and only hide the reply.
TEST(HttpAccess, WebPagesThatAreNotNamedChangeNothing) {
  const auto reset = [](const TestServer& server, const std::string& headers) {
    return server.exchange("POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n" + headers +
                           "Connection: close\r\n\r\n");
  };
  ServerConfig config;
  config.cors_origins = {"http://a"};
  const TestServer closed, open(config);
  const auto refused = reset(closed, "Origin: http://a\r\n");
  EXPECT_EQ(refused.status, 403);
  EXPECT_NE(refused.body.find("--cors http://a"), std::string::npos);
  EXPECT_EQ(reset(closed, "Origin: null\r\n").status, 403);
  EXPECT_EQ(reset(closed, "").status, 200);
  EXPECT_EQ(reset(open, "Origin: http://b\r\n").status, 403);
  EXPECT_EQ(reset(open, "Origin: http://a\r\n").status, 200);
}

// A page's own name may come to point to this machine; the server is then of its origin.
TEST(HttpAccess, NamesThatAreNotTheServersAreRefused) {
  const auto status = [](const TestServer& server, const std::string& host) {
    return server
        .exchange("GET /v1/models HTTP/1.1\r\n" + host + "Connection: close\r\n" +
                  "Authorization: Bearer k\r\n\r\n")
        .status;
  };
  const TestServer closed;
  for (const char* host : {"Host: \r\n", "Host: 127.0.0.1:8080\r\n", "Host: [::1]:8080\r\n",
                           "Host: LOCALHOST:1\r\n", "Host: a.localhost\r\n"}) {
    EXPECT_EQ(status(closed, host), 200) << host;
  }
  for (const char* host : {"Host: evil.example:8080\r\n", "Host: 127.0.0.1.evil.example\r\n",
                           "Host: localhost.evil.example\r\n", "Host: app.example\r\n"}) {
    EXPECT_EQ(status(closed, host), 403) << host;
  }
  const auto refused =
      closed.exchange("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(refused.json()["error"]["code"], "host_not_allowed");
  EXPECT_EQ(closed.exchange("GET /health HTTP/1.1\r\nHost: a_cluster\r\nConnection: close\r\n\r\n").status, 200);
  const auto absolute = closed.exchange(
      "GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(absolute.status, 403);
  EXPECT_NE(refused.body.find("--cors http://evil.example"), std::string::npos);
  ServerConfig config;
  config.cors_origins = {"https://app.example:3000"};
  EXPECT_EQ(status(TestServer(config), "Host: app.example\r\n"), 200);
  EXPECT_EQ(status(TestServer(config), "Host: evil.example\r\n"), 403);
  config.cors_origins = {"*"};
  EXPECT_EQ(status(TestServer(config), "Host: evil.example\r\n"), 200);
  ServerConfig with_key, open;
  with_key.api_keys = {"k"};
  EXPECT_EQ(status(TestServer(with_key), "Host: a.example\r\n"), 200);
  open.allow_open_network = true;
  EXPECT_EQ(status(TestServer(open), "Host: a.example\r\n"), 200);
}

}  // namespace
}  // namespace larder
