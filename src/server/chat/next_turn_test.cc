#include "server/chat/next_turn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/heap_test_support.h"
#include "server/chat/prompt.h"
#include "server/server_test_support.h"
#include "tokenizer/jinja/chat_test_support.h"

namespace larder {
namespace {

std::string load_template(const std::string& name) {
  std::ifstream file(LARDER_SOURCE_DIR "/tests/golden/chat_template/templates/" + name + ".jinja", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

class NextTurnTest : public testing::Test {
 protected:
  ServedModel with(const ChatTemplate& chat_template) {
    const ServedModel& model = server_.model();
    return {.name = "tiny",
            .tokenizer = model.tokenizer,
            .chat_template = chat_template,
            .engine = model.engine,
            .max_model_len = 100'000};
  }

  static ChatRequest asked(const std::vector<Json>& messages) {
    ChatRequest chat;
    chat.messages = messages_of(messages);
    chat.options.tool_calls.parts_thoughts = true;
    return chat;
  }

  // What is computed ahead once a chat of one question was answered so.
  std::string ahead(const ServedModel& model, const std::string& answer, const GenerationOptions& options,
                    Json kwargs = nullptr) {
    ChatRequest chat = asked({message("user", "Why?")});
    chat.template_kwargs = std::move(kwargs);
    auto turn = keep(std::move(chat), options);
    if (turn == nullptr) return "nothing is kept";
    turn->answer = answer;
    const auto expected = begin_next_turn(std::move(*turn), answers_, model);
    if (!expected) return "nothing";
    EXPECT_EQ(expected->salt, "salt");
    return spelled(expected->prompt);
  }
  std::unique_ptr<NextTurn> keep(ChatRequest chat, const GenerationOptions& options) {
    return keep_for_next_turn(std::move(chat), {.options = options, .salt = "salt", .prompt = {}}, budget_);
  }
  std::string spelled(const std::vector<TokenId>& tokens) {
    StreamDecoder decoder(server_.model().tokenizer, true);
    std::string text;
    for (const TokenId token : tokens) text += decoder.push(token);
    return text + decoder.finish();
  }

  TestServer server_;
  HistoryTokens answers_{1 << 20};
  MemoryBudget budget_{1 << 20};
};

TEST_F(NextTurnTest, IsWhatTheNextPromptBeginsWith) {
  for (const char* name : {"qwen3", "smollm3", "deepseek-r1-distill", "glm4.6", "qwq", "chatml"}) {
    const ChatTemplate chat_template(load_template(name));
    const ServedModel model = with(chat_template);
    GenerationOptions options;
    options.tool_calls.parts_thoughts = true;
    const std::string begun = ahead(model, "<think>\nHm.\n</think>\n\nBecause.", options);
    ASSERT_NE(begun.find("Because."), std::string::npos) << name << ": " << begun;
    EXPECT_EQ(begun.find("Hm."), std::string::npos) << name << ": " << begun;
    ChatRequest next = asked({message("user", "Why?"), message("assistant", "Because."), message("user", "How so?")});
    EXPECT_TRUE(spelled(encode_chat(next, model).tokens).starts_with(begun)) << name << ": " << begun;
  }
  EXPECT_EQ(budget_.used(), 0u);
}

TEST_F(NextTurnTest, AThoughtThatTheTemplateBeganWithIsNotInIt) {
  const ChatTemplate chat_template(load_template("qwen3"));
  const std::string begun = ahead(with(chat_template), "Because.", {}, {{"enable_thinking", false}});
  EXPECT_TRUE(begun.ends_with("<|im_start|>assistant\nBecause.")) << begun;
}

constexpr const char* kCall = "<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

GenerationOptions calls() {
  GenerationOptions options;
  options.tool_calls = {.are_read = true, .parts_thoughts = true};
  return options;
}

TEST_F(NextTurnTest, CallsAreWhatTheirResultsFollow) {
  for (const char* name : {"qwen3", "glm4.6", "qwq"}) {
    const ChatTemplate chat_template(load_template(name));
    const ServedModel model = with(chat_template);
    const std::string begun = ahead(model, kCall, calls());
    EXPECT_EQ(begun.find("Hm."), std::string::npos) << name << ": " << begun;
    Json call = message("assistant", "");
    call["content"] = nullptr;
    call["tool_calls"] = {{{"id", "call_1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}}};
    Json result = message("tool", "42");
    result["tool_call_id"] = "call_1";
    const std::string next = spelled(encode_chat(asked({message("user", "Why?"), call, result}), model).tokens);
    EXPECT_TRUE(next.starts_with(begun)) << name << ": " << begun << "\n" << next;
    EXPECT_NE(begun.find("<tool_call>"), std::string::npos) << name << ": " << begun;
  }
}

TEST_F(NextTurnTest, WhatIsNotKnownIsNotPrepared) {
  const ChatTemplate chat_template(load_template("qwen3"));
  const ServedModel model = with(chat_template);
  ChatRequest adapted = asked({message("user", "Why?")});
  adapted.adapted_tools = Json::array();
  adapted.options.tool_calls.are_read = true;
  auto turn = keep(std::move(adapted), calls());
  turn->answer = kCall;
  EXPECT_FALSE(begin_next_turn(std::move(*turn), answers_, model));
  GenerationOptions options;
  options.best_of = 2;
  EXPECT_EQ(ahead(model, "a", options), "nothing is kept");
  options = {};
  options.attention.window = 64;
  EXPECT_EQ(ahead(model, "a", options), "nothing is kept");
  const auto keeps = [&](const auto& change) {
    ChatRequest chat = asked({message("user", "Why?")});
    change(chat);
    return keep(std::move(chat), {}) != nullptr;
  };
  EXPECT_TRUE(keeps([](ChatRequest&) {}));
  EXPECT_FALSE(keeps([](ChatRequest& chat) { chat.num_dropped = 1; }));
  EXPECT_FALSE(keeps([](ChatRequest& chat) { chat.continue_final_message = true; }));
  EXPECT_FALSE(keeps([](ChatRequest& chat) { chat.has_moved_time = true; }));
  EXPECT_FALSE(keeps([](ChatRequest& chat) { chat.messages[0].json["content"] = std::string(2 << 20, 'a'); })) << "too large";
  EXPECT_EQ(budget_.used(), 0u);
}

// Of what is kept until the answer is there.
TEST_F(NextTurnTest, AllThatIsKeptCounts) {
  const auto num_bytes = [&](const auto& change) {
    ChatRequest chat = asked({message("user", "Why?")});
    change(chat);
    const auto turn = keep(std::move(chat), {});
    EXPECT_NE(turn, nullptr);
    return budget_.used();
  };
  const std::size_t least = num_bytes([](ChatRequest&) {});
  if (is_heap_known()) {
    Json many = Json::array();
    for (int i = 0; i < 10'000; ++i) many.push_back(Json::array());
    (void)Json{{"x", many}};  // what the C library keeps ready of that size counts as in use
    const std::int64_t before = heap_in_use();
    const Json kwargs = {{"x", many}};
    const auto taken = static_cast<std::size_t>(heap_in_use() - before);
    // Where the heap is in pieces, some are given whole that are larger by 16 bytes, too few for one of their own.
    EXPECT_GE(num_bytes([&](ChatRequest& chat) { chat.template_kwargs = kwargs; }) + taken / 100, taken);
  }
  EXPECT_GE(num_bytes([](ChatRequest& chat) { chat.messages[0].parts.resize(5000); }),
            least + 5000 * sizeof(ContentPart));
  EXPECT_GE(num_bytes([](ChatRequest& chat) { chat.messages.reserve(1000); }), least + 999 * sizeof(ChatMessage));
  EXPECT_GE(num_bytes([](ChatRequest& chat) {
              chat.known_turns.push_back({.tokens = std::make_shared<const std::vector<TokenId>>(1000)});
            }),
            least + 4000);
  EXPECT_EQ(budget_.used(), 0u);
}

// They are recalled by the answers' table once more, as far as that has them.
TEST_F(NextTurnTest, TokensOfAnswersAreDroppedWhereThereIsNoRoomForThem) {
  const ChatTemplate chat_template(load_template("chatml"));
  ChatRequest chat = asked({message("user", "Why?"), message("assistant", "Because."), message("user", "How so?")});
  const std::vector<TokenId> generated = server_.model().tokenizer.encode("Bec", false, false);
  std::vector<TokenId> apart = generated;
  for (const char* rest : {"a", "use", "."}) {
    const auto more = server_.model().tokenizer.encode(rest, false, false);
    apart.insert(apart.end(), more.begin(), more.end());
  }
  answers_.remember("salt", HistoryTokens::digest_of(chat.messages[0].json), "Because.", apart);
  chat.known_turns.push_back({.message = 1, .tokens = std::make_shared<const std::vector<TokenId>>(1 << 20)});
  auto turn = keep(std::move(chat), {});
  ASSERT_NE(turn, nullptr);
  EXPECT_TRUE(turn->chat.known_turns.empty());
  turn->answer = "So.";
  const auto expected = begin_next_turn(std::move(*turn), answers_, with(chat_template));
  ASSERT_TRUE(expected);
  EXPECT_FALSE(std::ranges::search(expected->prompt, apart).empty());
  turn.reset();
  EXPECT_EQ(budget_.used(), 0u);
}

TEST_F(NextTurnTest, WhichTemplatesPrintAnswersAnew) {
  for (const char* name : {"qwen3", "deepseek-r1-distill", "smollm3"}) {
    const ChatTemplate chat_template(load_template(name));
    EXPECT_TRUE(may_reprint_answers(probe_template(chat_template), server_.model().tokenizer)) << name;
  }
  for (const char* name : {"chatml", "smollm2", "gemma3", "llama3.1", "zephyr"}) {
    const ChatTemplate chat_template(load_template(name));
    EXPECT_FALSE(may_reprint_answers(probe_template(chat_template), server_.model().tokenizer)) << name;
  }
  const ChatTemplate own("{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}(go){% endif %}");
  EXPECT_TRUE(may_reprint_answers(probe_template(own), server_.model().tokenizer));
}

// The template begins an answer with what it does not print of it later.
constexpr const char* kOwnTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n[no thought]{% endif %}";

int num_cached_of_second_turn(bool anticipates) {
  ServerConfig config;
  config.anticipates = anticipates;
  TestServer server(config, TestServer::default_engine(), kOwnTemplate);
  Json body = {{"model", "tiny"}, {"max_tokens", 40}, {"temperature", 0}, {"ignore_eos", true}};
  body["messages"] = Json::array({message("user", "Why is that so, and what of it?")});
  const Json first = server.post("/v1/chat/completions", dump_json(body)).json();
  const std::string answer = first["choices"][0]["message"]["content"];
  if (anticipates) {
    EXPECT_TRUE(eventually([&] { return server.engine().stats().num_anticipated_tokens > 0; }));
    EXPECT_TRUE(server.becomes_idle());
  }
  body["messages"].push_back(message("assistant", answer));
  body["messages"].push_back(message("user", "More."));
  const Json second = server.post("/v1/chat/completions", dump_json(body)).json();
  return second["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
}

TEST(NextTurnServerTest, AnAnswerIsFoundWhereItsTemplatePrintsItAnew) {
  const int without = num_cached_of_second_turn(false);
  EXPECT_GE(num_cached_of_second_turn(true), without + 40);
}

}  // namespace
}  // namespace larder
