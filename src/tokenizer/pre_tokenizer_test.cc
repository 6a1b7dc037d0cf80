#include "tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizer/golden_replay.h"

namespace larder {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> split(const char* name, std::string_view text) {
  std::vector<std::string> words;
  std::size_t before = 0;
  PreTokenizer(name).for_each_word(text, [&](std::size_t begin, std::size_t end) {
    EXPECT_EQ(begin, before);
    words.emplace_back(text.substr(begin, end - begin));
    before = end;
  });
  EXPECT_EQ(before, text.size());
  return words;
}

TEST(PreTokenizer, TheLastOfSeveralSpacesGoesWithTheWord) {
  EXPECT_THAT(split("gpt-2", "a   b \n"), ElementsAre("a", "  ", " b", " \n"));
  EXPECT_THAT(split("qwen2", "a   b \n c"), ElementsAre("a", "  ", " b", " \n", " c"));
  // A digit by itself leaves all of them behind.
  EXPECT_THAT(split("smollm", "a   1"), ElementsAre("a", "   ", "1"));
  EXPECT_THAT(split("gpt-2", "a   1"), ElementsAre("a", "  ", " 1"));
}

TEST(PreTokenizer, NumbersAreCutAsEachFamilyDoes) {
  EXPECT_THAT(split("gpt-2", "x12345"), ElementsAre("x", "12345"));
  EXPECT_THAT(split("smollm", "x123"), ElementsAre("x", "1", "2", "3"));
  EXPECT_THAT(split("qwen2", "x123"), ElementsAre("x", "1", "2", "3"));
  EXPECT_THAT(split("llama-bpe", "x12345"), ElementsAre("x", "123", "45"));
  EXPECT_THAT(split("default", "x 12345"), ElementsAre("x", " ", "123", "45"));
}

// Newer than the patterns' \p{N}, yet digits to the step that splits them.
TEST(PreTokenizer, KnowsTheDigitsOfLaterUnicodeVersions) {
  EXPECT_THAT(split("smollm", "\U00011DE0\U00011DE1"), ElementsAre("\U00011DE0", "\U00011DE1"));
  EXPECT_THAT(split("gpt-2", "\U00011DE0\U00011DE1"), ElementsAre("\U00011DE0\U00011DE1"));
}

TEST(PreTokenizer, ContractionsIgnoreCaseInLaterFamiliesOnly) {
  EXPECT_THAT(split("gpt-2", "we'LL we'll"), ElementsAre("we", "'", "LL", " we", "'ll"));
  EXPECT_THAT(split("llama-bpe", "we'LL we'll"), ElementsAre("we", "'LL", " we", "'ll"));
  EXPECT_THAT(split("qwen2", "x'\u017Fe"), ElementsAre("x", "'\u017F", "e"));
}

TEST(PreTokenizer, LaterFamiliesTakePunctuationBeforeAWordAndLineBreaksAfterIt) {
  EXPECT_THAT(split("llama-bpe", "(ab);\n\nx"), ElementsAre("(ab", ");\n\n", "x"));
  EXPECT_THAT(split("gpt-2", "(ab);\n\nx"), ElementsAre("(", "ab", ");", "\n", "\n", "x"));
  EXPECT_THAT(split("qwen2", " \t\n\n  \n  x"), ElementsAre(" \t\n\n  \n", " ", " x"));
}

TEST(PreTokenizer, Gpt4oCutsWhereTheCaseChanges) {
  EXPECT_THAT(split("gpt-4o", "camelCase HTTPServer ABC's"), ElementsAre("camel", "Case", " HTTPServer", " ABC's"));
  EXPECT_THAT(split("gpt-4o", "ABCdeF"), ElementsAre("ABCde", "F"));
  // Letters without case may end a word, and then what is upper case behind them does not.
  EXPECT_THAT(split("gpt-4o", "AB\u4E16CD"), ElementsAre("AB\u4E16", "CD"));
  EXPECT_THAT(split("gpt-4o", "\u0301x"), ElementsAre("\u0301x"));
  EXPECT_THAT(split("gpt-4o", "\u0301!"), ElementsAre("\u0301", "!"));
  EXPECT_THAT(split("gpt-4o", "a!//\r\n/b 1234"), ElementsAre("a", "!//\r\n/", "b", " ", "123", "4"));
}

TEST(PreTokenizer, TekkenCutsDigitsAndContractions) {
  EXPECT_THAT(split("tekken", "camelCase ABC's 1234"), ElementsAre("camel", "Case", " ABC", "'s", " ", "1", "2", "3", "4"));
  EXPECT_THAT(split("tekken", "a!//\r\n/b"), ElementsAre("a", "!//\r\n/", "b"));
}

TEST(PreTokenizer, BytesThatAreNotUtf8AreSymbols) {
  EXPECT_THAT(split("gpt-2", "a\xFF\xFE b\xE4\xB8"),
              ElementsAre("a", "\xFF\xFE", " b", "\xE4\xB8"));
}

// Steps cut what those before them left: letters with cases by themselves, then those of ASCII out of them.
TEST(PreTokenizer, DeepSeekCutsWhatEarlierStepsLeft) {
  EXPECT_THAT(split("deepseek-llm", "l'\u00E9t\u00E9 12\n\n"),
              ElementsAre("l", "'", "\u00E9", "t", "\u00E9", " ", "1", "2", "\n", "\n"));
  EXPECT_THAT(split("deepseek-llm", "a  b  "), ElementsAre("a", " ", " b", "  "));
  EXPECT_THAT(split("deepseek-coder", "l'\u00E9t\u00E9 12"), ElementsAre("l", "'", "\u00E9t\u00E9", " ", "1", "2"));
  EXPECT_THAT(split("deepseek-v3", "a.b  12345 \u4E16\u754C\u304B!\n\nx"),
              ElementsAre("a", ".b", "  ", "123", "45", " ", "\u4E16\u754C\u304B", "!\n\n", "x"));
  EXPECT_THAT(split("deepseek-v3", "\u30AB\u30FB\u30BF"), ElementsAre("\u30AB", "\u30FB", "\u30BF"));
}

TEST(PreTokenizer, SeedLeavesLineBreaksToThemselves) {
  EXPECT_THAT(split("seed-coder", "(ab);\n\nx12"), ElementsAre("(ab", ");", "\n\n", "x", "1", "2"));
}

// Every pattern on the same texts, as the reference cuts them.
TEST(PreTokenizer, WordsAreThoseOfTheReference) {
  const auto golden = testing::read_golden("words");
  const auto texts = golden.at("texts").get<std::vector<std::string>>();
  ASSERT_GT(texts.size(), 500U);
  for (const auto& [name, ends_of_texts] : golden.items()) {
    if (name == "texts") continue;
    const PreTokenizer pre_tokenizer(name);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      std::vector<std::size_t> ends;
      pre_tokenizer.for_each_word(texts[i], [&](std::size_t, std::size_t end) { ends.push_back(end); });
      EXPECT_EQ(ends, ends_of_texts.at(i).get<std::vector<std::size_t>>()) << name << ": " << texts[i];
    }
  }
}

