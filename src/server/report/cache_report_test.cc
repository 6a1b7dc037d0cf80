// Reports over real sockets, with a tiny random model behind them.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "server/report/cache_report.h"
#include "server/report/cache_report_test_support.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

std::string chat(const std::string& system, const std::string& question,
                 const std::string& more = "") {
  const Json messages = {{{"role", "system"}, {"content", system}},
                         {{"role", "user"}, {"content", question}}};
  return fmt::format(R"({{"messages":{},"max_tokens":2,"temperature":0,"ignore_eos":true{}}})",
                     messages.dump(), more);
}

constexpr const char* kReport = R"(,"larder":{"cache_report":true})";

TEST(CacheReport, ComesOnRequestAndByItsId) {
  TestServer server;
  const std::string system = "You answer in few words. It is 10:41:07.";
  const Json first =
      server.post("/v1/chat/completions", chat(system, "How are you today?", kReport)).json();
  EXPECT_GT(reasons(first["larder"]["cache"])["never_seen"], 50);
  EXPECT_TRUE(first["larder"]["cache"]["divergence"].is_null());
  EXPECT_TRUE(first["larder"]["cache"]["nearest"].is_null());

  const Json plain = server.post("/v1/chat/completions", chat(system, "How are you today?")).json();
  EXPECT_FALSE(plain.contains("larder"));
  const std::string id = plain["id"];
  const Json kept = server.get("/v1/cache/requests/" + id).json();
  EXPECT_EQ(kept["id"], id);
  EXPECT_EQ(kept["nearest"]["id"], first["id"]);
  EXPECT_EQ(reasons(kept), (std::map<std::string, int>{{"too_short", 1}}));
  const Json all = server.get("/v1/cache/requests").json()["data"];
  EXPECT_EQ(all.size(), 2u);
  EXPECT_EQ(server.get("/v1/cache/requests?limit=1").json()["data"], Json::array({all[0]}));
  EXPECT_EQ(server.get("/v1/cache/requests?limit=1000").json()["data"], all);
  for (const char* limit : {"0", "1001", "-1", "x", ""})
    EXPECT_EQ(server.get(std::string("/v1/cache/requests?limit=") + limit).param(), "limit") << limit;
  EXPECT_EQ(server.get("/v1/cache/requests/nothing").status, 404);

  const std::string later = "You answer in few words. It is 11:02:55.";
  const Json second =
      server.post("/v1/chat/completions", chat(later, "How are you today?", kReport)).json();
  const Json& report = second["larder"]["cache"];
  EXPECT_GT(reasons(report)["diverged"], 30);
  EXPECT_EQ(report["divergence"]["class"], "timestamp");
  EXPECT_EQ(report["divergence"]["message"], 0);
  EXPECT_EQ(report["divergence"]["segment"], "system");
  EXPECT_EQ(report["divergence"]["token"], report["cached_tokens"]);
  const std::string metrics = server.get("/metrics").body;
  EXPECT_NE(metrics.find("class=\"timestamp\"} 1"), std::string::npos);
  EXPECT_NE(metrics.find("larder:prompt_tokens_missed_total{"), std::string::npos);
}

TEST(CacheReport, KnowsToolsThatCameOrWent) {
  EngineConfig engine = TestServer::default_engine();
  engine.max_model_len = 2000;
  const TestServer server({}, engine);
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  const auto divergence = [&](const std::string& before, const std::string& after) {
    const std::string system = "Be brief and kind to all. ";
    // No other case's prompts are the nearest ones.
    const std::string salt = fmt::format(R"(,"cache_salt":"{}")", before.size());
    server.post("/v1/chat/completions", chat(system, "Hello there, friend.", salt + before));
    const auto answer = server.post("/v1/chat/completions",
                                    chat(system, "Hello there, friend.", salt + kReport + after));
    return answer.json()["larder"]["cache"]["divergence"];
  };
  EXPECT_EQ(divergence("", tools)["class"], "changed_tools");
  const Json gone = divergence(tools, "");
  EXPECT_EQ(gone["class"], "changed_tools");
  EXPECT_EQ(gone["segment"], "tools");
}

