#include "server/chat/prompt.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "server/chat/render_chat.h"
#include "server/server_test_support.h"
#include "tokenizer/jinja/chat_test_support.h"

namespace larder {
namespace {

std::string golden_template(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(LARDER_SOURCE_DIR "/tests/golden/chat_template/templates/" + name + ".jinja")
              .rdbuf();
  return text.str();
}

// A chat whose last message is the answer that is to be gone on with.
ChatRequest continued(const std::string& answer) {
  ChatRequest request;
  request.messages = messages_of(parse_json(R"([{"role":"user","content":"hi"},)" + answer + "]", {}));
  request.continue_final_message = true;
  request.add_generation_prompt = false;
  return request;
}

TEST(Prompt, EndsWithTheTextThatIsGoneOnWith) {
  const TestServer server;
  const auto text = [&](const std::string& answer) {
    const PreparedPrompt prompt = encode_chat(continued(answer), server.model());
    return server.model().tokenizer.decode(prompt.tokens);
  };
  EXPECT_TRUE(text(R"({"role":"assistant","content":"hello"})").ends_with("assistant\nhello"));
}

TEST(Prompt, ErrorsCallTheMessagesAsTheApiDoes) {
  const TestServer server;
  const ChatTemplate refuses("{{ raise_exception('no') }}");
  const ServedModel model{.name = "tiny",
                          .tokenizer = server.model().tokenizer,
                          .chat_template = refuses,
                          .engine = server.model().engine,
                          .max_model_len = 100};
  ChatRequest request;
  request.messages = {message_of("user", "hi")};
  for (const char* name : {"messages", "input"}) {
    request.options.names.messages = name;
    try {
      encode_chat(request, model);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.param(), name);
      EXPECT_TRUE(std::string(error.what()).starts_with(name)) << error.what();
    }
  }
}

// All that the template prints of it is its role, and a prompt that ends there is no turn at all.
TEST(Prompt, AnEmptyMessageCannotBeContinued) {
  const TestServer server;
  for (const char* answer :
       {R"({"role":"assistant","content":""})", R"({"role":"assistant","content":" \t\n\u000b\u00a0"})",
        R"({"role":"assistant","content":null})", R"({"role":"assistant","refusal":"no"})",
        R"({"role":"assistant","content":"","tool_calls":[]})",
        R"({"role":"assistant","content":"","tool_calls":null})"}) {
    try {
      encode_chat(continued(answer), server.model());
      ADD_FAILURE() << answer;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_EQ(error.param(), "continue_final_message");
    }
  }
  EXPECT_TRUE(can_be_continued(parse_json(R"({"content":"","tool_calls":[{}]})", {})));
  EXPECT_TRUE(can_be_continued(parse_json(R"({"content":" x"})", {})));
}

// OpenAI's clients send null as the content of an answer that only calls.
TEST(Prompt, ACallNeedsNoContentWhateverTheTemplate) {
  const TestServer server;
  const std::string told = "{% for message in messages %}{{ message.content is none }}.{% endfor %}";
  for (const std::string& source : {golden_template("qwq"), golden_template("qwen3"), told}) {
    const ChatTemplate chat_template(source);
    const ServedModel model{.name = "tiny",
                            .tokenizer = server.model().tokenizer,
                            .chat_template = chat_template,
                            .engine = server.model().engine,
                            .max_model_len = 240};
    const auto text = [&](const std::string& content) {
      ChatRequest request;
      request.messages = messages_of(parse_json(
          R"([{"role":"user","content":"hi"},{"role":"assistant",)" + content +
              R"("tool_calls":[{"type":"function","function":{"name":"look","arguments":{"at":"it"}}}]},)"
              R"({"role":"tool","content":"seen"}])",
          {}));
      return model.tokenizer.decode(encode_chat(request, model).tokens);
    };
    const std::string sent = text(R"("content":null,)");
    if (source == told) {
      EXPECT_EQ(sent, "False.True.False.") << "null where it is understood";
    } else {
      EXPECT_NE(sent.find("look"), std::string::npos) << sent;
      EXPECT_EQ(sent, text(R"("content":"",)"));
    }
  }
}

TEST(Prompt, ATemplateMayBeginTheAnswerWithAThought) {
  const TestServer server;
  const ChatTemplate chat_template(golden_template("qwq"));
  const ServedModel model{.name = "tiny",
                          .tokenizer = server.model().tokenizer,
                          .chat_template = chat_template,
                          .engine = server.model().engine,
                          .max_model_len = 240};
  for (const bool thinks : {false, true}) {
    ChatRequest request;
    request.template_kwargs = {{"enable_thinking", thinks}};
    request.messages = {message_of("user", "hi <think>")};
    EXPECT_EQ(encode_chat(request, model).ends_in_thought, thinks);
    request.add_generation_prompt = false;
    EXPECT_FALSE(encode_chat(request, model).ends_in_thought);
  }
  for (const auto& [answer, thinks] :
       {std::pair{"<think>", true}, {"\n<think>\nI could", true}, {"<think>no</think> so", false}, {"I <think> so", false}}) {
    const Json message = {{"role", "assistant"}, {"content", answer}};
    EXPECT_EQ(encode_chat(continued(message.dump()), server.model()).ends_in_thought, thinks) << answer;
  }
}

// Of the prompt's tokens, as echo shows them.
EchoedPrompt echo_of(const Vocabulary& vocabulary, Prompt sent, std::optional<int> truncation = {}) {
  static const TestServer server;
  const Tokenizer tokenizer(vocabulary);
  const ServedModel model{.name = "tiny",
                          .tokenizer = tokenizer,
                          .chat_template = server.model().chat_template,
                          .engine = server.model().engine,
                          .max_model_len = 240};
  CompletionRequest request;
  request.prompts.push_back(std::move(sent));
  request.echo = true;
  request.options.truncate_prompt_tokens = truncation;
  return *prepare_completion(request, model).at(0).echo;
}

using Offsets = std::vector<std::uint32_t>;

TEST(Prompt, OffsetsAreWhereTokensBeginInTheEchoedText) {
  Vocabulary vocabulary = tiny_vocabulary();
  const TokenId a = 'a' - '!', bos = 96, end = 97, first = 98, second = 99;
  vocabulary.tokens[first] = "\u00c3";   // the bytes of an e with an accent
  vocabulary.tokens[second] = "\u00a9";
  vocabulary.bos = bos;
  vocabulary.add_bos = vocabulary.add_eos = true;
  const std::string text = "\u00e9a<|im_end|>a";
  EXPECT_EQ(echo_of(vocabulary, text).text, text);
  EXPECT_EQ(echo_of(vocabulary, text).offsets, (Offsets{0, 0, 0, 1, 2, 12, 13})) << "between BOS and EOS";
  EXPECT_EQ(echo_of(vocabulary, text, 4).text, "a<|im_end|>a<|im_end|>") << "the last four tokens";
  EXPECT_EQ(echo_of(vocabulary, text, 4).offsets, (Offsets{0, 1, 11, 12}));
  const EchoedPrompt ids = echo_of(vocabulary, std::vector<TokenId>{bos, first, second, end, a, first});
  EXPECT_EQ(ids.text, "<|im_start|>\u00e9<|im_end|>a\ufffd");
  EXPECT_EQ(ids.offsets, (Offsets{0, 12, 12, 13, 23, 24}));
  // Encoding joins the letter and its accent.
  vocabulary.pre_tokenizer = "qwen2";
  vocabulary.add_bos = vocabulary.add_eos = false;
  const EchoedPrompt joined = echo_of(vocabulary, "e\u0301a");
  EXPECT_EQ(joined.text, "e\u0301a");
  EXPECT_EQ(joined.offsets, (Offsets{0, 0, 2}));
}

TEST(Prompt, OffsetsKnowOfNoSpaceThatEncodingAdds) {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "<s>", "\u2581", "a", "\u2581a"};
  vocabulary.scores = {0, 0, -9, -9, -1};
  vocabulary.kinds = {TokenKind::kUnknown, TokenKind::kControl, TokenKind::kNormal, TokenKind::kNormal,
                      TokenKind::kNormal};
  vocabulary.unk = 0;
  vocabulary.bos = 1;
  vocabulary.add_bos = true;
  EXPECT_EQ(echo_of(vocabulary, "aa<s>a a").offsets, (Offsets{0, 0, 1, 2, 5, 6}));
}

