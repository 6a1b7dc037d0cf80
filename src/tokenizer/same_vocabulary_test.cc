#include "tokenizer/same_vocabulary.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tokenizer/byte_level.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

Vocabulary vocabulary(std::vector<std::string> more = {}) {
  Vocabulary made;
  made.model = "gpt2";
  made.pre_tokenizer = "gpt-2";
  for (const char32_t c : byte_level_alphabet()) append_utf8(c, made.tokens.emplace_back());
  made.kinds.assign(made.tokens.size(), TokenKind::kNormal);
  for (std::string& text : more) {
    made.tokens.push_back(std::move(text));
    made.kinds.push_back(TokenKind::kNormal);
  }
  return made;
}

TEST(SameVocabulary, TheSame) {
  EXPECT_EQ(vocabulary_difference(Tokenizer(vocabulary()), Tokenizer(vocabulary())), "");
}

TEST(SameVocabulary, PaddingAndSpecialTokensBeyondMayDiffer) {
  Vocabulary padded = vocabulary({"[PAD256]", "[PAD257]"});
  padded.kinds[256] = padded.kinds[257] = TokenKind::kUnused;
  EXPECT_EQ(vocabulary_difference(Tokenizer(vocabulary()), Tokenizer(padded)), "");
  EXPECT_EQ(vocabulary_difference(Tokenizer(padded), Tokenizer(vocabulary())), "");
  Vocabulary special = vocabulary({"<|x|>"});
  special.kinds[256] = TokenKind::kControl;
  EXPECT_EQ(vocabulary_difference(Tokenizer(special), Tokenizer(vocabulary())), "");
  EXPECT_EQ(vocabulary_difference(Tokenizer(special), Tokenizer(padded)),
            "token 256 is '<|x|>' in the one and '[PAD256]' in the other");
}

TEST(SameVocabulary, WhatDiffers) {
  EXPECT_EQ(vocabulary_difference(Tokenizer(vocabulary()), Tokenizer(vocabulary({"ab"}))),
            "the one has 256 tokens and the other 257, and token 256 ('ab') is no padding");
  EXPECT_EQ(vocabulary_difference(Tokenizer(vocabulary({"ab"})), Tokenizer(vocabulary({std::string(100, 'c')}))),
            "token 256 is 'ab' in the one and '" + std::string(40, 'c') + "...' in the other");
  Vocabulary special = vocabulary();
  special.kinds[static_cast<std::size_t>(Tokenizer(special).find("d").value())] = TokenKind::kControl;
  EXPECT_EQ(vocabulary_difference(Tokenizer(vocabulary()), Tokenizer(special)),
            "token 100 ('d') is special in one of them only");
}

}  // namespace
}  // namespace larder