// Which may be printed behind the system prompt: what differs first counts.
TEST(CacheReport, TellsASystemPromptFromTheToolsBehindIt) {
  EngineConfig engine = TestServer::default_engine();
  engine.max_model_len = 2000;
  const TestServer server({}, engine);
  const auto tool = [](const char* name) {
    return fmt::format(R"(,"tools":[{{"type":"function","function":{{"name":"{}","parameters":{{"type":"object"}}}}}}])", name);
  };
  const std::string question = "Hello there, my dear friend, how are you?";
  server.post("/v1/chat/completions", chat("You are a pirate, kind to all.", question, tool("f")));
  const Json report = server.post("/v1/chat/completions", chat("You are a monk, and kind to all.", question,
                                                               kReport + tool("g")))
                          .json()["larder"]["cache"];
  EXPECT_EQ(report["divergence"]["class"], "changed_system_prompt") << report;
  EXPECT_EQ(report["divergence"]["segment"], "system");
}

Json turns(std::initializer_list<const char*> texts) {
  Json messages = Json::array({{{"role", "system"}, {"content", "Be brief and kind to all."}}});
  for (const char* text : texts)
    messages.push_back({{"role", messages.size() % 2 == 1 ? "user" : "assistant"}, {"content", text}});
  return messages;
}

Json report_of(const TestServer& server, const Json& messages, const std::string& more = "") {
  const std::string body = fmt::format(
      R"({{"messages":{},"max_tokens":2,"temperature":0,"ignore_eos":true,"larder":{{"cache_report":true{}}}}})",
      messages.dump(), more);
  return server.post("/v1/chat/completions", body).json()["larder"]["cache"];
}

// What a template prints between two messages is no text that was left out before.
TEST(CacheReport, AnotherQuestionAtAnEarlierTurnIsNoTruncation) {
  EngineConfig engine = TestServer::default_engine();
  engine.max_model_len = 2000;
  const TestServer server({}, engine);
  report_of(server, turns({"Who is it?", "A cat.", "Where does it sleep?", "On the mat.", "And when?"}));
  const Json report = report_of(server, turns({"Who is it?", "A cat.", "My dog is very big."}));
  EXPECT_TRUE(report["divergence"].is_null()) << report;
  EXPECT_EQ(reasons(report)["diverged"], 0);
}

// The server has put it there, not the client.
TEST(CacheReport, TheTimeThatWasMovedIsNoEditOfTheHistory) {
  EngineConfig engine = TestServer::default_engine();
  engine.max_model_len = 2000;
  const TestServer server({}, engine);
  const std::string normalise = R"(,"normalise":["timestamps"])";
  Json first = turns({"Who is it that sleeps on the mat?"});
  first[0]["content"] = "Be brief and kind to all.\nIt is 10:41:07.";
  Json second = turns({"Who is it that sleeps on the mat?", "A cat.", "And when?"});
  second[0]["content"] = "Be brief and kind to all.\nIt is 11:02:55.";
  report_of(server, first, normalise);
  const Json report = report_of(server, second, normalise);
  EXPECT_EQ(report["divergence"]["class"], "timestamp") << report;
}

// What was refused was never computed: it is nobody's relative, and no request that ended.
TEST(CacheReport, ARefusedAttemptHidesNothing) {
  TestServer server;
  const std::string before = "You answer in few words. It is 10:41:07.";
  const std::string later = "You answer in few words. It is 11:02:55.";
  const Json first = server.post("/v1/chat/completions", chat(before, "How are you today?")).json();
  const auto refused = server.post("/v1/chat/completions",
                                   chat(later, "How are you today?", R"(,"min_tokens":9)"));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.param(), "min_tokens");
  const Json again =
      server.post("/v1/chat/completions", chat(later, "How are you today?", kReport)).json();
  const Json& report = again["larder"]["cache"];
  EXPECT_EQ(report["nearest"]["id"], first["id"]);
  EXPECT_GT(reasons(report)["diverged"], 30);
  EXPECT_EQ(report["divergence"]["class"], "timestamp");
  EXPECT_EQ(server.get("/metrics").body.find("finished_reason=\"abort\"} 1"), std::string::npos);
}

