#include "tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

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

TEST(PreTokenizer, NoTextHasNoWords) {
  for (const char* name : {"gpt-2", "smollm", "qwen2", "llama-bpe", "dbrx", "gpt-4o", "tekken", "default"})
    EXPECT_TRUE(split(name, "").empty());
}

}  // namespace
}  // namespace larder
