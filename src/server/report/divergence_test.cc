// What kept a prompt from reusing its relative.
#include "server/report/divergence.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "server/server_test_support.h"

namespace larder {
namespace {

using Tokens = std::vector<TokenId>;

// Printable characters, and a few longer tokens.
constexpr TokenId kBrackets = 100, kWord = 101, kThoughts = 102;
Tokenizer tokenizer() {
  Vocabulary vocabulary = tiny_vocabulary();
  vocabulary.tokens[kBrackets] = "[[[[[[[[";
  vocabulary.tokens[kWord] = "aaaaaaaaaaaaaaaa";
  vocabulary.tokens[kThoughts] = "<think><think><think><think><think><think><think>";
  return Tokenizer(vocabulary);
}

class DivergenceTest : public ::testing::Test {
 protected:
  Tokens encode(const std::string& text) const { return tokenizer_.encode(text, false, false); }

  // Of a prompt that comes after another one, which was answered.
  std::optional<Divergence> divergence(const Tokens& before, const Tokens& prompt,
                                       const Tokens& answer = {}) const {
    Ledger ledger(std::size_t{16} << 20);
    ledger.complete(ledger.compare({}, before, 0).entry, answer);
    const Comparison comparison = ledger.compare({}, prompt, 1);
    EXPECT_TRUE(comparison.relative);
    return find_divergence(comparison, {}, prompt, tokenizer_);
  }
  bool is(DivergenceKind kind, const Tokens& before, const Tokens& prompt,
          const Tokens& answer = {}) const {
    const auto found = divergence(before, prompt, answer);
    return found && found->kind == kind;
  }

