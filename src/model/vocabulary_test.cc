#include "model/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/files/gguf_builder.h"
#include "tokenizer/jinja/chat_template.h"
#include "tokenizer/vocabulary_check.h"

namespace larder {
namespace {

using ::testing::HasSubstr;

GgufBuilder byte_level(std::string_view pre_tokenizer = "smollm") {
  GgufBuilder builder;
  builder.add_string("tokenizer.ggml.model", "gpt2")
      .add_string("tokenizer.ggml.pre", pre_tokenizer)
      .add_array<std::string>("tokenizer.ggml.tokens", GgufType::kString, {"<s>", "a", "b", "ab"})
      .add_array<std::string>("tokenizer.ggml.merges", GgufType::kString, {"a b"});
  return builder;
}

GgufBuilder sentence_piece(std::size_t num_scores) {
  GgufBuilder builder;
  builder.add_string("tokenizer.ggml.model", "llama")
      .add_array<std::string>("tokenizer.ggml.tokens", GgufType::kString, {"<s>", "a", "b"})
      .add_array("tokenizer.ggml.scores", GgufType::kFloat32, std::vector<float>(num_scores));
  return builder;
}

Vocabulary read(const GgufBuilder& builder) {
  const auto bytes = builder.build();
  return read_vocabulary(GgufFile(bytes));
}

std::string error_of(const GgufBuilder& builder) {
  try {
    read(builder);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// As some converters write them.
TEST(Vocabulary, AnIdThatIsNoneAndATokenWithoutATextMeanNothing) {
  GgufBuilder builder;
  builder.add_string("tokenizer.ggml.model", "llama")
      .add_array<std::string>("tokenizer.ggml.tokens", GgufType::kString, {"<s>", "", "b"})
      .add_array("tokenizer.ggml.scores", GgufType::kFloat32, std::vector<float>(3))
      .add_array<std::int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {3, 1, 1})
      .add_uint("tokenizer.ggml.bos_token_id", 0)
      .add_uint("tokenizer.ggml.eos_token_id", 0xFFFFFFFF)
      .add_uint("tokenizer.ggml.padding_token_id", 0xFFFFFFFF);
  const Vocabulary vocabulary = read(builder);
  EXPECT_EQ(vocabulary.bos, 0);
  EXPECT_EQ(vocabulary.eos, std::nullopt);
  EXPECT_EQ(vocabulary.tokens[1], "[EMPTY_1]");
  EXPECT_EQ(vocabulary.kinds[1], TokenKind::kControl);
  EXPECT_EQ(vocabulary.kinds[2], TokenKind::kNormal);
}

TEST(Vocabulary, ByteLevel) {
  const Vocabulary vocabulary = read(
      byte_level()
          .add_uint("tokenizer.ggml.eos_token_id", 3)
          .add_array<std::int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {3, 1, 1, 1}));
  EXPECT_EQ(vocabulary.model, "gpt2");
  EXPECT_EQ(vocabulary.pre_tokenizer, "smollm");
  EXPECT_EQ(vocabulary.tokens.size(), 4u);
  EXPECT_EQ(vocabulary.merges, std::vector<std::string>{"a b"});
  EXPECT_EQ(vocabulary.kinds[0], TokenKind::kControl);
  EXPECT_EQ(vocabulary.eos, 3);
  EXPECT_EQ(vocabulary.bos, std::nullopt);
  EXPECT_FALSE(vocabulary.add_bos);
}

TEST(Vocabulary, WhatPutsBosBeforeATextWhereTheFileDoesNotSay) {
  for (const char* name : {"llama-bpe", "llama3", "falcon3", "pixtral", "tekken"}) EXPECT_TRUE(read(byte_level(name)).add_bos) << name;
  for (const char* name : {"qwen2", "dbrx", "glm4", "chatglm-bpe", "gpt-4o", "deepseek-v3", "unheard-of"})
    EXPECT_FALSE(read(byte_level(name)).add_bos) << name;
  EXPECT_TRUE(read(byte_level("deepseek-v3").add_bool("tokenizer.ggml.add_bos_token", true)).add_bos);
  EXPECT_FALSE(read(byte_level("llama-bpe").add_bool("tokenizer.ggml.add_bos_token", false)).add_bos);
}

// Of a message that a call's result answers, as GLM 4's <|observation|> does.
TEST(Vocabulary, TheEndOfAMessageEndsATurn) {
  GgufBuilder builder = byte_level();
  const Vocabulary vocabulary = read(builder.add_uint("tokenizer.ggml.eot_token_id", 1).add_uint("tokenizer.ggml.eom_token_id", 2));
  EXPECT_EQ(vocabulary.eom, 2);
  EXPECT_EQ(find_end_tokens(vocabulary, find_special_tokens(vocabulary)), (std::vector<TokenId>{1, 2}));
  EXPECT_THAT(error_of(byte_level().add_uint("tokenizer.ggml.eom_token_id", 4)), HasSubstr("tokenizer.ggml.eom_token_id: 4"));
}

// Files that were made before the key was.
TEST(Vocabulary, GlmsEndsAreKnownByName) {
  Vocabulary vocabulary;
  vocabulary.tokens = {"a", "<|endoftext|>", "<|user|>", "<|assistant|>", "<|observation|>"};
  vocabulary.kinds = {TokenKind::kNormal, TokenKind::kControl, TokenKind::kControl, TokenKind::kControl, TokenKind::kControl};
  vocabulary.eos = 1;
  vocabulary.eot = 2;
  EXPECT_EQ(find_end_tokens(vocabulary, find_special_tokens(vocabulary)), (std::vector<TokenId>{1, 2, 4}));
}

TEST(Vocabulary, SpecialTokensOfPhi3TakeSpacesAlong) {
  const auto phi3 = [](const char* arch) {
    GgufBuilder builder;
    builder.add_string("general.architecture", arch)
        .add_string("tokenizer.ggml.model", "llama")
        .add_array<std::string>("tokenizer.ggml.tokens", GgufType::kString, {"<unk>", "<s>", "</s>", "a", "<|endoftext|>", "<|end|>"})
        .add_array("tokenizer.ggml.scores", GgufType::kFloat32, std::vector<float>(6))
        .add_array<std::int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {2, 3, 4, 1, 3, 3});
    return builder;
  };
  EXPECT_EQ(read(phi3("phi3")).strips_right, (std::vector<TokenId>{2, 5}));
  EXPECT_EQ(read(phi3("llama")).strips_right, std::vector<TokenId>());
  EXPECT_EQ(read(phi3("phi3").add_array<std::int32_t>("larder.tokenizer.strips_right", GgufType::kInt32, {5})).strips_right,
            std::vector<TokenId>{5});
}

TEST(Vocabulary, SentencePiece) {
  const Vocabulary vocabulary =
      read(sentence_piece(3).add_bool("tokenizer.ggml.add_space_prefix", false));
  EXPECT_EQ(vocabulary.scores.size(), 3u);
  EXPECT_TRUE(vocabulary.add_bos);
  EXPECT_FALSE(vocabulary.add_space_prefix);
}

TEST(Vocabulary, BadFieldsAreNamed) {
  EXPECT_THAT(error_of(GgufBuilder{}), HasSubstr("tokenizer.ggml.tokens: the key is missing"));
  EXPECT_THAT(error_of(sentence_piece(2)), HasSubstr("tokenizer.ggml.scores: 2 values for 3"));
  EXPECT_THAT(error_of(byte_level().add_uint("tokenizer.ggml.bos_token_id", 4)),
              HasSubstr("tokenizer.ggml.bos_token_id: 4 is not one of the 4 tokens"));
  EXPECT_THAT(error_of(byte_level().add("tokenizer.ggml.bos_token_id", GgufType::kInt32, -1)),
              HasSubstr("tokenizer.ggml.bos_token_id"));
  EXPECT_THAT(error_of(byte_level().add_array<std::int32_t>("tokenizer.ggml.token_type",
                                                            GgufType::kInt32, {3, 1, 1, 7})),
              HasSubstr("kind 7 of token 3"));
  EXPECT_THAT(error_of(byte_level().add_tensor("token_embd.weight", {8, 3}, GgmlType::kF32, 96)),
              HasSubstr("4 tokens, but token_embd.weight has 3 rows"));
  GgufBuilder builder;
  builder.add_uint("tokenizer.ggml.tokens", 3).add_string("tokenizer.ggml.model", "gpt2");
  EXPECT_THAT(error_of(builder), HasSubstr("tokenizer.ggml.tokens"));
}

TEST(Vocabulary, ChatTemplate) {
  auto bytes = byte_level().build();
  EXPECT_EQ(read_chat_template(GgufFile(bytes)), "");
  bytes = byte_level().add_string("tokenizer.chat_template", "{{ x }}").build();
  EXPECT_EQ(read_chat_template(GgufFile(bytes)), "{{ x }}");
  bytes = byte_level().add_string("tokenizer.chat_template", "plain").add_string("tokenizer.chat_template.tool_use", "tools").build();
  const ChatTemplate both(read_chat_template(GgufFile(bytes)));
  TemplateInput input;
  EXPECT_EQ(both.render(input).text, "plain");
  input.tools = nlohmann::ordered_json::array({{{"type", "function"}}});
  EXPECT_EQ(both.render(input).text, "tools");
  const std::string longer(kMaxTemplateBytes + 1, 'x');
  bytes = byte_level().add_string("tokenizer.chat_template", longer).build();
  try {
    read_chat_template(GgufFile(bytes));
    ADD_FAILURE() << "it was read";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("tokenizer.chat_template: it has 1048577 bytes"));
  }
}

}  // namespace
}  // namespace larder
