// The events of responses that are generated in the background, read again or by others, over HTTP.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "server/api/responses_test_support.h"

namespace larder {
namespace {

class StreamedAgain : public ResponsesTest {
 protected:
  static std::string path_of(const std::string& id, const std::string& query = "") {
    return "/v1/responses/" + id + "?stream=true" + query;
  }
  // Of a request's stream: its head and its events as they came, without what frames them.
  static TestServer::Answer plain(const TestServer::Answer& answer) {
    TestServer::Answer result = answer;
    result.body.clear();
    for (std::size_t at = 0; at < answer.body.size();) {
      const auto line_end = answer.body.find("\r\n", at);
      const auto size = std::stoul(answer.body.substr(at, line_end - at), nullptr, 16);
      result.body += answer.body.substr(line_end + 2, size);
      at = line_end + 2 + size + 2;
    }
    return result;
  }
  static std::string id_in(const std::string& text) {
    const auto at = text.find("resp_");
    return text.substr(at, text.find_first_of("\"\r", at) - at);
  }
  // The first event's, and those behind it.
  static std::string without_first(const std::string& events, int count) {
    std::size_t at = 0;
    for (; count > 0; --count) at = events.find("\n\n", at) + 2;
    return events.substr(at);
  }
  Json streamed() const {
    Json request = body("hello");
    request["background"] = request["stream"] = true;
    return request;
  }
};

TEST_F(StreamedAgain, AreTheSameFromAnyEventOn) {
  const auto first = plain(server_.post("/v1/responses", streamed().dump()));
  const std::string id = id_in(first.body);
  const auto list = events(first.body);
  ASSERT_GT(list.size(), 8u);
  const auto again = plain(server_.get(path_of(id)));
  EXPECT_EQ(again.body, first.body);
  EXPECT_NE(again.head.find("text/event-stream"), std::string::npos);
  EXPECT_NE(again.head.find("x-request-id: " + id), std::string::npos);
  for (const int after : {0, 3, static_cast<int>(list.size()) - 2}) {
    const auto rest = plain(server_.get(path_of(id, "&starting_after=" + std::to_string(after))));
    EXPECT_EQ(rest.body, without_first(first.body, after + 1)) << after;
  }
  EXPECT_EQ(plain(server_.get(path_of(id, "&starting_after=1000"))).body, "");
  remove("/v1/responses/" + id);
  EXPECT_EQ(server_.get(path_of(id)).status, 404);
}

// Whoever comes hears of all, and of the end.
TEST_F(StreamedAgain, AreReadWhileTheyCome) {
  Json request = streamed();
  request["ignore_eos"] = true;
  request["attention_window"] = 32;
  request["max_output_tokens"] = 1'000'000;
  RawClient writer(server_.port());
  writer.send(TestServer::request("/v1/responses", request.dump()));
  const std::string id = id_in(writer.receive("response.created"));
  writer.close();
  RawClient reader(server_.port());
  reader.send("GET " + path_of(id, "&starting_after=1") + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  std::string text = reader.receive("output_text.delta");
  EXPECT_EQ(text.find("response.created"), std::string::npos);
  EXPECT_NE(text.find("\"sequence_number\":2,"), std::string::npos) << text;
  EXPECT_EQ(server_.post("/v1/responses/" + id + "/cancel", "").json()["status"], "cancelled");
  text += reader.receive();
  EXPECT_TRUE(reader.closed_by_server());
  EXPECT_NE(text.find("response.incomplete"), std::string::npos);
  EXPECT_NE(text.find("\"status\":\"cancelled\""), std::string::npos);
  EXPECT_TRUE(server_.becomes_idle());
}

TEST_F(StreamedAgain, AreRefusedWhereTheyAreNotKept) {
  const std::string stored = create(body("hello", 1))["id"];
  EXPECT_EQ(server_.get(path_of(stored)).param(), "stream");
  Json request = body("hello", 1);
  request["background"] = true;
  EXPECT_EQ(server_.get(path_of(create(request)["id"])).param(), "stream");
  EXPECT_EQ(server_.get(path_of("resp_none")).status, 404);
  const std::string id = id_in(server_.post("/v1/responses", streamed().dump()).body);
  for (const char* wrong : {"-1", "x", "1x", "99999999999", "2147483647", ""})
    EXPECT_EQ(server_.get(path_of(id, std::string("&starting_after=") + wrong)).param(), "starting_after") << wrong;
}

TEST_F(StreamedAgain, AreKeptAsFarAsThereIsRoom) {
  ServerConfig config;
  config.limits.max_background_event_bytes = 12'000;
  const TestServer server(config);
  const auto stream = [&] { return id_in(server.post("/v1/responses", streamed().dump()).body); };
  const std::string first = stream();
  EXPECT_EQ(server.get(path_of(first)).status, 200);
  for (int i = 0; i < 3; ++i) stream();
  EXPECT_EQ(server.get(path_of(first)).param(), "stream") << "later ones have their place";
  EXPECT_EQ(server.get("/v1/responses/" + first).status, 200);
  // Of one that is longer than there is room the end is there.
  Json request = streamed();
  request["ignore_eos"] = true;
  request["max_output_tokens"] = 150;
  const std::string id = id_in(server.post("/v1/responses", request.dump()).head);
  // The reader of the first time may be overtaken, and some of them go while there is more to come.
  std::string first_kept;
  TestServer::Answer kept;
  ASSERT_TRUE(eventually([&] {
    const auto refused = server.get(path_of(id));
    EXPECT_EQ(refused.param(), "starting_after") << refused.body;
    const auto number = refused.body.find_first_of("0123456789");
    first_kept = refused.body.substr(number, refused.body.find(' ', number) - number);
    kept = server.get(path_of(id, "&starting_after=" + std::to_string(std::stoi(first_kept) - 1)));
    return kept.status == 200 && kept.body.find("event: response.incomplete") != kept.body.npos;
  }));
  EXPECT_EQ(server.get(path_of(id, "&starting_after=" + std::to_string(std::stoi(first_kept) - 2))).status, 400);
  const auto last = plain(kept);
  const auto at = last.body.find("\"sequence_number\":");
  EXPECT_EQ(last.body.find("\"sequence_number\":" + first_kept + ","), at) << last.body;
}

}  // namespace
}  // namespace larder
