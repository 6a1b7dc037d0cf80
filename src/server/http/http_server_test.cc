// The API over real sockets, with a tiny random model behind it.
#include "server/http/http_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <initializer_list>
#include <new>
#include <utility>

#include "server/server_test_support.h"
#include "server/unix_time.h"

namespace larder {
namespace {

using std::chrono::milliseconds;

// Goes on until the client leaves, or somebody stops it.
const std::string kStreamForever =
    R"({"prompt":"abc","max_tokens":10000000,"attention_window":32,"ignore_eos":true,"stream":true,"n":8})";

// Drops no client that reads less than it is sent.
ServerConfig patient() {
  ServerConfig config;
  config.limits.max_stream_buffer_bytes = std::size_t{1} << 30;
  return config;
}

// Not operator+ with a literal in front: GCC 12 warns of an overlap that is none.
std::string braced(const std::string& fields) { return fmt::format("{{{}}}", fields); }

TEST(HttpServer, PublicPages) {
  TestServer server;
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_TRUE(server.get("/version").json()["version"].is_string());
  const Json models = server.get("/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], TestServer::kMaxModelLen);
  EXPECT_EQ(models["data"][0]["lifecycle"], "active");
  EXPECT_EQ(models["data"][0]["max_input_tokens"], TestServer::kMaxModelLen - 1);
  EXPECT_EQ(server.get("/v1/models/t%69ny").json()["id"], "tiny");
  EXPECT_EQ(server.get("/v1/models/other").status, 404);
  EXPECT_EQ(server.get("/load").json()["server_load"], 0);
  EXPECT_EQ(server.get("/nothing").status, 404);
  EXPECT_EQ(server.get("/v1/chat/completions").status, 405);
  EXPECT_EQ(server.exchange("HEAD /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").body, "");
  EXPECT_EQ(server.exchange("GET http://localhost:1/v1/models/tiny?a=b HTTP/1.1\r\nHost: x\r\n"
                            "Connection: close\r\n\r\n").json()["id"], "tiny");
}

TEST(HttpServer, RepliesAreDated) {
  const TestServer server;
  std::tm date{};
  const std::string head = server.get("/version").head;
  const auto at = head.find("\r\nDate: ");
  ASSERT_NE(at, std::string::npos) << head;
  const char* rest = strptime(head.c_str() + at, "\r\nDate: %a, %d %b %Y %H:%M:%S GMT", &date);
  ASSERT_NE(rest, nullptr) << head;
  EXPECT_EQ(*rest, '\r');
  EXPECT_LE(std::abs(timegm(&date) - unix_time_s()), 60);
}

TEST(HttpServer, AWrongMethodIsToldTheRightOnes) {
  const TestServer server;
  const auto ask = [&](const std::string& method, const std::string& path) {
    return server.exchange(method + " " + path +
                           " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 0\r\n"
                           "Connection: close\r\n\r\n");
  };
  const struct {
    const char *method, *path, *allowed, *subject;
  } cases[] = {
      {"GET", "/v1/chat/completions", "POST", "it"},
      {"DELETE", "/health", "GET, HEAD", "it"},
      {"PUT", "/v1/conversations/conv_1", "GET, HEAD, POST, DELETE", "/v1/conversations/{id}"},
      {"POST", "/v1/responses/steer", "GET, HEAD, DELETE", "/v1/responses/{id}"},
      {"PUT", "/v1/responses/input_tokens", "POST, GET, HEAD, DELETE", "it"},
  };
  for (const auto& [method, path, allowed, subject] : cases) {
    const auto answer = ask(method, path);
    EXPECT_EQ(answer.status, 405) << path;
    EXPECT_NE(answer.head.find(fmt::format("\r\nAllow: {}\r\n", allowed)), std::string::npos) << answer.head;
    EXPECT_EQ(answer.json()["error"]["message"],
              fmt::format("there is no {} {}; {} takes {}", method, path, subject, allowed));
  }
  EXPECT_EQ(ask("PUT", "/nothing").head.find("Allow:"), std::string::npos);
}

TEST(HttpServer, CompletionIsDeterministicAndCached) {
  TestServer server;
  const std::string body =
      R"({"model":"small","prompt":"the quick brown fox jumps over the lazy dog","max_tokens":8,)"
      R"("temperature":0,"ignore_eos":true})";
  const Json first = server.post("/v1/completions", body).json();
  const Json second = server.post("/v1/completions", body).json();
  EXPECT_EQ(first["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(first["choices"][0]["text"], second["choices"][0]["text"]);
  EXPECT_EQ(first["usage"]["completion_tokens"], 8);
  EXPECT_EQ(first["usage"]["prompt_tokens"], 43);
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(second["usage"]["prompt_tokens_details"]["cached_tokens"], 42);
  EXPECT_EQ(second["timings"]["cache_n"], 42);
  EXPECT_EQ(second["timings"]["prompt_n"], 1);
  EXPECT_EQ(
      server.exchange("POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").status,
      200);
  const Json third = server.post("/v1/completions", body).json();
  EXPECT_EQ(third["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST(HttpServer, AnAnswerCutByTheContextEndsByItsLength) {
  TestServer server;
  const std::string prompt(static_cast<std::size_t>(TestServer::kMaxModelLen) - 6, 'a');
  const auto ask = [&](const char* more) {
    return server.post("/v1/completions", fmt::format(R"({{"prompt":"{}"{}}})", prompt, more));
  };
  for (const char* more : {R"(,"max_tokens":50,"min_tokens":20)", R"(,"max_tokens":50,"ignore_eos":true)"}) {
    const auto reply = ask(more);
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json()["choices"][0]["finish_reason"], "length");
    EXPECT_LT(reply.json()["usage"]["completion_tokens"], 20);
  }
  EXPECT_EQ(ask(R"(,"max_tokens":20,"min_tokens":50)").param(), "min_tokens");
}

TEST(HttpServer, SaltsKeepCachesApart) {
  TestServer server;
  const auto cached = [&](const std::string& salt) {
    return server
        .post(
            "/v1/completions",
            R"({"prompt":"the quick brown fox jumps over the lazy dog","max_tokens":1,"cache_salt":")" +
                salt + "\"}")
        .json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        .get<int>();
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
  EXPECT_GT(cached("a"), 0);
}

// The data of every event, [DONE] included.
std::vector<std::string> events_of(const std::string& body) {
  std::vector<std::string> events;
  std::size_t at = 0;
  while ((at = body.find("data: ", at)) != std::string::npos) {
    at += 6;
    events.push_back(body.substr(at, body.find("\n\n", at) - at));
  }
  return events;
}

TEST(HttpServer, StreamSaysWhatTheWholeReplySays) {
  TestServer server;
  const std::string fields =
      R"("messages":[{"role":"user","content":"hello"}],"max_tokens":12,"temperature":0,"ignore_eos":true)";
  const Json whole = server.post("/v1/chat/completions", braced(fields)).json();
  const auto events = events_of(
      server
          .post("/v1/chat/completions",
                braced(fields + R"(,"stream":true,"stream_options":{"include_usage":true})"))
          .body);
  ASSERT_GT(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text;
  for (std::size_t i = 0; i + 2 < events.size(); ++i) {
    const Json event = parse_json(events[i], {});
    const Json& choice = event["choices"][0];
    EXPECT_EQ(choice["delta"].contains("role"), i == 0);
    if (choice["delta"].contains("content")) text += choice["delta"]["content"].get<std::string>();
    EXPECT_EQ(choice["finish_reason"].is_null(), i + 3 < events.size());
    EXPECT_TRUE(event.at("usage").is_null()) << event;
  }
  EXPECT_EQ(text, whole["choices"][0]["message"]["content"].get<std::string>());
  const Json usage = parse_json(events[events.size() - 2], {});
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
}

TEST(HttpServer, ChunksHaveAsMuchUsageAsIsAskedFor) {
  const TestServer server;
  const auto usages = [&](const std::string& options) {
    const std::string fields = R"("prompt":"a","max_tokens":3,"temperature":0,"ignore_eos":true,"stream":true)";
    std::string shown;
    const auto answer = server.post("/v1/completions", braced(fields + options));
    for (const std::string& event : events_of(answer.body)) {
      if (event == "[DONE]") continue;
      const Json chunk = parse_json(event, {});
      shown += !chunk.contains("usage") ? '-' : chunk["usage"].is_null() ? 'n' : 'u';
    }
    return shown;
  };
  EXPECT_EQ(usages(""), "---");
  EXPECT_EQ(usages(R"(,"stream_options":{"include_usage":true})"), "nnnu");
  EXPECT_EQ(usages(R"(,"stream_options":{"continuous_usage_stats":true})"), "uuu");
  const std::string both = R"("include_usage":true,"continuous_usage_stats":true)";
  EXPECT_EQ(usages(R"(,"stream_options":{)" + both + "}"), "uuuu");
}

TEST(HttpServer, StopStringEndsTextAndUsage) {
  TestServer server;
  const std::string fields = R"("prompt":"abc","max_tokens":40,"temperature":0,"ignore_eos":true)";
  const Json whole = server.post("/v1/completions", braced(fields)).json();
  const auto text = whole["choices"][0]["text"].get<std::string>();
  ASSERT_GT(text.size(), 12u);
  const std::string stop = text.substr(6, 3);
  const Json stopped =
      server.post("/v1/completions", braced(fields + ",\"stop\":" + Json(stop).dump())).json();
  const Json& choice = stopped["choices"][0];
  EXPECT_EQ(choice["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], stop);
  EXPECT_LT(stopped["usage"]["completion_tokens"], 40);
  const std::string later = fields + R"(,"min_tokens":20,"stop":)" + Json(stop).dump();
  EXPECT_GT(server.post("/v1/completions", braced(later)).json()["usage"]["completion_tokens"], 20);
  EXPECT_TRUE(server.becomes_idle());
}

TEST(HttpServer, AStopStringEndsAChoiceWhileTheOtherGoesOn) {
  TestServer server({}, {.num_blocks = 400, .max_model_len = 2000, .max_batch_tokens = 128});
  const std::string fields = R"("prompt":"a","max_tokens":1500,"ignore_eos":true,"n":2,"seed":7)";
  const Json whole = server.post("/v1/completions", braced(fields)).json();
  const std::string stop = whole["choices"][0]["text"].get<std::string>().substr(8, 8);
  const std::uint64_t before = server.engine().stats().num_generated_tokens;
  server.post("/v1/completions", braced(fields + ",\"stop\":" + Json(stop).dump()));
  EXPECT_TRUE(server.becomes_idle());
  EXPECT_LT(server.engine().stats().num_generated_tokens - before, 2u * 1500 - 100);
}

TEST(HttpServer, LogprobsAreOfAStopStringToo) {
  TestServer server;
  // But "y" is token 88, and comes alone.
  const std::string fields = R"("prompt":"ab","logit_bias":{"88":100},"temperature":0,"logprobs":0,"max_tokens":9,"stop":["yyy"])";
  const Json whole = server.post("/v1/completions", braced(fields)).json().at("choices")[0];
  EXPECT_EQ(whole.at("text"), "");
  EXPECT_EQ(whole.at("stop_reason"), "yyy");
  EXPECT_EQ(whole.at("logprobs").at("tokens"), Json({"y", "y", "y"}));
  EXPECT_EQ(whole.at("logprobs").at("text_offset"), Json({0, 1, 2}));
  Json streamed = {{"tokens", Json::array()}, {"text_offset", Json::array()}};
  const std::string events = server.post("/v1/completions", braced(fields + R"(,"stream":true)")).body;
  for (std::size_t at = 0; (at = events.find("data: {", at)) != std::string::npos; ++at) {
    const Json event = parse_json(events.substr(at + 6, events.find('\n', at) - at - 6), {});
    for (auto& [name, list] : streamed.items())
      for (const Json& value : event["choices"][0]["logprobs"][name]) list.push_back(value);
  }
  for (const auto& [name, list] : streamed.items()) EXPECT_EQ(list, whole.at("logprobs").at(name)) << name;
}

TEST(HttpServer, EchoWithLogprobsHasAnEntryPerToken) {
  TestServer server;
  const Json reply =
      server
          .post("/v1/completions",
                R"({"prompt":[[1,2,3,4],[5,6]],"max_tokens":1,"logprobs":1,"echo":true,)"
                R"("temperature":0,"seed":1234})")
          .json();
  for (int i = 0; i < 2; ++i) {
    const Json& logprobs = reply["choices"][i]["logprobs"];
    const std::size_t count = i == 0 ? 5 : 3;
    for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      EXPECT_EQ(logprobs[name].size(), count) << name;
    }
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
    for (std::size_t k = 1; k < count; ++k) {
      const double logprob = logprobs["token_logprobs"][k];
      EXPECT_LT(logprob, 0);
      double best = -1e9;
      for (const auto& [text, value] : logprobs["top_logprobs"][k].items())
        best = std::max(best, value.get<double>());
      EXPECT_GE(best, logprob);
      if (k + 1 == count) {
        EXPECT_EQ(best, logprob);  // greedy
      }
    }
  }
  EXPECT_EQ(reply["choices"][0]["text"].get<std::string>().substr(0, 4), "\"#$%");
  const Json prompt_only =
      server
          .post("/v1/completions",
                R"({"prompt":[1,2,3,4],"max_tokens":0,"logprobs":0,"echo":true})")
          .json();
  EXPECT_EQ(prompt_only["choices"][0]["logprobs"]["tokens"].size(), 4u);
  EXPECT_EQ(prompt_only["usage"]["completion_tokens"], 0);
}

TEST(HttpServer, LogprobsOfOneReplyAreBounded) {
  ServerConfig config;
  config.limits.max_logprob_entries = 48;
  const TestServer server(config);
  const auto ask = [&](const std::string& fields) {
    return server.post("/v1/completions", braced(fields));
  };
  // Two prompts of four tokens, each with three logprobs at every place.
  const std::string echo = R"("prompt":[[1,2,3,4],[5,6,7,8]],"logprobs":2,"echo":true,"n":2)";
  EXPECT_EQ(ask(echo + R"(,"max_tokens":0)").status, 200);
  const auto refused = ask(echo + R"(,"max_tokens":1)");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.param(), "logprobs");
  EXPECT_NE(refused.body.find("hold 60 of them at once, at most 48; lower max_tokens"),
            std::string::npos);
  // A stream's answers go as they come, its prompts' at once.
  EXPECT_EQ(ask(echo + R"(,"max_tokens":1,"stream":true)").status, 200);
  const std::string long_echo = R"("prompt":[1,2,3,4,5,6,7,8,9],"logprobs":5,"echo":true)";
  const auto streamed = ask(long_echo + R"(,"max_tokens":1,"stream":true)");
  EXPECT_EQ(streamed.param(), "logprobs");
  EXPECT_NE(streamed.body.find("hold 54 of them at once, at most 48; split the request"),
            std::string::npos);
  // An answer that was given no end is bounded by what it comes to hold.
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":5)";
  EXPECT_EQ(server.post("/v1/chat/completions", chat + "}").status, 200);
  EXPECT_EQ(server.post("/v1/chat/completions", chat + R"(,"max_tokens":100})").param(), "logprobs");
  // What is not asked for takes nothing.
  EXPECT_EQ(ask(R"("prompt":"abc","max_tokens":100)").status, 200);
  EXPECT_EQ(ask(R"("prompt":"abc","max_tokens":100,"best_of":2)").status, 200);
}

// It is written by another thread than a small one's, from the same choices.
TEST(HttpServer, ALargeReplySaysWhatSmallOnesSay) {
  const TestServer server;
  const auto ask = [&](const Json& prompts) {
    const Json body = {{"prompt", prompts}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 20}};
    return server.post("/v1/completions", dump_json(body)).json();
  };
  Json prompts = Json::array();
  for (int first = 1; first <= 6; ++first) {
    Json prompt = Json::array();
    for (int i = 0; i < 200; ++i) prompt.push_back((first + i) % 90);
    prompts.push_back(std::move(prompt));
  }
  const Json all = ask(prompts);
  ASSERT_EQ(all["choices"].size(), 6u);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Json one = ask(prompts[i]);
    EXPECT_EQ(all["choices"][i]["logprobs"], one["choices"][0]["logprobs"]) << i;
    EXPECT_EQ(all["choices"][i]["logprobs"]["tokens"].size(), 200u);
  }
}

TEST(HttpServer, ManyChoices) {
  TestServer server;
  const Json reply =
      server
          .post("/v1/completions", R"({"prompt":["a","bc"],"max_tokens":4,"n":3,"seed":7,)"
                                   R"("ignore_eos":true,"return_token_ids":true})")
          .json();
  ASSERT_EQ(reply["choices"].size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(reply["choices"][i]["index"], i);
    EXPECT_EQ(reply["choices"][i]["token_ids"].size(), 4u);
    EXPECT_EQ(reply["choices"][i]["prompt_token_ids"].size(), i < 3 ? 1u : 2u);
  }
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 24);
  const Json best =
      server
          .post("/v1/completions", R"({"prompt":"a","max_tokens":4,"n":1,"best_of":4,"seed":7,)"
                                   R"("ignore_eos":true})")
          .json();
  EXPECT_EQ(best["choices"].size(), 1u);
  EXPECT_TRUE(best["choices"][0]["logprobs"].is_null());
  const Json all =
      server
          .post("/v1/completions", R"({"prompt":"a","max_tokens":4,"n":4,"seed":7,"logprobs":0,)"
                                   R"("ignore_eos":true})")
          .json();
  const auto likelihood = [](const Json& choice) {
    double sum = 0;
    for (const Json& logprob : choice["logprobs"]["token_logprobs"]) sum += logprob.get<double>();
    return sum;
  };
  const auto likeliest = std::ranges::max_element(all["choices"], {}, likelihood);
  EXPECT_EQ(best["choices"][0]["text"], (*likeliest)["text"]);
  EXPECT_EQ(best["usage"]["completion_tokens"], 16);
}

TEST(HttpServer, TokensRoundTrip) {
  TestServer server;
  const Json tokens =
      server.post("/tokenize", R"({"prompt":"hi you","return_token_strs":true})").json();
  EXPECT_EQ(tokens["count"], 6);
  EXPECT_EQ(tokens["max_model_len"], TestServer::kMaxModelLen);
  EXPECT_EQ(tokens["token_strs"][0], "h");
  const Json text =
      server.post("/detokenize", braced("\"tokens\":" + tokens["tokens"].dump())).json();
  EXPECT_EQ(text["prompt"], "hi you");
  const Json chat =
      server.post("/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})").json();
  EXPECT_GT(chat["count"], 2);
  EXPECT_EQ(server.post("/tokenize", "{}").param(), "prompt");
  EXPECT_EQ(server.post("/detokenize", R"({"tokens":[128]})").param(), "tokens");
}

// What /tokenize tells is what a completion of the same body is charged.
TEST(HttpServer, AChatIsTokenizedAsItIsServed) {
  const TestServer server;
  const std::string messages =
      R"("messages":[{"role":"system","content":"It is 10:11:12.\nBe brief."},{"role":"user","content":"hi"}],"max_tokens":1)";
  std::vector<Json> prompts;
  for (const std::string& more :
       {std::string(), std::string(R"(,"larder":{"normalise":["timestamps"]})"),
        std::string(R"(,"truncate_prompt_tokens":9)")}) {
    const std::string body = braced(messages + more);
    const Json told = server.post("/tokenize", body).json();
    const Json served = server.post("/v1/chat/completions", body).json();
    EXPECT_EQ(told["count"], served["usage"]["prompt_tokens"]) << more;
    prompts.push_back(told["tokens"]);
  }
  EXPECT_NE(prompts[0], prompts[1]);
  EXPECT_EQ(prompts[2], Json(std::vector<Json>(prompts[0].end() - 9, prompts[0].end())));
}

TEST(HttpServer, NoTextBecomesAnyNumberOfTokens) {
  TestServer server;
  std::string text;
  while (text.size() <= kMaxTextTokens) text += "a ";
  for (const char* path : {"/tokenize", "/v1/completions"}) {
    const auto answer =
        server.post(path, braced("\"truncate_prompt_tokens\":8,\"prompt\":\"" + text + "\""));
    EXPECT_EQ(answer.json()["error"]["code"], "context_length_exceeded");
    EXPECT_EQ(answer.param(), "prompt");
    EXPECT_NE(answer.body.find("more than 1048576 tokens"), std::string::npos);
  }
}

TEST(HttpServer, EveryReplyHasAnId) {
  TestServer server;
  const auto id_of = [](const TestServer::Answer& answer) {
    const std::string name = "\r\nx-request-id: ";
    const std::size_t at = answer.head.find(name);
    if (at == std::string::npos) return std::string();
    const std::size_t begin = at + name.size();
    return answer.head.substr(begin, answer.head.find("\r\n", begin) - begin);
  };
  const auto answer = server.post("/v1/completions", R"({"prompt":"a","max_tokens":1})");
  EXPECT_EQ(id_of(answer), answer.json()["id"]) << "by which its cache report is found, too";
  EXPECT_EQ(id_of(server.post("/v1/completions", R"({"prompt":"a","max_tokens":1,"stream":true})")).rfind("cmpl-", 0), 0U);
  EXPECT_NE(id_of(server.post("/v1/completions", "{")), "");
  EXPECT_NE(id_of(server.get("/none")), id_of(server.get("/none")));
}

TEST(HttpServer, TooLongPromptTellsBothNumbers) {
  TestServer server;
  const auto answer =
      server.post("/v1/completions", "{\"prompt\":\"" + std::string(500, 'a') + "\"}");
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("500 tokens"), std::string::npos);
  EXPECT_NE(answer.body.find("240"), std::string::npos);
  EXPECT_NE(answer.body.find("truncate_prompt_tokens"), std::string::npos);
  // By which agents know that they are to compact their history; others read the words.
  EXPECT_EQ(answer.json()["error"]["code"], "context_length_exceeded");
  for (const char* words : {"this model's maximum context length is", "prompt is too long"})
    EXPECT_NE(answer.body.find(words), std::string::npos) << answer.body;
  const auto cut =
      server.post("/v1/completions", "{\"prompt\":\"" + std::string(500, 'a') +
                                         R"(","truncate_prompt_tokens":10,"max_tokens":1})");
  EXPECT_EQ(cut.json()["usage"]["prompt_tokens"], 10);
  EXPECT_EQ(server.post("/v1/completions", R"({"prompt":""})").param(), "prompt");
}

TEST(HttpServer, SpecialTokensInUserTextStayText) {
  TestServer server;
  const Json plain =
      server.post("/tokenize", R"({"messages":[{"role":"user","content":""}]})").json();
  const Json typed =
      server.post("/tokenize", R"({"messages":[{"role":"user","content":"<|im_end|>"}]})").json();
  EXPECT_EQ(typed["count"].get<int>(), plain["count"].get<int>() + 10);
}

TEST(HttpServer, FullLineIsRefused) {
  EngineConfig engine = TestServer::default_engine();
  engine.max_sequences = 1;
  engine.max_waiting = 1;
  TestServer server(patient(), engine);
  std::string body = kStreamForever;
  body.replace(body.find("8}"), 1, "1");
  RawClient running(server.port()), waiting(server.port());
  running.send(TestServer::request("/v1/completions", body));
  running.receive("data: ");
  waiting.send(TestServer::request("/v1/completions", body));
  ASSERT_TRUE(eventually([&] { return server.engine().stats().num_waiting == 1; }));
  const std::string small = R"({"prompt":"abc","max_tokens":2})";
  EXPECT_EQ(server.post("/v1/completions", small).status, 503);
  running.close();
  EXPECT_NE(waiting.receive("data: ").find("HTTP/1.1 200"), std::string::npos);
  waiting.close();
  ASSERT_TRUE(server.becomes_idle());
  EXPECT_EQ(server.post("/v1/completions", small).status, 200);
}

TEST(HttpServer, DrainLetsRunningRequestsEnd) {
  TestServer server(patient());
  RawClient running(server.port()), idle(server.port());
  const std::string body = R"({"prompt":"abc","max_tokens":230,"ignore_eos":true,"stream":true,"n":8})";
  running.send(TestServer::request("/v1/completions", body, ""));
  const std::string begun = running.receive("data: ");  // on a busy machine, all of it
  EXPECT_EQ(server.get("/version").status, 200);        // those before it have been accepted
  server.server().shutdown(true);
  EXPECT_NE((begun + running.receive("[DONE]")).find("[DONE]"), std::string::npos);
  EXPECT_EQ(idle.receive(), "");
  EXPECT_TRUE(idle.closed_by_server());
  server.join();
}

TEST(HttpServer, DrainHasADeadline) {
  ServerConfig config = patient();
  config.drain_timeout = milliseconds(0);
  TestServer server(config);
  RawClient running(server.port());
  running.send(TestServer::request("/v1/completions", kStreamForever));
  running.receive("data: ");
  server.server().shutdown(true);
  server.join();
  EXPECT_TRUE(server.becomes_idle());
}

TEST(HttpServer, SecondShutdownEndsAtOnce) {
  ServerConfig config = patient();
  config.drain_timeout = std::chrono::hours(1);
  TestServer server(config);
  RawClient running(server.port());
  running.send(TestServer::request("/v1/completions", kStreamForever, ""));
  running.receive("data: ");
  server.server().shutdown(true);
  server.server().shutdown(false);
  server.join();
  EXPECT_TRUE(server.becomes_idle());
}

TEST(HttpServer, DeadEngineIsTold) {
  TestServer server(patient());
  RawClient running(server.port());
  running.send(TestServer::request("/v1/completions", kStreamForever));
  running.receive("data: ");
  server.engine().stop(false);
  EXPECT_NE(running.receive("[DONE]").find("engine_stopped"), std::string::npos);
  EXPECT_EQ(server.get("/health").status, 503);
  EXPECT_EQ(server.post("/v1/completions", R"({"prompt":"a"})").status, 503);
  const std::string metrics = server.get("/metrics").body;
  EXPECT_NE(metrics.find("reason=\"engine_stopped\"} 1"), std::string::npos);
  EXPECT_NE(metrics.find("reason=\"queue_full\"} 0"), std::string::npos);
}

// As when memory runs out in a step.
TEST(HttpServer, AnEngineThatFailsIsToldAndTheServerStays) {
  TestServer server(patient());
  RawClient running(server.port());
  running.send(TestServer::request("/v1/completions", kStreamForever));
  running.receive("data: ");
  Request bad;
  bad.prompt = {1, 2};
  bad.on_update = [](RequestUpdate&&) { throw std::bad_alloc(); };
  server.engine().submit(std::move(bad));
  EXPECT_NE(running.receive("[DONE]").find("engine_stopped"), std::string::npos);
  EXPECT_EQ(server.get("/health").status, 503);
  EXPECT_EQ(server.post("/v1/completions", R"({"prompt":"a"})").status, 503);
}

void expect_to_end_by(std::initializer_list<int> signals) {
  TestServer server;
  server.server().shutdown(false);
  server.join();
  ServerConfig config;
  config.port = 0;
  HttpServer early(config, server.model());
  for (const int signal : signals) std::raise(signal);
  early.run();
}

// Not by a connection that breaks off: a client would take half an answer for all of it, or ask what is wrong.
TEST(HttpServer, WhoIsStillAnsweredAtTheEndIsToldSo) {
  TestServer server(patient());
  RawClient stream(server.port()), whole(server.port());
  stream.send(TestServer::request("/v1/completions", kStreamForever));
  whole.send(TestServer::request(
      "/v1/completions", R"({"prompt":"abc","max_tokens":10000000,"attention_window":32,"ignore_eos":true})"));
  stream.receive("data: ");
  ASSERT_TRUE(eventually([&] { return server.engine().stats().num_running == 8 + 1; }));
  std::raise(SIGTERM);
  std::raise(SIGTERM);
  const std::string end = stream.receive();
  EXPECT_NE(end.find("the server ends"), std::string::npos) << end;
  EXPECT_NE(end.find("[DONE]\n\n\r\n0\r\n\r\n"), std::string::npos) << end;
  const auto answer = TestServer::split(whole.receive());
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.json()["error"]["code"], "engine_stopped");
  server.join();
}

TEST(HttpServer, ASignalBeforeItRunsIsHeard) { expect_to_end_by({SIGTERM}); }

TEST(HttpServer, TwoSignalsAtOnceEndIt) { expect_to_end_by({SIGTERM, SIGINT}); }

}  // namespace
}  // namespace larder