TEST(Prompt, TruncationLeavesWhatThereIsRoomFor) {
  const TestServer server;
  const auto num_kept = [&](int num_tokens, std::optional<int> max_tokens) {
    CompletionRequest request;
    request.prompts.emplace_back(std::vector<TokenId>(static_cast<std::size_t>(num_tokens), 5));
    request.options.truncate_prompt_tokens = -1;
    request.options.has_max_tokens = max_tokens.has_value();
    if (max_tokens) request.options.sampling.max_tokens = *max_tokens;
    return prepare_completion(request, server.model()).at(0).tokens.size();
  };
  // The model takes 240 tokens.
  EXPECT_EQ(num_kept(500, std::nullopt), 239u);
  EXPECT_EQ(num_kept(500, 100), 140u);
  EXPECT_EQ(num_kept(500, 230), 60u);
  EXPECT_EQ(num_kept(50, 230), 50u);
  // As many as there is room for.
  EXPECT_EQ(num_kept(150, 240), 150u);
  EXPECT_EQ(num_kept(500, 100'000), 239u);
}

TEST(Prompt, OfSeveralTheErrorSaysWhich) {
  TestServer server;
  const std::string param = R"("param":"prompt[1]")";
  for (const char* prompts : {R"(["a",""])", R"([[5],[]])"}) {
    const auto reply = server.post("/v1/completions", fmt::format(R"({{"prompt":{},"max_tokens":1}})", prompts));
    EXPECT_EQ(reply.status, 400);
    EXPECT_NE(reply.body.find(param), std::string::npos) << reply.body;
  }
}

}  // namespace
}  // namespace larder