TEST(PreTokenizer, SeveralNamesStandForOneAndOthersForNone) {
  EXPECT_EQ(find_pre_tokenizer("smaug-bpe"), find_pre_tokenizer("dbrx"));
  EXPECT_EQ(find_pre_tokenizer("refact"), find_pre_tokenizer("smollm"));
  EXPECT_EQ(find_pre_tokenizer("exaone4"), find_pre_tokenizer("gpt-2"));
  EXPECT_EQ(find_pre_tokenizer("deepseek-r1-qwen"), find_pre_tokenizer("qwen2"));
  for (const char* name : {"llama3", "llama-v3", "falcon3", "pixtral"})
    EXPECT_EQ(find_pre_tokenizer(name), find_pre_tokenizer("llama-bpe")) << name;
  // GLM's cut as Llama 3's and take words whole, too, but begin with no BOS.
  EXPECT_EQ(find_pre_tokenizer("chatglm-bpe"), find_pre_tokenizer("glm4"));
  EXPECT_TRUE(pre_tokenizer("glm4").takes_whole_words);
  EXPECT_EQ(find_pre_tokenizer(""), nullptr);
  EXPECT_EQ(find_pre_tokenizer("bloom"), nullptr);
  EXPECT_THROW(pre_tokenizer("bloom"), Error);
}

TEST(PreTokenizer, NoTextHasNoWords) {
  for (const char* name : {"gpt-2", "smollm", "qwen2", "llama-bpe", "dbrx", "gpt-4o", "tekken", "seed-coder", "deepseek-llm",
                           "deepseek-coder", "deepseek-v3", "default"})
    EXPECT_TRUE(split(name, "").empty());
}

}  // namespace
}  // namespace larder
