// A server whose Responses API a test asks.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/server_test_support.h"

namespace larder {

class ResponsesTest : public ::testing::Test {
 protected:
  static Json body(const std::string& input, int max_output_tokens = 8) {
    return {{"input", input},
            {"max_output_tokens", max_output_tokens},
            {"logit_bias", {{"100", 3}, {"101", 3}, {"96", -100}, {"97", -100}}}};
  }
  Json create(const Json& request) {
    const auto answer = server_.post("/v1/responses", request.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
  std::string refusal(const Json& request) {
    const auto answer = server_.post("/v1/responses", request.dump());
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.param();
  }
  TestServer::Answer remove(const std::string& path, const std::string& headers = "") {
    return server_.exchange("DELETE " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                            headers + "\r\n");
  }
  // The events of a stream, whose names are their types and whose numbers count up.
  std::vector<Json> events(const std::string& text) {
    std::vector<Json> list;
    std::size_t at = 0;
    for (std::size_t end; (end = text.find("\n\n", at)) != std::string::npos; at = end + 2) {
      const auto begin = text.find("event: ", at);
      const auto data = text.find("\ndata: ", begin);
      const auto line_end = text.find('\n', data + 1);
      if (begin == std::string::npos || data > end) continue;
      list.push_back(parse_json(text.substr(data + 7, line_end - data - 7), {}));
      EXPECT_EQ(text.substr(begin + 7, data - begin - 7), list.back()["type"]);
      EXPECT_EQ(list.back()["sequence_number"], list.size() - 1);
    }
    return list;
  }

  TestServer server_;
};

}  // namespace larder
