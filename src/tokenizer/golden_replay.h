// For tests: replays a golden file of tests/golden/tokenizer (make.py there says what it holds).
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace larder::testing {

inline nlohmann::json read_golden(const std::string& name) {
  std::ifstream file(std::string(LARDER_SOURCE_DIR "/tests/golden/tokenizer/") + name + ".json");
  return nlohmann::json::parse(file);
}

inline Vocabulary read_golden_vocabulary(const nlohmann::json& golden) {
  const auto& json = golden.at("vocabulary");
  Vocabulary vocabulary;
  vocabulary.model = json.at("model");
  vocabulary.pre_tokenizer = json.at("pre_tokenizer");
  json.at("tokens").get_to(vocabulary.tokens);
  if (json.contains("scores")) json["scores"].get_to(vocabulary.scores);
  if (json.contains("merges")) json["merges"].get_to(vocabulary.merges);
  if (json.contains("unk")) vocabulary.unk = json["unk"].get<TokenId>();
  for (const int kind : json.at("kinds")) vocabulary.kinds.push_back(static_cast<TokenKind>(kind));
  vocabulary.add_space_prefix = json.at("add_space_prefix");
  return vocabulary;
}

// In one go and token by token.
inline void expect_decodes(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens,
                           const std::string& text) {
  EXPECT_EQ(tokenizer.decode(tokens), text);
  StreamDecoder decoder(tokenizer);
  std::string streamed;
  for (const TokenId token : tokens) streamed += decoder.push(token);
  EXPECT_EQ(streamed + decoder.finish(), text);
}

inline void replay_golden(const Tokenizer& tokenizer, const nlohmann::json& golden) {
  for (const char* key : {"cases", "trusted"}) {
    const bool is_trusted = key == std::string("trusted");
    ASSERT_GT(golden.at(key).size(), 100u);
    for (const auto& row : golden.at(key)) {
      const auto text = row[0].get<std::string>();
      EXPECT_EQ(tokenizer.encode(text, false, is_trusted), row[1].get<std::vector<TokenId>>())
          << key << ": " << row[0].dump(-1, ' ', true);
    }
  }
  ASSERT_GT(golden.at("decodes").size(), 50u);
  for (const auto& row : golden.at("decodes"))
    expect_decodes(tokenizer, row[0].get<std::vector<TokenId>>(), row[1].get<std::string>());
}

}  // namespace larder::testing