  const Tokenizer tokenizer_ = tokenizer();
};

TEST_F(DivergenceTest, FindsReorderedKeysWhateverStandsBefore) {
  const auto is_reordered = [&](const std::string& left, const std::string& right) {
    // More brackets than are looked at, and a quotation mark.
    const std::string before = "[0, 1) [[[[[[[[[[ is 5\" wide\nThe state is now: ";
    const std::string after = "\nWhat is to be done with it, and by whom, and until when?";
    return is(DivergenceKind::kReorderedJsonKeys, encode(before + left + after),
              encode(before + right + after));
  };
  EXPECT_TRUE(is_reordered(R"({"b":[1,2],"a":{"c":"}\"]"}})", R"({"a":{"c":"}\"]"},"b":[1,2]})"));
  EXPECT_TRUE(is_reordered(R"([{"id":7,"in":{"b":1,"a":2}},3])", R"([{"id":7,"in":{"a":2,"b":1}},3])"));
  EXPECT_TRUE(is_reordered(R"({"x":"[","b":1,"a":2})", R"({"x":"[","a":2,"b":1})"));
  EXPECT_FALSE(is_reordered(R"({"b":1,"a":2})", R"({"a":2,"b":3})"));
  EXPECT_FALSE(is_reordered(R"({"b":1,"a":2)", R"({"a":2,"b":1)"));
  const std::string deep = std::string(10'000, '[') + std::string(10'000, ']');
  EXPECT_FALSE(is_reordered("{\"b\":1,\"a\":" + deep + "}", "{\"a\":" + deep + ",\"b\":1}"));
}

// Looking for the end of each would take seconds.
TEST_F(DivergenceTest, UnclosedBracketsTakeNoTime) {
  Tokens left(2500, kBrackets);
  left.insert(left.end(), 2500, kWord);
  Tokens right = left;
  for (const TokenId token : encode("What is it?")) left.push_back(token);
  for (const TokenId token : encode("But who knows?")) right.push_back(token);
  const std::clock_t begin = std::clock();  // the processor's: others may keep it busy
  divergence(left, right);
  EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC / 2);
}

// To look for the end of each, each time, would take many minutes.
TEST_F(DivergenceTest, UnclosedThoughtsAreLookedThroughOnce) {
  const Tokens head = encode("Write a poem of four lines for the given noun. The noun: ");
  const Tokens tail = encode("\nWhat is to be done with it, and by whom, and until when?");
  Tokens left = head, right = head;
  left.insert(left.end(), 4000, kThoughts);
  right.push_back(kWord);
  for (Tokens* tokens : {&left, &right}) tokens->insert(tokens->end(), tail.begin(), tail.end());
  Ledger ledger(std::size_t{16} << 20);
  ledger.complete(ledger.compare({}, left, 0).entry, {});
  const Comparison comparison = ledger.compare({}, right, 1);
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(find_divergence(comparison, {}, right, tokenizer_));
}

TEST_F(DivergenceTest, AThoughtLeftOutIsTold) {
  const std::string question = "What is it, and who has seen it? ", answer = "Nobody knows what it is, or was.";
  const std::string long_thought(100'000, 'x');
  for (const std::string& thought : {std::string("It is a cat."), long_thought}) {
    EXPECT_TRUE(is(DivergenceKind::kRerenderedThinking,
                   encode(question + "<think>" + thought + "</think>\n\n" + answer), encode(question + answer)));
  }
}

TEST_F(DivergenceTest, AnswersInOtherTokensAreToldFromOtherWords) {
  const std::string question = "Write a poem of four lines for the given noun. The noun: ";
  const Tokens answer(8, kWord);
  // The same text, one letter a token.
  EXPECT_TRUE(is(DivergenceKind::kRetokenisedGeneration, encode(question),
                 encode(question + std::string(128, 'a') + "And one more."), answer));
  for (const Tokens& said : {Tokens{}, answer}) {
    EXPECT_FALSE(is(DivergenceKind::kRetokenisedGeneration, encode(question + "cat"),
                    encode(question + "dog"), said));
    EXPECT_FALSE(is(DivergenceKind::kRetokenisedGeneration, encode(question + "cat"),
                    encode(question + "panther"), said));
    EXPECT_FALSE(is(DivergenceKind::kWhitespace, encode(question + "cat"), encode(question + "dog"),
                    said));
  }
}

TEST_F(DivergenceTest, OnlyWhatAnAnswerSaidInOtherTokensWasThere) {
  const std::string question = "Write a poem of four lines for the given noun. The noun: ";
  const Tokens asked = encode(question);
  const auto found = divergence(asked, encode(question + std::string(128, 'a') + "And one more."), Tokens(8, kWord));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->end - found->token, 128);
}

TEST_F(DivergenceTest, WhatComesInPlaceOfAnAnswerIsNew) {
  const std::string question = "Write a poem of four lines for the given noun. The noun: ";
  // Also where the answer is of the kind that changes from one prompt to the next, or says nothing.
  for (const char* answer : {"x", " ", "\n\n", "10:41", "4711993", "A dog of 10:41 that sleeps."}) {
    const auto found = divergence(encode(question), encode(question + "11:02, 9931227 cats and what they eat"), encode(answer));
    EXPECT_FALSE(found) << answer << ": " << divergence_name(found->kind);
  }
}

PromptOrigin chat_of(std::uint64_t system, std::uint64_t effort, std::vector<PromptPart> parts, std::vector<std::string> roles) {
  PromptOrigin origin;
  origin.system = system;
  origin.effort = effort;
  origin.parts = std::move(parts);
  origin.roles = std::move(roles);
  return origin;
}

TEST_F(DivergenceTest, ASystemPromptLeftOutIsNoShorterHistory) {
  const std::string system = "<system>Be brief and kind to all.", rest = "<user>Who is it that sleeps on the mat?<>";
  const auto second = static_cast<int>(system.size());
  const PromptOrigin with = chat_of(7, 0, {{0, 0, 8}, {second, 1, second + 6}}, {"system", "user"});
  const PromptOrigin without = chat_of(0, 0, {{0, 0, 6}}, {"user"});
  const Tokens left = encode(system + rest), right = encode(rest);
  const auto kind = [&](const PromptOrigin& before, const Tokens& had, const PromptOrigin& after, const Tokens& prompt) {
    Ledger ledger(std::size_t{16} << 20);
    ledger.complete(ledger.compare(before, had, 0).entry, {});
    return find_divergence(ledger.compare(after, prompt, 1), after, prompt, tokenizer_)->kind;
  };
  EXPECT_EQ(kind(with, left, without, right), DivergenceKind::kChangedSystemPrompt);
  EXPECT_EQ(kind(without, right, with, left), DivergenceKind::kChangedSystemPrompt);
  // A first message that is the user's is one.
  PromptOrigin answered = with;
  answered.system = 0;
  answered.roles = {"user", "user"};
  EXPECT_EQ(kind(answered, left, without, right), DivergenceKind::kTruncatedHistory);
}

// By what a template prints before a message's text, or behind the last one.
TEST_F(DivergenceTest, AnotherEffortIsNoEdit) {
  const std::string head = "<system>", low = "Think little. ", high = "Think long and hard. ";
  const std::string rules = "Be brief and kind to all who come.";
  const auto kind = [&](const std::string& before, const std::string& after, std::uint64_t effort, std::uint64_t system) {
    const auto origin = [&](const std::string& words, std::uint64_t now, std::uint64_t rules_now) {
      return chat_of(rules_now, now, {{0, 0, static_cast<int>((head + words).size())}}, {"system"});
    };
    const PromptOrigin was = origin(before, 1, 1), is = origin(after, effort, system);
    const Tokens had = encode(head + before + rules), prompt = encode(head + after + rules);
    Ledger ledger(std::size_t{16} << 20);
    ledger.complete(ledger.compare(was, had, 0).entry, {});
    const auto found = find_divergence(ledger.compare(is, prompt, 1), is, prompt, tokenizer_);
    if (found->kind == DivergenceKind::kChangedEffort) {
      EXPECT_EQ(found->role, "effort");
      EXPECT_EQ(found->message, -1);
      EXPECT_GT(found->end, found->token + 20);
    }
    return found->kind;
  };
  EXPECT_EQ(kind(low, high, 2, 1), DivergenceKind::kChangedEffort);
  EXPECT_EQ(kind(low, "", 2, 1), DivergenceKind::kChangedEffort);
  EXPECT_EQ(kind("", high, 2, 1), DivergenceKind::kChangedEffort);
  EXPECT_NE(kind(low, high, 1, 1), DivergenceKind::kChangedEffort);
  EXPECT_EQ(kind(low, high, 2, 3), DivergenceKind::kChangedSystemPrompt);
}

}  // namespace
}  // namespace larder