TEST(CacheReport, RefusedAttemptsPushNothingOut) {
  ServerConfig config;
  config.limits.max_ledger_bytes = std::size_t{32} << 10;  // some ten prompts
  TestServer server(config);
  const std::string before = "You answer in few words. It is 10:41:07.";
  const std::string later = "You answer in few words. It is 11:02:55.";
  const Json first = server.post("/v1/chat/completions", chat(before, "How are you today?")).json();
  for (int i = 0; i < 100; ++i) {
    const std::string system = fmt::format("Attempt {}, which is one of many that are alike.", i);
    const std::string body = chat(system, "How are you today?", R"(,"min_tokens":9)");
    ASSERT_EQ(server.post("/v1/chat/completions", body).status, 400);
  }
  const Json again =
      server.post("/v1/chat/completions", chat(later, "How are you today?", kReport)).json();
  EXPECT_EQ(again["larder"]["cache"]["nearest"]["id"], first["id"]) << again;
}

TEST(CacheReport, StreamsItWithTheLastChunk) {
  TestServer server;
  const std::string body =
      server.post("/v1/chat/completions", chat("Be brief.", "Hello", std::string(kReport) +
                                               R"(,"stream":true)")).body;
  EXPECT_NE(body.find("\"larder\":{\"cache\":{\"id\":"), std::string::npos);
}

TEST(CacheReport, TellsOfWhatWasCleared) {
  TestServer server;
  server.post("/v1/chat/completions", chat("Be brief and kind to all.", "Hello there, friend."));
  server.exchange("POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const Json again = server.post("/v1/chat/completions",
                                 chat("Be brief and kind to all.", "Hello there, friend.", kReport))
                         .json();
  const Json& report = again["larder"]["cache"];
  EXPECT_EQ(report["cached_tokens"], 0);
  EXPECT_GT(reasons(report)["evicted"], 60);
  EXPECT_EQ(report["misses"][0]["cleared"], true);
  EXPECT_NE(report["misses"][0]["advice"].get<std::string>().find("/reset_prefix_cache"), std::string::npos);
}

TEST(CacheReport, AdvisesByWhatTheRequestWantedComputed) {
  TestServer server;
  const std::string prompt = Json(std::string(120, 'a') + " and so on").dump();
  const auto advice_with = [&](const std::string& more) {
    const std::string body = fmt::format(R"({{"prompt":{},"max_tokens":1{}{}}})", prompt, more, kReport);
    const Json reply = server.post("/v1/completions", body).json();
    const Json& report = reply["larder"]["cache"];
    EXPECT_GT(reasons(report)["bypassed"], 0) << reply.dump();
    for (const Json& miss : report["misses"]) {
      if (miss["reason"] == "bypassed") return miss["advice"].get<std::string>();
      EXPECT_FALSE(miss.contains("advice")) << miss.dump();
    }
    return std::string();
  };
  EXPECT_NE(advice_with(R"(,"echo":true,"logprobs":1)").find("logprobs"), std::string::npos);
  EXPECT_NE(advice_with(R"(,"attention_window":32)").find("window"), std::string::npos);
}

