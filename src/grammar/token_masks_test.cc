#include "grammar/token_masks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "grammar/grammar_test_support.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

class TokenMasksTest : public testing::Test {
 protected:
  void take(std::vector<std::string> texts) {
    texts_ = std::move(texts);
    trie_ = std::make_shared<const TokenTrie>(
        static_cast<int>(texts_.size()),
        [this](TokenId token) -> std::string_view { return texts_[static_cast<std::size_t>(token)]; });
  }

  // All single bytes, pieces of JSON, words, halves of characters and what else comes, some twice.
  void take_mixed(int num_random) {
    std::vector<std::string> texts{""};
    for (int byte = 0; byte < 256; ++byte) texts.push_back(std::string(1, static_cast<char>(byte)));
    for (const char* text :
         {"{\"",    "\":",     "\": \"",   "\",",  "\"}",          "}}",           "],",   "\n  ",  "\n    \"", "true",
          "false}", "null,",   " name",    "na",   "me\":",        "12",           "3.5",  "e-1",   "\\n",      "\\u00",
          "\\\"",   "caf\xc3", "\xc3\xa9", "\xa9", "\xe2\x82\xac", "\xf0\x9f\x98", "ab\"", "ab\" :"})
      texts.push_back(text);
    std::mt19937 random(7);
    const std::string letters = "ab \"\\{}[]:,0\n\xc3\xa9n";
    for (int i = 0; i < num_random; ++i) {
      std::string text;
      for (unsigned size = 1 + random() % 6; size > 0; --size) text += letters[random() % letters.size()];
      texts.push_back(text);
    }
    take(std::move(texts));
  }

  // By trying each token.
  std::vector<bool> tried(const GrammarState& state) const {
    std::vector<bool> allowed;
    for (const std::string& text : texts_) {
      GrammarState next = state;
      bool fits = !text.empty();
      for (const char byte : text) fits = fits && next.push(static_cast<std::uint8_t>(byte));
      allowed.push_back(fits);
    }
    return allowed;
  }

  std::vector<bool> masked(TokenMasks& masks, const Constraint& constraint, const GrammarState& state) const {
    const auto bits = masks.allowed(constraint, state);
    std::vector<bool> allowed;
    if (bits.empty()) return allowed;  // that cannot be told
    for (std::size_t i = 0; i < texts_.size(); ++i) allowed.push_back(((bits[i / 64] >> (i % 64)) & 1) != 0);
    return allowed;
  }

  Constraint constraint_of_expression(const char* expression) const {
    GrammarBuilder builder;
    const Fragment whole = add_regex(builder, expression, TextForm::kPlain, true);
    return {builder.finish(whole), trie_};
  }

  Constraint constraint_of(const char* schema) const {
    GrammarBuilder builder;
    JsonParts parts(builder);
    const Fragment whole = add_json_schema(parts, Json::parse(schema), "schema");
    return {builder.finish(whole), trie_};
  }

  // Walks at random, as a model that draws would, and compares at each step.
  void compare(const char* schema, TokenMasks& masks, unsigned seed, int most_steps = 60) const {
    const Constraint constraint = constraint_of(schema);
    std::mt19937 random(seed);
    GrammarState state(constraint.grammar);
    for (int i = 0; i < most_steps && !state.is_over(); ++i) {
      const std::vector<bool> allowed = tried(state);
      ASSERT_EQ(masked(masks, constraint, state), allowed) << schema << " step " << i;
      std::vector<std::size_t> open;
      for (std::size_t token = 0; token < allowed.size(); ++token) {
        if (allowed[token]) open.push_back(token);
      }
      if (open.empty()) return;  // of a vocabulary that lacks the end of a character
      for (const char byte : texts_[open[random() % open.size()]])
        ASSERT_TRUE(state.push(static_cast<std::uint8_t>(byte)));
    }
  }

  std::vector<std::string> texts_;
  std::shared_ptr<const TokenTrie> trie_;
};

constexpr const char* kSchemas[] = {
    R"({"type": "object"})",
    R"({"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}, "required": ["name"]})",
    R"({"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 4})",
    R"({"type": "string", "minLength": 3})",
    R"({"type": "object", "properties": {"na": {"enum": ["a", "ab", "b\"", "né"]}}, "additionalProperties": {"type": "boolean"}})",
    R"({"type": "string", "pattern": "^[a-n\"é]{2,6}$"})",
    R"({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "string", "maxLength": 6}, {"enum": ["abababab", "éé€éé€éé"]}]})",
    R"({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "string", "pattern": "^[a-n]{5,9}$"}]})",
    R"({"type": "array", "items": {"type": "string", "maxLength": 2}, "minItems": 3})",
    "true",
};

TEST_F(TokenMasksTest, SayWhatTryingEachTokenSays) {
  take_mixed(600);
  TokenMasks masks;
  for (const char* schema : kSchemas) {
    for (unsigned seed = 0; seed < 6; ++seed) compare(schema, masks, seed);
  }
}

TEST_F(TokenMasksTest, TheLongestTokenOfAText) {
  take_mixed(600);
  std::mt19937 random(3);
  const std::string letters = "ab \"\\{}[]:,0\n\xc3\xa9n";
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (unsigned size = random() % 9; size > 0; --size) text += letters[random() % letters.size()];
    std::size_t longest = 0;
    for (const std::string& token : texts_)
      if (text.starts_with(token)) longest = std::max(longest, token.size());
    const auto found = trie_->longest_token(text);
    ASSERT_EQ(found.has_value(), longest > 0) << text;
    if (found) {
      EXPECT_TRUE(text.starts_with(trie_->bytes(*found)));
      EXPECT_EQ(trie_->bytes(*found).size(), longest) << text;
    }
  }
}

