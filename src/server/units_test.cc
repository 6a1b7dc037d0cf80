// The small parts: mailbox, keys and salts, the log line, what replies need of UTF-8, where their tokens begin.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "server/api/auth.h"
#include "server/api/reply_writer.h"
#include "server/http/endpoint.h"
#include "server/http_message.h"
#include "server/mailbox.h"
#include "server/memory_budget.h"
#include "server/report/stats_log.h"
#include "server/server_test_support.h"
#include "server/utf8.h"

namespace larder {
namespace {

RequestUpdate update_of(int num_tokens) {
  RequestUpdate update;
  update.tokens.resize(static_cast<std::size_t>(num_tokens));
  return update;
}

TEST(Mailbox, WakesOncePerDrainAndOnceMoreWhenItOverflows) {
  int num_wakes = 0;
  Mailbox mailbox([&] { ++num_wakes; }, 2000);
  mailbox.push(0, update_of(1));
  mailbox.push(1, update_of(1));
  EXPECT_EQ(num_wakes, 1);
  EXPECT_EQ(mailbox.pop()->prompt, 0);
  EXPECT_EQ(mailbox.pop()->prompt, 1);
  EXPECT_FALSE(mailbox.pop().has_value());
  EXPECT_EQ(mailbox.size_bytes(), 0u);
  mailbox.push(0, update_of(1));
  EXPECT_EQ(num_wakes, 2);
  mailbox.push(0, update_of(100));
  mailbox.push(0, update_of(100));
  EXPECT_EQ(num_wakes, 3);
  EXPECT_GT(mailbox.size_bytes(), 2000u);
  mailbox.close();
  mailbox.push(0, update_of(1));
  EXPECT_EQ(num_wakes, 3);
  EXPECT_FALSE(mailbox.pop().has_value());
}

TEST(ApiKeys, MatchWholeKeysOnly) {
  const ApiKeys keys({"abc", ""});
  EXPECT_TRUE(keys.match("Bearer abc").has_value());
  EXPECT_TRUE(keys.match("bearer abc").has_value());
  for (const char* wrong :
       {"", "abc", "Bearer", "Bearer ", "Bearer ab", "Bearer abcd", "Bearer  abc", "Basic abc"}) {
    EXPECT_FALSE(keys.match(wrong).has_value()) << wrong;
  }
}

TEST(ApiKeys, MatchWithoutAScheme) {
  const ApiKeys keys({"abc"});
  EXPECT_EQ(keys.match_key("abc"), keys.match("Bearer abc"));
  EXPECT_FALSE(keys.match_key("").has_value());
  EXPECT_FALSE(keys.match_key("Bearer abc").has_value());
}

TEST(ApiKeys, OfAFile) {
  const std::string path = fmt::format("{}larder_keys_{}", testing::TempDir(), ::getpid());
  std::vector<std::string> keys = {"given"};
  std::map<std::string, std::string> groups;
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    read_api_keys(path, keys, groups);
  };
  read("\xEF\xBB\xBF# ours\r\n\n  first\t# of one\r\n\tsecond \t team # A's\r\n \t \n  # no key\nth#rd\t");
  EXPECT_EQ(keys, (std::vector<std::string>{"given", "first", "second", "th#rd"}));
  EXPECT_EQ(groups, (std::map<std::string, std::string>{{"second", "team"}}));
  // Nobody asks for keys and means none.
  for (const char* text : {"", "# key\n", " \n\t\r\n"}) EXPECT_THROW(read(text), Error) << text;
  EXPECT_EQ(keys.size(), 4u);
  EXPECT_THROW(read("second other team"), Error);
  std::filesystem::remove(path);
  EXPECT_THROW(read_api_keys(path, keys, groups), Error);
}

TEST(Endpoint, IsAnAddressThatOthersReachOnlyOnPurpose) {
  ServerConfig config;
  config.host = "localhost";
  EXPECT_EQ(endpoint_of(config).address().to_string(), "127.0.0.1");
  EXPECT_EQ(endpoint_of(config).port(), 8000);
  config.host = "example.com";
  EXPECT_THROW(endpoint_of(config), Error);
  config.host = "0.0.0.0";
  EXPECT_THROW(endpoint_of(config), Error);
  config.allow_open_network = true;
  EXPECT_EQ(endpoint_of(config).address().to_string(), "0.0.0.0");
  config.allow_open_network = false;
  config.api_keys = {"k"};
  EXPECT_EQ(endpoint_of(config).address().to_string(), "0.0.0.0");
  config.api_keys = {"k", ""};
  EXPECT_THROW(endpoint_of(config), Error);
}

TEST(ApiError, TakesTheShapeOfWhoAsks) {
  HttpRequest request;
  request.path = "/v1/messagesx";
  const ApiError error{.status = 503, .code = "busy", .message = "later"};
  const HttpResponse openai = error_response(error, request);
  EXPECT_EQ(openai.status, 503);
  EXPECT_EQ(parse_json(openai.body, {})["error"]["code"], "busy");
  request.path = "/v1/messages/count_tokens";
  const HttpResponse anthropic = error_response(error, request);
  EXPECT_EQ(anthropic.status, 529);
  const Json body = parse_json(anthropic.body, {});
  EXPECT_EQ(body["type"], "error");
  EXPECT_EQ(body["error"], (Json{{"type", "overloaded_error"}, {"message", "later"}}));
  const std::pair<std::string, std::string> header("request-id", body["request_id"]);
  EXPECT_EQ(anthropic.headers.back(), header);
  request.path = "/v1/models/none";
  EXPECT_EQ(error_response(error, request).status, 503);
  request.anthropic_version = "2023-06-01";
  EXPECT_EQ(error_response(error, request).status, 529);
}

TEST(ApiError, HasTheWholeMessage) {
  const std::string message("a\0b", 3);
  EXPECT_EQ(to_api_error(Error(ErrorKind::kInvalidArgument, message)).message, message);
}

TEST(Salt, DependsOnKeyAndClient) {
  const auto a = ApiKeys({"a"}).match("Bearer a"), b = ApiKeys({"b"}).match("Bearer b");
  EXPECT_EQ(derive_salt(std::nullopt, ""), "");
  EXPECT_NE(derive_salt(std::nullopt, "x"), "");
  EXPECT_NE(derive_salt(a, ""), derive_salt(b, ""));
  EXPECT_NE(derive_salt(a, "x"), derive_salt(b, "x"));
  EXPECT_NE(derive_salt(a, "x"), derive_salt(a, "y"));
  EXPECT_EQ(derive_salt(a, "x"), derive_salt(a, "x"));
  EXPECT_EQ(derive_salt(a, "x").size(), 32u);
}

TEST(Salt, IsCommonToKeysOfOneCache) {
  const auto a = ApiKeys({"a"}).match("Bearer a");
  EXPECT_EQ(ApiKeys({}).common_salt(), "");
  EXPECT_EQ(ApiKeys({"a"}).common_salt(), derive_salt(a, ""));
  EXPECT_EQ(ApiKeys({"a", "b"}).common_salt(), "");
  const ApiKeys grouped({"a", "b"}, {{"a", "team"}, {"b", "team"}});
  EXPECT_EQ(grouped.common_salt(), derive_salt(grouped.cache_owner(*a), ""));
  EXPECT_NE(grouped.common_salt(), "");
  EXPECT_EQ(ApiKeys({"a", "b"}, {{"a", "team"}}).common_salt(), "");
}

TEST(MemoryBudget, SharesAreGivenBack) {
  MemoryBudget budget(100);
  {
    BudgetShare share(budget);
    EXPECT_TRUE(share.grow(60));
    BudgetShare other(budget);
    EXPECT_FALSE(other.grow(41));
    EXPECT_TRUE(other.grow(40));
  }
  EXPECT_EQ(budget.used(), 0u);
}

TEST(StatsLog, SpeaksWhileBusyAndOnceAfter) {
  StatsLog log;
  EngineStats stats;
  EXPECT_FALSE(log.line(stats, 5).has_value());
  stats.num_prompt_tokens = 50;
  stats.num_generated_tokens = 10;
  stats.num_prefix_queries = 50;
  stats.num_prefix_hits = 25;
  stats.num_running = 2;
  stats.kv.num_blocks = 10;
  stats.kv.num_held = 5;
  EXPECT_EQ(
      log.line(stats, 5),
      "Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
      "Running: 2 reqs, Waiting: 0 reqs, KV cache usage: 50.0%, Prefix cache hit rate: 50.0%");
  stats.num_running = 0;
  EXPECT_TRUE(log.line(stats, 5).has_value());
  EXPECT_FALSE(log.line(stats, 5).has_value());
}

TEST(Utf8, RepairsAndCounts) {
  EXPECT_EQ(to_valid_utf8("a\xFF"
                          "b\xC3\xA9"),
            "a\xEF\xBF\xBD"
            "b\xC3\xA9");
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98"), "\xEF\xBF\xBD");
  EXPECT_EQ(count_characters("aé😀"), 3u);
}

// A token of the answer, with what it adds to the text.
struct Piece {
  TokenId token;
  std::string text;
};

// The text_offset of an echoed prompt of two tokens and of the pieces, from a whole reply or from a stream's chunks.
Json offsets_of(const Tokenizer& tokenizer, std::span<const Piece> pieces, bool streams) {
  const auto writer = make_completion_writer("m", tokenizer, {{.text = "\u00e9<|im_end|>", .offsets = {0, 1}}});
  GenerationOptions options;
  options.sampling.num_logprobs = 0;
  writer->set_options(options);
  writer->set_prompts({{1, 97}});
  std::vector<Choice> choices;
  Choice& choice = choices.emplace_back(TextStream(tokenizer, {}));
  choice.decoder.emplace(tokenizer);
  choice.finish = FinishReason::kLength;
  choice.prompt_logprobs = std::make_shared<std::vector<OutputToken>>(1, OutputToken{.token = 97, .logprob = 0, .best = {}});
  for (const auto& [token, text] : pieces) {
    choice.tokens.emplace_back().token = token;
    choice.text += text;
  }
  if (!streams) {
    Choice* shown[] = {&choice};
    return parse_json(writer->whole(shown, choices), {})["choices"][0]["logprobs"]["text_offset"];
  }
  Json offsets = Json::array();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    ChoiceDelta delta{.text = pieces[i].text, .tokens = {choice.tokens[i]}};
    if (i == 0) delta.prompt_logprobs = choice.prompt_logprobs;
    std::string event;
    writer->delta(choice, std::move(delta), choices, event);
    const Json chunk = parse_json(event.substr(6), {});
    for (const Json& offset : chunk["choices"][0]["logprobs"]["text_offset"]) offsets.push_back(offset);
  }
  return offsets;
}

TEST(CompletionWriter, OffsetsAreOfTheTextThatIsShown) {
  Vocabulary vocabulary = tiny_vocabulary();
  vocabulary.tokens[98] = "\u00c3";  // the bytes of an e with an accent
  vocabulary.tokens[99] = "\u00a9";
  const Tokenizer tokenizer(vocabulary);
  const TokenId a = 'a' - '!';
  // Behind the echo's eleven characters; the special token is not shown.
  const Piece pieces[] = {{a, "a"}, {98, ""}, {99, "\u00e9"}, {96, ""}, {a, "a"}, {a, "a"}};
  for (const bool streams : {false, true}) {
    EXPECT_EQ(offsets_of(tokenizer, pieces, streams), Json({0, 1, 11, 12, 12, 13, 13, 14})) << streams;
  }
}

}  // namespace
}  // namespace larder