TEST(CacheReport, WhatTheCacheGaveUpIsNoHit) {
  TestServer server;
  std::string previous = "null";
  const auto ask = [&](const std::string& system) {
    const Json body = {{"max_tokens", 2},
                       {"messages", Json::parse(R"([{"role":"user","content":"How are you today, my dear friend?"}])")}};
    std::string text = body.dump();
    text.pop_back();
    if (!system.empty()) text += ",\"system\":" + Json(system).dump();
    text += ",\"diagnostics\":{\"previous_message_id\":" + previous + "}}";
    const Json reply = server.post("/v1/messages", text).json();
    previous = reply["id"].dump();
    const Json& told = reply["diagnostics"];
    return told.is_null() ? Json() : told["cache_miss_reason"];
  };
  const std::string system = "Be brief and kind to all who come.";
  ask(system);
  EXPECT_TRUE(ask(system).is_null());
  server.exchange("POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(ask(system)["type"], "unavailable");
  EXPECT_TRUE(ask(system).is_null()) << "it is there again";
  EXPECT_EQ(ask("")["type"], "system_changed") << "the one before had one";
  EXPECT_EQ(ask(system)["type"], "system_changed");
}

TEST(CacheReport, TellsWhereAChainWasCompacted) {
  const TestServer server({}, engine_of(1200));
  Chain chain{server};
  chain.request["instructions"] = "Be brief and kind.";
  chain.request["context_management"] =
      Json::array({{{"type", "compaction"}, {"compact_threshold", 800}}});
  std::string previous = chain.say("This is turn 0.")["id"];
  int num_compacted = 0;
  for (int turn = 1; turn < 24; ++turn) {
    const Json reply = chain.say(fmt::format("This is turn {}, and no other.", turn));
    const Json& told = reply["prompt_cache_diagnostics"];
    const Json report = chain.report(reply);
    if (reply["output"][0]["type"] == "compaction") {
      ++num_compacted;
      EXPECT_EQ(told["reason"], "context_compacted") << told;
      EXPECT_EQ(report["nearest"]["id"], previous);
      EXPECT_EQ(report["divergence"]["class"], "truncated_history") << report;
      EXPECT_EQ(report["divergence"]["segment"], "summary");
      EXPECT_FALSE(report["divergence"].contains("message"));
      EXPECT_GT(reasons(report)["diverged"], 50);
    } else {
      EXPECT_EQ(told["type"], "cache_hit") << told;
    }
    previous = reply["id"];
  }
  EXPECT_GT(num_compacted, 1);
  // Instructions come before their summary.
  chain.request["instructions"] = "Be long and unkind.";
  const Json reply = chain.say("This is the last turn.");
  EXPECT_EQ(reply["prompt_cache_diagnostics"]["reason"], "input_changed");
  EXPECT_EQ(chain.report(reply)["divergence"]["class"], "changed_system_prompt");
}

// Farther apart than prompts are searched for what they share.
TEST(CacheReport, TellsWhereAWindowLeftOutThousandsOfTokens) {
  const TestServer server({}, engine_of(8000));
  Chain chain{server};
  chain.request["instructions"] = "Be brief and kind.";
  chain.request["larder"]["history"] = {{"strategy", "rolling_window"}, {"max_tokens", 6000}};
  const auto numbers = [](int begin, int end) {
    std::string text;
    for (int i = begin; i < end; ++i) text += fmt::format("{} ", i);
    return text;
  };
  chain.say(numbers(1000, 2000));
  const Json second = chain.say(numbers(2000, 2100));
  const Json third = chain.say(numbers(3000, 3100));
  EXPECT_EQ(third["larder"]["history"]["dropped_turns"], 1);
  EXPECT_EQ(third["prompt_cache_diagnostics"]["reason"], "context_compacted");
  const Json report = chain.report(third);
  EXPECT_EQ(report["nearest"]["id"], second["id"]);
  EXPECT_EQ(report["divergence"]["class"], "truncated_history") << report;
  EXPECT_EQ(report["divergence"]["segment"], "user");
  EXPECT_EQ(report["divergence"]["message"], 2) << "of the chain's items";
  EXPECT_GT(reasons(report)["diverged"], 500);
}

TEST(CacheReport, CountsItemsOfAResponse) {
  const TestServer server({}, engine_of(1200));
  Json request = {{"max_output_tokens", 2}, {"instructions", "Be brief and kind."}};
  request["input"] = Json::array({{{"role", "user"}, {"content", "What is bread made of?"}},
                                  {{"role", "assistant"}, {"content", "Of flour and of water."}},
                                  {{"role", "user"}, {"content", "And what is cake made of?"}}});
  const auto divergence = [&] {
    const Json reply = server.post("/v1/responses", request.dump()).json();
    return server.get("/v1/cache/requests/" + reply["id"].get<std::string>()).json()["divergence"];
  };
  EXPECT_TRUE(divergence().is_null());
  request["input"][0]["content"] = "What is a loaf made of?";
  const Json edited = divergence();
  EXPECT_EQ(edited["class"], "edited_history");
  EXPECT_EQ(edited["message"], 0) << edited;
  request["instructions"] = "Be long and unkind.";
  const Json changed = divergence();
  EXPECT_EQ(changed["class"], "changed_system_prompt");
  EXPECT_FALSE(changed.contains("message")) << changed;
}

TEST(CacheReport, ASummaryIsNoChangeOfTheSystemPrompt) {
  const TestServer server({}, engine_of(1200));
  MessagesChat chat{server};
  chat.request["system"] = "Be brief and kind.";
  chat.request["larder"]["history"] = {{"strategy", "summary"}, {"max_tokens", 800}};
  int num_compacted = 0;
  chat.say("This is turn 0.");
  for (int turn = 1; turn < 24; ++turn) {
    const Json reason = chat.say(fmt::format("This is turn {}, and no other.", turn));
    if (reason.is_null()) continue;
    ++num_compacted;
    EXPECT_EQ(reason, "messages_changed");
    EXPECT_EQ(chat.report["divergence"]["class"], "truncated_history") << chat.report;
    EXPECT_EQ(chat.report["divergence"]["segment"], "summary");
  }
  EXPECT_GT(num_compacted, 1);
  chat.request["system"] = "Be long and unkind.";
  EXPECT_EQ(chat.say("This is the last turn."), "system_changed");
  EXPECT_EQ(chat.report["divergence"]["class"], "changed_system_prompt") << chat.report;
  EXPECT_EQ(chat.report["divergence"]["segment"], "system");
}

// As Gemma 2's, where it stands in the user's first message.
TEST(CacheReport, KnowsTheSystemPromptThatATemplateRefuses) {
  const TestServer server({}, engine_of(1200),
                          "{% if messages[0]['role'] == 'system' %}"
                          "{{ raise_exception('System role not supported') }}{% endif %}"
                          "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
                          "{{ message['content'] }}<|im_end|>\n{% endfor %}");
  MessagesChat chat{server};
  chat.request["system"] = "You are a baker who is kind to all who come.";
  chat.say("What is bread made of?");
  EXPECT_TRUE(chat.say("And what is cake made of?").is_null());
  chat.request["system"] = "You are a carpenter who is kind to all who come.";
  EXPECT_EQ(chat.say("And a table?"), "system_changed");
  EXPECT_EQ(chat.report["divergence"]["class"], "changed_system_prompt") << chat.report;
  EXPECT_EQ(chat.report["divergence"]["segment"], "system");
  EXPECT_FALSE(chat.report["divergence"].contains("message")) << "it is beside the messages";
  chat.request["messages"][0]["content"] = "What is a loaf made of?";
  EXPECT_EQ(chat.say("And a chair?"), "messages_changed");
  EXPECT_EQ(chat.report["divergence"]["class"], "edited_history") << chat.report;
  EXPECT_EQ(chat.report["divergence"]["segment"], "user");
  EXPECT_EQ(chat.report["divergence"]["message"], 0);
}

TEST(CacheReport, SaltsOfOneKeyAreToldApart) {
  TestServer server;
  const auto ask = [&](const std::string& salt) {
    const std::string more = fmt::format(R"({},"cache_salt":"{}")", kReport, salt);
    const std::string body = chat("Be brief and kind to all.", "Hello there, friend.", more);
    return server.post("/v1/chat/completions", body).json()["larder"]["cache"];
  };
  ask("one");
  const Json other = ask("two");
  EXPECT_GT(reasons(other)["other_salt"], 60);
  EXPECT_TRUE(other["nearest"].is_null());
  EXPECT_TRUE(other["divergence"].is_null());
}

TEST(CacheReport, KeysNeverHearOfEachOther) {
  ServerConfig config;
  config.api_keys = {"alpha", "beta"};
  TestServer server(config);
  const auto ask = [&](const std::string& key) {
    return server
        .post("/v1/chat/completions", chat("Be brief and kind to all.", "Hello there.", kReport),
              "Authorization: Bearer " + key + "\r\n")
        .json()["larder"]["cache"];
  };
  const auto num_listed = [&](const std::string& key) {
    const auto list = server.get("/v1/cache/requests", "Authorization: Bearer " + key + "\r\n");
    return list.json()["data"].size();
  };
  const Json first = ask("alpha");
  EXPECT_EQ(num_listed("beta"), 0u);
  EXPECT_EQ(num_listed("alpha"), 1u);
  const Json other = ask("beta");
  EXPECT_EQ(other["cached_tokens"], 0);
  EXPECT_TRUE(other["nearest"].is_null());
  // Word for word what it would be, had the first one never asked.
  EXPECT_EQ(other["misses"], first["misses"]);
  const std::string id = first["id"];
  const auto status = [&](const std::string& key) {
    return server.get("/v1/cache/requests/" + id, "Authorization: Bearer " + key + "\r\n").status;
  };
  EXPECT_EQ(status("beta"), 404);
  EXPECT_EQ(status("alpha"), 200);
}

TEST(CacheReport, KeysOfAGroupShareTheirCache) {
  ServerConfig config;
  config.api_keys = {"alpha", "beta", "gamma"};
  config.api_key_groups = {{"alpha", "team"}, {"beta", "team"}};
  TestServer server(config);
  const auto cached = [&](const std::string& key) {
    const Json reply = server
                           .post("/v1/chat/completions", chat("Be brief and kind.", "Hello there."),
                                 "Authorization: Bearer " + key + "\r\n")
                           .json();
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached("alpha"), 0);
  EXPECT_GT(cached("beta"), 40);
  EXPECT_EQ(cached("gamma"), 0);
}

TEST(CacheReport, NormalisesOnRequest) {
  TestServer server;
  const auto ask = [&](const char* nonce) {
    const std::string system =
        fmt::format("x-anthropic-billing-header: cch={};\nYou are a clerk who is brief.", nonce);
    return server
        .post("/v1/chat/completions",
              chat(system, "Hello there.",
                   R"(,"larder":{"cache_report":true,"normalise":["nonce_headers"]})"))
        .json()["larder"]["cache"];
  };
  EXPECT_EQ(ask("1a2b3")["normalised"].dump(), R"(["nonce_headers"])");
  const Json second = ask("9f8e7");
  EXPECT_EQ(second["cached_tokens"].get<int>(), second["prompt_tokens"].get<int>() - 1);
  const auto refused = server.post("/v1/chat/completions",
                                   chat("a", "b", R"(,"larder":{"normalise":["spaces"]})"));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.param(), "larder.normalise");
}