TEST_F(TokenMasksTest, ForgettingChangesNothing) {
  take_mixed(200);
  TokenMasks masks(20'000);  // less than one walk needs
  for (const char* schema : kSchemas) compare(schema, masks, 3);
  EXPECT_LE(masks.size_bytes(), 40'000u);
}

TEST_F(TokenMasksTest, LongTokensOfShortStrings) {
  // Free characters are counted: no token of more than the string has left.
  take({"a", "aa", "aaa", "aaaa", "aaaaaaaaaaaaaaaaaaaa", "é", "éé", "aé", "\"", "a\"", "aaa\"", "ééé\"", "\xc3",
        "a\xc3", "aaa\xc3"});
  TokenMasks masks;
  for (unsigned seed = 0; seed < 20; ++seed) compare(R"({"type": "string", "maxLength": 3})", masks, seed);
  // Around the number up to which free tokens are sorted by their own.
  std::vector<std::string> around{"\"", "x"};
  for (std::size_t size = 28; size < 42; ++size) around.push_back(std::string(size, 'x'));
  take(std::move(around));
  for (const char* most : {"31", "32", "33", "34", "36", "40", "60"}) {
    const std::string schema = std::string(R"({"type": "string", "maxLength": )") + most + "}";
    for (unsigned seed = 0; seed < 4; ++seed) compare(schema.c_str(), masks, seed);
  }
  const std::string longest(300, 'x');  // more characters than a node of the tree counts
  take({longest, longest + "y", "\"", "x"});
  for (unsigned seed = 0; seed < 4; ++seed) compare(R"({"type": "string", "maxLength": 302})", masks, seed);
}

// As many as a small model has, of words that a text of each of these may go on with: no count is near its end.
TEST_F(TokenMasksTest, ExpressionsThatCountBarNoWords) {
  std::vector<std::string> texts;
  std::mt19937 random(5);
  for (int i = 0; i < 40'000; ++i) {
    std::string text(random() % 2, ' ');
    for (unsigned size = 1 + random() % 14; size > 0; --size) text += static_cast<char>('a' + random() % 26);
    texts.push_back(text);
  }
  take(std::move(texts));
  for (const char* expression : {"[a-z ]{1,200}", "([a-z ]{1,20}){1,10}", "(\\w{1,20}\\s?){1,8}", "(.{1,80}\\n?){1,5}",
                                 "[A-Za-z ,.'-]{1,100}( [A-Za-z ,.'-]{1,100}){0,3}"}) {
    const Constraint constraint = constraint_of_expression(expression);
    GrammarState state(constraint.grammar);
    TokenMasks masks;
    for (const char byte : std::string_view("one two")) ASSERT_TRUE(state.push(static_cast<std::uint8_t>(byte)));
    EXPECT_EQ(masked(masks, constraint, state), std::vector<bool>(texts_.size(), true)) << expression;
  }
}

// Some tokens of all, those that come last in the order of texts among them, would be barred for no fault of theirs.
TEST_F(TokenMasksTest, NothingIsToldWhereOneTokenHasTooManyPlaces) {
  take({"a", "b", std::string(50, 'a'), "c"});
  const Constraint constraint = constraint_of_expression("([a-z]{1,90}){1,90}");
  const GrammarState state(constraint.grammar);
  TokenMasks masks;
  EXPECT_FALSE(masks.allowed(constraint, state).empty());
  take({"a", "b", std::string(90, 'a'), "c"});
  const Constraint longer = constraint_of_expression("([a-z]{1,90}){1,90}");
  EXPECT_TRUE(masks.allowed(longer, GrammarState(longer.grammar)).empty());
  EXPECT_TRUE(masks.allowed(longer, GrammarState(longer.grammar)).empty());
}

// A state for each text: what is found in the time that there is does not depend on what was known.
TEST_F(TokenMasksTest, HostileGrammarsHaveAnEnd) {
  std::vector<std::string> texts{"a", "b", "c"};
  std::mt19937 random(3);
  for (int i = 0; i < 60'000; ++i) {
    std::string text;
    for (int size = 0; size < 24; ++size) text += static_cast<char>('a' + random() % 3);
    texts.push_back(text);
  }
  take(std::move(texts));
  // Which of the last letters were a; a place for each number of them; all of which may be empty.
  for (const char* pattern :
       {"^.*a.{20}b?$", "^(a{1,30}b{1,30}c?){1,40}$", "^((a?){0,60}){0,30}$", "^(.?.?.?.?.?.?.?.?.?.?){0,200}$"}) {
    const std::string schema = nlohmann::json{{"type", "string"}, {"pattern", pattern}}.dump();
    const Constraint constraint = constraint_of(schema.c_str());
    GrammarState state(constraint.grammar);
    if (!state.push('"')) continue;  // too many places from the beginning on
    TokenMasks masks, others(1 << 20);
    for (const char byte : std::string_view("abca")) {
      const std::vector<bool> allowed = masked(masks, constraint, state);
      TokenMasks first;
      EXPECT_EQ(masked(first, constraint, state), allowed) << pattern;
      EXPECT_EQ(masked(others, constraint, state), masked(others, constraint, state)) << pattern;
      if (!state.push(static_cast<std::uint8_t>(byte))) break;
    }
  }
}

TEST_F(TokenMasksTest, AnEmptyVocabularyAllowsNothing) {
  take({"", ""});
  TokenMasks masks;
  const Constraint constraint = constraint_of("true");
  EXPECT_EQ(masked(masks, constraint, GrammarState(constraint.grammar)), std::vector<bool>({false, false}));
}

}  // namespace
}  // namespace larder
