// From blocks of a request to places in the prompt, with templates of published models.
#include "server/api/openai_request.h"
#include "server/chat/cache_marks.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "server/api/anthropic_request.h"
#include "server/chat/tool_prompt.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

const ServerLimits kLimits;
const RequestRules kRules{.limits = kLimits, .vocab_size = 128, .max_model_len = 100'000};

ChatTemplate load_template(const std::string& name) {
  std::ifstream file(LARDER_SOURCE_DIR "/tests/golden/chat_template/templates/" + name + ".jinja",
                     std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return ChatTemplate({std::istreambuf_iterator<char>(file), {}});
}

// The prompt's text up to each breakpoint, by a vocabulary of single characters.
std::vector<std::string> prefixes(ChatRequest request, const std::string& template_name) {
  const ChatTemplate chat_template = load_template(template_name);
  const Tokenizer tokenizer(tiny_vocabulary());
  adapt_chat(request, probe_template(chat_template));
  TemplateInput input;
  input.messages = request.messages;
  input.tools = request.tools;
  const RenderedPrompt prompt = chat_template.render(input);
  const Encoding encoding = tokenizer.encode(prompt.text, prompt.spans, false);
  std::vector<std::string> found;
  for (const PromptPin& pin : place_marks(request.marks, prompt, encoding)) {
    found.push_back(tokenizer.decode(
        std::span(encoding.tokens).first(static_cast<std::size_t>(pin.num_tokens)), true));
  }
  return found;
}

ChatRequest messages_request(const std::string& fields) {
  return parse_messages_request(parse_json(R"({"max_tokens":1,)" + fields + "}", {}), kRules);
}

const std::string kMark = R"("cache_control":{"type":"ephemeral"})";

std::string block(const std::string& text, bool is_marked) {
  return R"({"type":"text","text":")" + text + "\"" + (is_marked ? "," + kMark : "") + "}";
}

TEST(CacheMarks, EndWhereTheirBlockEnds) {
  const ChatRequest request = messages_request(
      R"("system":[)" + block("Answer in one word.", true) + R"(],"messages":[{"role":"user","content":[)" +
      block("First text.", true) + "," + block("Second text.", false) +
      R"(]},{"role":"assistant","content":"Yes."},{"role":"user","content":[)" +
      block("Third text.", true) + "]}]");
  EXPECT_EQ(prefixes(request, "smollm2"),
            (std::vector<std::string>{
                "<|im_start|>system\nAnswer in one word.",
                "<|im_start|>system\nAnswer in one word.<|im_end|>\n<|im_start|>user\nFirst text.",
                "<|im_start|>system\nAnswer in one word.<|im_end|>\n<|im_start|>user\nFirst text.\n"
                "Second text.<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\n"
                "Third text."}));
}

// Gemma's template trims contents and puts the system prompt into the first turn.
TEST(CacheMarks, StandInTrimmedContents) {
  const ChatRequest request = messages_request(
      R"("system":[)" + block("Be brief, please.", true) + R"(],"messages":[{"role":"user","content":[)" +
      block("  \\n First text. ", true) + "," + block(" Second text.\\n\\n ", true) + "]}]");
  const std::string turn = "<start_of_turn>user\nBe brief, please.\n\n";
  EXPECT_EQ(prefixes(request, "gemma3"),
            (std::vector<std::string>{"<start_of_turn>user\nBe brief, please.", turn + "First text. ",
                                      turn + "First text. \n Second text."}));
}

TEST(CacheMarks, AWhollyTrimmedBlockEndsWithTheOneBefore) {
  const ChatRequest request =
      messages_request(R"("messages":[{"role":"user","content":[)" + block("First text, long.", true) +
                       "," + block("\\n ", true) + "]}]");
  EXPECT_EQ(prefixes(request, "gemma3"),
            (std::vector<std::string>{"<start_of_turn>user\nFirst text, long."}));
}

TEST(CacheMarks, TooShortOnesAreLeftOut) {
  const std::string content = R"("messages":[{"role":"user","content":[)";
  const auto request = [&](const std::string& text) {
    return messages_request(content + block(text, true) + "]}]");
  };
  // This template puts 9 characters before the text.
  EXPECT_EQ(prefixes(request("123456"), "zephyr").size(), 0u);
  EXPECT_EQ(prefixes(request("1234567"), "zephyr"),
            (std::vector<std::string>{"<|user|>\n1234567"}));
}

const std::string kTools =
    R"("tools":[{"name":"f","input_schema":{"type":"object"}},{"name":"g","description":"G.",)"
    R"("input_schema":{"type":"object"},"cache_control":{"type":"ephemeral","ttl":"1h"}}])";

TEST(CacheMarks, OfToolsThatTheTemplatePrints) {
  const ChatRequest request =
      messages_request(kTools + R"(,"system":[)" + block("Use tools.", true) +
                       R"(],"messages":[{"role":"user","content":"Hi."}])");
  const auto found = prefixes(request, "qwen2.5");
  ASSERT_EQ(found.size(), 1u);  // tools stand behind the system prompt: one place
  EXPECT_TRUE(found[0].starts_with("<|im_start|>system\nUse tools.\n\n# Tools")) << found[0];
  EXPECT_TRUE(found[0].ends_with(R"("description": "G.", "parameters": {"type": "object"}}})"))
      << found[0];
}

TEST(CacheMarks, OfToolsAsText) {
  const ChatRequest request =
      messages_request(kTools + R"(,"messages":[{"role":"user","content":[)" + block("Hi.", true) + "]}]");
  for (const char* name : {"smollm2", "gemma3"}) {
    const auto found = prefixes(request, name);
    ASSERT_EQ(found.size(), 2u) << name;
    EXPECT_NE(found[0].find("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\""),
              std::string::npos)
        << found[0];
    EXPECT_TRUE(found[0].ends_with("\n</tool_call>")) << found[0];
    EXPECT_TRUE(found[1].ends_with("user\nHi.") || found[1].ends_with("</tool_call>\n\nHi."))
        << found[1];
  }
}

TEST(CacheMarks, OfCallsAndResults) {
  const ChatRequest request = messages_request(
      R"("messages":[{"role":"user","content":"Time?"},{"role":"assistant","content":[)" +
      block("Let me see.", false) + R"(,{"type":"tool_use","id":"t1","name":"f","input":{"a":1},)" +
      kMark + R"(},{"type":"tool_use","id":"t2","name":"g","input":{}}]},{"role":"user","content":[)"
      R"({"type":"tool_result","tool_use_id":"t1","content":"noon"},{"type":"tool_result",)"
      R"("tool_use_id":"t2","content":[)" + block("night", false) + "]," + kMark + "}," +
      block("Well?", true) + "]}]");
  const auto found = prefixes(request, "gemma3");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_TRUE(found[0].ends_with("model\nLet me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
                                 "{\"a\": 1}}\n</tool_call>"))
      << found[0];
  EXPECT_TRUE(found[1].ends_with("user\n<tool_response>\nnoon\n</tool_response>\n<tool_response>\n"
                                 "night\n</tool_response>"))
      << found[1];
  EXPECT_TRUE(found[2].ends_with("</tool_response>\nWell?")) << found[2];
  // Hermes' template has its own way for all of these.
  const auto hermes = prefixes(request, "qwen2.5");
  ASSERT_EQ(hermes.size(), 3u);
  EXPECT_TRUE(hermes[0].ends_with("{\"name\": \"f\", \"arguments\": {\"a\": 1}")) << hermes[0];
  EXPECT_TRUE(hermes[1].ends_with("night")) << hermes[1];
}

TEST(CacheMarks, OpenAiPartsAreMarkedToo) {
  const Json body = parse_json(
      R"({"prompt_cache_options":{"mode":"explicit"},"messages":[{"role":"user","content":[
          {"type":"text","text":"First text.","prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}},
          {"type":"text","text":"Second."}]}]})",
      {});
  const ChatRequest request = parse_chat_request(body, kRules);
  EXPECT_FALSE(request.options.marks_whole_prompt);
  ASSERT_EQ(request.marks.size(), 1u);
  EXPECT_EQ(request.marks[0].ttl_s, 12 * 3600);
  const auto found = prefixes(request, "gemma3");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], "<start_of_turn>user\nFirst text.");
}

// OpenAI's rule; Anthropic's clients are told of a fifth one.
TEST(CacheMarks, OfOpenAisTheLatestFourCountWithTheImplicitOne) {
  const TestServer server;
  const auto texts_of = [&](const char* mode) {
    Json content = Json::array();
    for (int i = 0; i < 9; ++i) {
      content.push_back({{"type", "text"}, {"text", fmt::format("Text {}.", i)}});
      content.back()["prompt_cache_breakpoint"] = {{"mode", "explicit"},
                                                   {"ttl", i == 1 ? "12h" : "30m"}};
    }
    Json body = {{"prompt_cache_options", {{"mode", mode}}}, {"max_tokens", 1}};
    body["messages"] = Json::array({{{"role", "user"}, {"content", content}}});
    EXPECT_EQ(server.post("/v1/chat/completions", body.dump()).status, 200);
    std::string last;
    for (const std::string& text : prefixes(parse_chat_request(body, kRules), "gemma3"))
      last += text.at(text.size() - 2);
    return last;
  };
  EXPECT_EQ(texts_of("explicit"), "5678");
  EXPECT_EQ(texts_of("implicit"), "678");
}

}  // namespace
}  // namespace larder
