#include "model/files/hf_text_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace larder {
namespace {

using nlohmann::json;

const json kBytes = json::parse(R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})");
const json kGpt2 = json::parse(R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true})");
const json kDigits = json::parse(R"({"type": "Digits", "individual_digits": true})");
const json kQwen2 = json::parse(R"({"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}})");
const json kLlama3 = json::parse(R"({"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}})");
const json kSeed = json::parse(R"({"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}})");
const json kO200k = json::parse(R"({"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}})");
const json kTekken = json::parse(R"({"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}})");
const json kSpaces = json::parse(R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})");
const json kPrepend = json::parse(R"({"type": "Prepend", "prepend": "▁"})");
const json kSplit = json::parse(R"({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false})");

json metaspace(const json& more) {
  json step = json::parse(R"({"type": "Metaspace", "replacement": "▁", "split": false})");
  step.update(more);
  return step;
}

json normalizers(const json& steps) { return {{"type", "Sequence"}, {"normalizers", steps}}; }
json pre_tokenizers(const json& steps) { return {{"type", "Sequence"}, {"pretokenizers", steps}}; }

HfTextRules rules_of(const json& normalizer, const json& pre_tokenizer, bool ignores_merges = false) {
  return read_hf_text_rules("tokenizer.json", {{"normalizer", normalizer}, {"pre_tokenizer", pre_tokenizer}}, ignores_merges);
}

std::string pre_tokenizer_of(const json& normalizer, const json& pre_tokenizer, bool ignores_merges = false) {
  const HfTextRules rules = rules_of(normalizer, pre_tokenizer, ignores_merges);
  EXPECT_FALSE(rules.is_sentence_piece);
  return rules.pre_tokenizer;
}

TEST(HfTextRules, PublishedOnesOfByteLevelBpe) {
  EXPECT_EQ(pre_tokenizer_of(nullptr, kGpt2), "gpt-2");
  EXPECT_EQ(pre_tokenizer_of(nullptr, pre_tokenizers({kDigits, kGpt2})), "smollm");
  EXPECT_EQ(pre_tokenizer_of({{"type", "NFC"}}, pre_tokenizers({kQwen2, kBytes})), "qwen2");
  EXPECT_EQ(pre_tokenizer_of(nullptr, pre_tokenizers({kLlama3, kBytes}), true), "llama-bpe");
  for (const bool ignores_merges : {false, true})
    EXPECT_EQ(pre_tokenizer_of(nullptr, pre_tokenizers({kO200k, kBytes}), ignores_merges), "gpt-4o");
  EXPECT_EQ(pre_tokenizer_of(nullptr, pre_tokenizers({kTekken, kBytes}), true), "tekken");
  EXPECT_EQ(pre_tokenizer_of(nullptr, pre_tokenizers({kSeed, kBytes})), "seed-coder");
  // As Phi 4 and OLMo 2 have it: merges decide, and what the pattern finds is what stays.
  json kept = kLlama3;
  kept.update({{"behavior", "Removed"}, {"invert", true}});
  for (const json& split : {kLlama3, kept})
    EXPECT_EQ(pre_tokenizer_of(nullptr, pre_tokenizers({split, kBytes})), "dbrx");
}

TEST(HfTextRules, PublishedOnesOfPieces) {
  const auto expect = [](const HfTextRules& rules, bool adds, bool start_only, bool no_space) {
    EXPECT_TRUE(rules.is_sentence_piece);
    EXPECT_EQ(rules.add_space_prefix, adds);
    EXPECT_EQ(rules.prefixes_start_only, start_only);
    EXPECT_EQ(rules.prefixes_no_space, no_space);
  };
  expect(rules_of(kSpaces, kSplit), false, false, false);
  expect(rules_of(kSpaces, nullptr), false, false, false);
  expect(rules_of(normalizers({kPrepend, kSpaces}), nullptr), true, false, false);
  expect(rules_of(nullptr, metaspace({{"prepend_scheme", "first"}})), true, true, true);
  expect(rules_of(nullptr, metaspace({{"prepend_scheme", "always"}})), true, false, true);
  expect(rules_of(nullptr, metaspace({{"prepend_scheme", "never"}})), false, false, false);
  expect(rules_of(nullptr, metaspace({{"add_prefix_space", false}})), false, false, false);
}

TEST(HfTextRules, OthersAreRefused) {
  EXPECT_THROW(rules_of(nullptr, nullptr), Error);
  EXPECT_THROW(rules_of(nullptr, kBytes), Error);                                    // without any pattern
  EXPECT_THROW(rules_of(nullptr, pre_tokenizers({kQwen2, kBytes})), Error);          // not normalised
  EXPECT_THROW(rules_of({{"type", "NFC"}}, kGpt2), Error);
  EXPECT_THROW(rules_of(nullptr, metaspace({{"split", true}})), Error);
  EXPECT_THROW(rules_of(nullptr, metaspace({{"prepend_scheme", "last"}})), Error);
  EXPECT_THROW(rules_of(nullptr, metaspace({{"replacement", "_"}})), Error);
  EXPECT_THROW(rules_of(nullptr, {{"type", "Whitespace"}}), Error);
  EXPECT_THROW(rules_of(nullptr, {{"type", 7}}), Error);
  EXPECT_THROW(rules_of(nullptr, "ByteLevel"), Error);
  EXPECT_THROW(rules_of(normalizers(7), kGpt2), Error);
  json inverted = kQwen2;
  inverted["invert"] = true;
  EXPECT_THROW(rules_of({{"type", "NFC"}}, pre_tokenizers({inverted, kBytes})), Error);
}

}  // namespace
}  // namespace larder