TEST(CacheReport, ASchemaThatRefersToItselfIsText) {
  EngineConfig engine = TestServer::default_engine();
  engine.max_model_len = 2000;
  const TestServer server({}, engine);
  const auto answer = server.post(
      "/v1/chat/completions",
      chat("Be brief.", "Hello there.",
           R"(,"tools":[{"type":"function","function":{"parameters":{"$ref":"#"},"name":"f"}}],)"
           R"("larder":{"cache_report":true,"normalise":["all"]})"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["larder"]["cache"]["normalised"].dump(), R"(["tool_keys"])");
}

TEST(CacheReport, SpeaksBothVendorsWords) {
  CacheReport report;
  EXPECT_TRUE(openai_diagnostics(report).is_null());
  EXPECT_TRUE(anthropic_diagnostics(report).is_null());
  using Outcome = RequestedComparison::Outcome;
  report.requested = {.outcome = Outcome::kMiss, .num_reusable = 20, .num_missed = 30,
                      .tools_changed = true, .system_changed = true};
  EXPECT_EQ(openai_diagnostics(report).dump(),
            R"({"type":"cache_miss","reason":"tools_changed","cache_missed_tokens":30,)"
            R"("comparison_reusable_tokens":20})");
  EXPECT_EQ(anthropic_diagnostics(report).dump(),
            R"({"cache_miss_reason":{"type":"tools_changed","cache_missed_input_tokens":30}})");
  report.requested->tools_changed = false;
  EXPECT_EQ(openai_diagnostics(report)["reason"], "input_changed");
  EXPECT_EQ(anthropic_diagnostics(report)["cache_miss_reason"]["type"], "system_changed");
  report.requested->effort_changed = true;
  EXPECT_EQ(openai_diagnostics(report)["reason"], "input_changed");
  report.requested->system_changed = false;
  EXPECT_EQ(openai_diagnostics(report)["reason"], "reasoning_effort_changed");
  EXPECT_EQ(anthropic_diagnostics(report).dump(), R"({"cache_miss_reason":{"type":"unavailable"}})");
  report.requested->effort_changed = false;
  EXPECT_EQ(anthropic_diagnostics(report)["cache_miss_reason"]["type"], "messages_changed");
  report.requested->outcome = Outcome::kHit;
  EXPECT_EQ(openai_diagnostics(report)["type"], "cache_hit");
  EXPECT_TRUE(anthropic_diagnostics(report).is_null());
  report.requested->outcome = Outcome::kNotFound;
  EXPECT_EQ(openai_diagnostics(report)["type"], "comparison_response_not_found");
  EXPECT_EQ(anthropic_diagnostics(report)["cache_miss_reason"]["type"],
            "previous_message_not_found");
}

}  // namespace
}  // namespace larder
