#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/text_encoder.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Tokens 0..255 are the bytes, 256.. the merges' results in order, then the special ones.
Vocabulary byte_level(std::vector<std::string> merges = {"h e", "l l", "he ll", "hell o"}) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = "gpt-2";
  for (const char32_t c : byte_level_alphabet()) append_utf8(c, vocabulary.tokens.emplace_back());
  for (std::string merge : merges) {
    vocabulary.merges.push_back(merge);
    merge.erase(merge.find(' '), 1);
    vocabulary.tokens.push_back(merge);
  }
  vocabulary.kinds.assign(vocabulary.tokens.size(), TokenKind::kNormal);
  return vocabulary;
}

TokenId add(Vocabulary& vocabulary, const std::string& text, TokenKind kind, float score = 0) {
  vocabulary.tokens.push_back(text);
  vocabulary.kinds.push_back(kind);
  if (vocabulary.model == "llama") vocabulary.scores.push_back(score);
  return static_cast<TokenId>(vocabulary.tokens.size()) - 1;
}

Vocabulary sentence_piece() {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.unk = add(vocabulary, "<unk>", TokenKind::kUnknown);
  for (int byte = 0; byte < 256; ++byte)
    add(vocabulary, fmt::format("<0x{:02X}>", byte), TokenKind::kByte);
  for (const char* piece : {"▁", "a", "b"}) add(vocabulary, piece, TokenKind::kNormal, -9);
  add(vocabulary, "ab", TokenKind::kNormal, -2);
  add(vocabulary, "▁a", TokenKind::kNormal, -1);
  return vocabulary;
}

std::string refusal(const Vocabulary& vocabulary) {
  try {
    const Tokenizer tokenizer(vocabulary);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "not refused";
}

TEST(Tokenizer, MergesInOrderOfRank) {
  const Tokenizer tokenizer(byte_level());
  EXPECT_THAT(tokenizer.encode("hello hell", false, false), ElementsAre(259, ' ', 258));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{259, ' ', 258}), "hello hell");
}

TEST(Tokenizer, SpecialTokensInUntrustedTextStayText) {
  Vocabulary vocabulary = byte_level();
  const TokenId end = add(vocabulary, "<|im_end|>", TokenKind::kControl);
  const Tokenizer tokenizer(vocabulary);
  const std::string text = "a<|im_end|>b";
  EXPECT_THAT(tokenizer.encode(text, false, true), ElementsAre('a', end, 'b'));
  const auto untrusted = tokenizer.encode(text, false, false);
  EXPECT_THAT(untrusted, ::testing::Not(::testing::Contains(end)));
  EXPECT_EQ(tokenizer.decode(untrusted), text);
  // Neither a user's half and the template's other half, nor a user's token in the template's text.
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    for (std::size_t size = 1; begin + size <= text.size(); ++size) {
      const std::vector<TextSpan> spans = {
          {0, begin, true}, {begin, begin + size, false}, {begin + size, text.size(), true}};
      const bool touches = begin < 11 && begin + size > 1;
      const auto tokens = tokenizer.encode(text, spans, false).tokens;
      EXPECT_EQ(std::count(tokens.begin(), tokens.end(), end), touches ? 0 : 1);
    }
  }
}

TEST(Tokenizer, SpecialTokensMayLieAcrossTrustedSpans) {
  Vocabulary vocabulary = byte_level();
  const TokenId end = add(vocabulary, "<|im_end|>", TokenKind::kControl);
  const Tokenizer tokenizer(vocabulary);
  const std::vector<TextSpan> spans = {{0, 4, true, -1}, {4, 4, false, 7}, {4, 10, true, 2}};
  const Encoding encoding = tokenizer.encode("<|im_end|>", spans, false);
  EXPECT_THAT(encoding.tokens, ElementsAre(end));
  EXPECT_THAT(encoding.messages, ElementsAre(-1));
}

TEST(Tokenizer, UserDefinedTokensAreTakenInAnyTextUnlessTheyMarkTurns) {
  Vocabulary vocabulary = byte_level();
  const TokenId bold = add(vocabulary, "<b>", TokenKind::kUserDefined);
  const TokenId end = add(vocabulary, "<|end|>", TokenKind::kUserDefined);
  const TokenId start = add(vocabulary, "<start_of_turn>", TokenKind::kUserDefined);
  const TokenId user = add(vocabulary, "<\uFF5CUser\uFF5C>", TokenKind::kUserDefined);
  const TokenId bos = add(vocabulary, "[@BOS@]", TokenKind::kUserDefined);
  const TokenId bars = add(vocabulary, "<\uFF5C\uFF5C>", TokenKind::kUserDefined);
  const Tokenizer tokenizer(vocabulary);
  EXPECT_THAT(tokenizer.encode("<b>x", false, false), ElementsAre(bold, 'x'));
  EXPECT_EQ(tokenizer.encode("<|end|>", false, false).size(), 7u);
  EXPECT_EQ(tokenizer.encode("<start_of_turn>", false, false).size(), 15u);
  EXPECT_THAT(tokenizer.encode("<|end|><start_of_turn>", false, true), ElementsAre(end, start));
  EXPECT_FALSE(tokenizer.is_special(bold));
  EXPECT_TRUE(tokenizer.is_special(end));
  EXPECT_TRUE(tokenizer.is_special(user));
  EXPECT_TRUE(tokenizer.is_special(bos));
  EXPECT_FALSE(tokenizer.is_special(bars)) << "names nothing";
  EXPECT_EQ(tokenizer.encode("[@BOS@]", false, false).size(), 7u);
  EXPECT_THAT(tokenizer.encode("<\uFF5CUser\uFF5C>[@BOS@]", false, true), ElementsAre(user, bos));
}

// Else a call would be taken for the answer's text, where a file calls its tags control tokens.
TEST(Tokenizer, TagsOfToolCallsAreShown) {
  Vocabulary vocabulary = byte_level();
  const TokenId begin = add(vocabulary, "<tool_call>", TokenKind::kControl);
  const TokenId end = add(vocabulary, "</tool_call>", TokenKind::kControl);
  const TokenId think = add(vocabulary, "<think>", TokenKind::kControl);
  const TokenId other = add(vocabulary, "<|im_end|>", TokenKind::kControl);
  const Tokenizer tokenizer(vocabulary);
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{begin, 'x', end, other}), "<tool_call>x</tool_call>");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{think, 'x', other}), "<think>x");
  EXPECT_EQ(tokenizer.encode("<tool_call>", false, false).size(), 10u) << "no user can write it";
  EXPECT_THAT(tokenizer.encode("<tool_call>", false, true), ElementsAre(begin));
}

TEST(Tokenizer, TheLongestSpecialTokenAtAPlaceWins) {
  Vocabulary vocabulary = byte_level();
  const TokenId two = add(vocabulary, "\n\n", TokenKind::kUserDefined);
  const TokenId four = add(vocabulary, "\n\n\n\n", TokenKind::kUserDefined);
  const Tokenizer tokenizer(vocabulary);
  EXPECT_THAT(tokenizer.encode("\n\n\n\n\n\n\n", false, false), ElementsAre(four, two, '\n'));
}

TEST(Tokenizer, ATokenMayTakeTheSpacesBehindItAlong) {
  Vocabulary vocabulary = byte_level();
  const TokenId user = add(vocabulary, "<|user|>", TokenKind::kControl);
  const TokenId end = add(vocabulary, "<|end|>", TokenKind::kControl);
  vocabulary.strips_right = {user};
  const Tokenizer tokenizer(vocabulary);
  const std::string text = "<|user|>\n \u00a0a<|end|>\n<|user|> \t";
  EXPECT_THAT(tokenizer.encode(text, false, true), ElementsAre(user, 'a', end, '\n', user));
  // Across spans, but not into tokens that are given.
  const std::vector<TextSpan> spans = {{0, 9, true, -1}, {9, 13, false, 0}, {13, text.size(), true, -1}};
  EXPECT_THAT(tokenizer.encode(text, spans, false).tokens, ElementsAre(user, 'a', end, '\n', user));
  const std::vector<TokenId> given = {' '};
  const std::vector<TextSpan> whole = {{0, 10, true, -1}};
  const ExactSpan exact{9, 10, given};
  EXPECT_THAT(tokenizer.encode("<|user|>\n ", whole, false, {&exact, 1}).tokens, ElementsAre(user, ' '));
  vocabulary.strips_right = {100'000};
  EXPECT_THAT(refusal(vocabulary), HasSubstr("larder.tokenizer.strips_right: 100000 is not one of the"));
}

TEST(Tokenizer, ATokenMayTakeTheSpacesBeforeItAlong) {
  Vocabulary vocabulary = byte_level();
  const TokenId user = add(vocabulary, "<|user|>", TokenKind::kControl);
  const TokenId end = add(vocabulary, "<|end|>", TokenKind::kControl);
  vocabulary.strips_left = vocabulary.strips_right = {end};
  const Tokenizer tokenizer(vocabulary);
  const std::string text = " <|user|> a\u00a0\n <|end|>\n  <|end|> \t<|end|><|user|>";
  EXPECT_THAT(tokenizer.encode(text, false, true), ElementsAre(' ', user, ' ', 'a', end, end, end, user));
  // Where it is no marker, and where it ends in half a character.
  EXPECT_EQ(tokenizer.encode(" <|end|>", false, false).size(), 8u);
  EXPECT_EQ(tokenizer.encode("\xa0<|end|>", false, true).size(), 2u);
  // Across spans, but not into tokens that are given.
  const std::vector<TextSpan> spans = {{0, 2, false, 0}, {2, 9, true, -1}};
  EXPECT_THAT(tokenizer.encode("a\n<|end|>", spans, false).tokens, ElementsAre('a', end));
  const std::vector<TokenId> given = {'\n'};
  const ExactSpan exact{1, 2, given};
  EXPECT_THAT(tokenizer.encode("a\n<|end|>", spans, false, {&exact, 1}).tokens, ElementsAre('a', '\n', end));
  vocabulary.strips_left = {100'000};
  EXPECT_THAT(refusal(vocabulary), HasSubstr("larder.tokenizer.strips_left: 100000 is not one of the"));
}

TEST(Tokenizer, ExactSpansKeepTheirTokens) {
  Vocabulary vocabulary = byte_level();
  const TokenId end = add(vocabulary, "<|im_end|>", TokenKind::kControl);
  const TokenId spaces = add(vocabulary, "  ", TokenKind::kUserDefined);
  const Tokenizer tokenizer(vocabulary);
  const std::string text = "hello hello hello<|im_end|>hell";
  const std::vector<TextSpan> spans = {{0, 6, true, -1}, {6, 17, false, 3}, {17, 31, true, -1}};
  const std::vector<TokenId> other = {'h', 256};
  const std::vector<TokenId> first = {'h', 'e', 257, 'o', ' ', 258};
  ASSERT_EQ(tokenizer.spell(first, "hello hello").num_bytes, 10u);
  const ExactSpan exact{6, 16, first};
  const Encoding encoding = tokenizer.encode(text, spans, false, {&exact, 1});
  EXPECT_THAT(encoding.tokens,
              ElementsAre(259, ' ', 'h', 'e', 257, 'o', ' ', 258, 'o', end, 258));
  EXPECT_THAT(encoding.messages, ElementsAre(-1, -1, 3, 3, 3, 3, 3, 3, 3, -1, -1));
  EXPECT_EQ(tokenizer.decode(encoding.tokens, true), text);
  EXPECT_EQ(tokenizer.spell(other, "hello").num_tokens, 1u) << "then another text";
  EXPECT_EQ(tokenizer.spell(std::vector<TokenId>{end}, "<|im_end|>").num_tokens, 0u) << "special";

  // No token lies across an edge, as none did when the span was generated.
  const std::vector<TextSpan> whole = {{0, 4, false, 0}};
  const std::vector<TokenId> space = {' '};
  const ExactSpan middle{1, 2, space};
  EXPECT_THAT(tokenizer.encode("    ", whole, false, {&middle, 1}).tokens,
              ElementsAre(' ', ' ', spaces));
}

TEST(Tokenizer, SpansThatMeetInAWordAreEncodedAsOne) {
  const Tokenizer tokenizer(byte_level());
  const std::vector<TextSpan> spans = {
      {0, 1, true, -1}, {1, 3, false, 0}, {3, 6, true, -1}, {6, 8, false, 1}};
  const Encoding encoding = tokenizer.encode("xhello y", spans, false);
  EXPECT_THAT(encoding.tokens, ElementsAre('x', 259, ' ', 'y'));
  EXPECT_THAT(encoding.messages, ElementsAre(-1, 0, 1, 1));
}

TEST(Tokenizer, MessagesAreFoundThroughNormalization) {
  Vocabulary vocabulary = byte_level({});
  vocabulary.pre_tokenizer = "qwen2";
  const Tokenizer tokenizer(vocabulary);
  // e and an acute accent become one character of two bytes, which begins in message 4.
  const std::vector<TextSpan> spans = {
      {0, 1, false, 3}, {1, 2, false, 4}, {2, 4, false, 5}, {4, 5, false, 6}};
  const Encoding encoding = tokenizer.encode("xe\u0301y", spans, false);
  EXPECT_THAT(encoding.tokens, ElementsAre('x', 0xC3, 0xA9, 'y'));
  EXPECT_THAT(encoding.messages, ElementsAre(3, 4, 4, 6));
}

TEST(Tokenizer, NormalizationDoesNotReachAcrossSpecialTokens) {
  Vocabulary vocabulary = byte_level({});
  vocabulary.pre_tokenizer = "qwen2";
  const TokenId end = add(vocabulary, "<|im_end|>", TokenKind::kControl);
  const Tokenizer tokenizer(vocabulary);
  // > and a long solidus overlay would compose to another character.
  EXPECT_THAT(tokenizer.encode("<|im_end|>\u0338", false, true), ElementsAre(end, 0xCC, 0xB8));
}

TEST(Tokenizer, AnyBytesComeBack) {
  const Tokenizer tokenizer(byte_level());
  std::string text;
  for (int a = 0; a < 256; ++a)
    for (int b = 0; b < 256; b += 5) text += {static_cast<char>(a), static_cast<char>(b)};
  std::string bytes;
  for (const TokenId token : tokenizer.encode(text, false, false))
    bytes += tokenizer.token_bytes(token, false);
  EXPECT_EQ(bytes, text);
}

TEST(Tokenizer, BeginsAndEndsTextsWhereTheModelAsksForIt) {
  Vocabulary vocabulary = byte_level();
  vocabulary.bos = add(vocabulary, "<s>", TokenKind::kControl);
  vocabulary.eos = add(vocabulary, "</s>", TokenKind::kControl);
  vocabulary.add_bos = vocabulary.add_eos = true;
  const Tokenizer tokenizer(vocabulary);
  const TextSpan span{0, 1, false, 5};
  const Encoding encoding = tokenizer.encode("x", {&span, 1}, true);
  EXPECT_THAT(encoding.tokens, ElementsAre(*vocabulary.bos, 'x', *vocabulary.eos));
  EXPECT_THAT(encoding.messages, ElementsAre(-1, 5, -1));
  EXPECT_THAT(tokenizer.encode("x", false, false), ElementsAre('x'));
  EXPECT_EQ(tokenizer.decode(encoding.tokens), "x");
  EXPECT_EQ(tokenizer.decode(encoding.tokens, true), "<s>x</s>");
}

TEST(Tokenizer, KnowsEveryTokenThatEndsATurn) {
  Vocabulary vocabulary = byte_level();
  const TokenId eos = add(vocabulary, "</s>", TokenKind::kControl);
  add(vocabulary, "<|im_start|>", TokenKind::kControl);
  const TokenId end = add(vocabulary, "<|im_end|>", TokenKind::kControl);
  const TokenId eot = add(vocabulary, "[stop]", TokenKind::kControl);
  vocabulary.eos = eos;
  vocabulary.eot = eot;
  const Tokenizer tokenizer(vocabulary);
  EXPECT_THAT(tokenizer.end_tokens(), ElementsAre(eos, end, eot));
  EXPECT_EQ(tokenizer.find("<|im_end|>"), end);
  EXPECT_EQ(tokenizer.find("<|nothing|>"), std::nullopt);
  EXPECT_EQ(tokenizer.token_text(end), "<|im_end|>");
}

TEST(Tokenizer, HarmonysMessagesEndNoTurn) {
  Vocabulary vocabulary = byte_level();
  std::vector<TokenId> tokens;
  std::string all;
  for (const std::string_view text : kHarmonyTokens) {
    tokens.push_back(add(vocabulary, std::string(text), TokenKind::kControl));
    all += text;
  }
  const TokenId other = add(vocabulary, "<|endoftext|>", TokenKind::kControl);
  const Tokenizer tokenizer(vocabulary);
  EXPECT_THAT(tokenizer.end_tokens(), ElementsAre(*tokenizer.find("<|call|>"), *tokenizer.find("<|return|>"), other));
  tokens.push_back(other);
  EXPECT_EQ(tokenizer.decode(tokens), all);
  EXPECT_GT(tokenizer.encode("<|end|>", false, false).size(), 1u) << "no user can write it";
  // Of another family it ends a turn, and is not shown.
  Vocabulary phi = byte_level();
  const TokenId end = add(phi, "<|end|>", TokenKind::kControl);
  const Tokenizer of_phi(phi);
  EXPECT_THAT(of_phi.end_tokens(), ElementsAre(end));
  EXPECT_EQ(of_phi.decode(std::vector<TokenId>{end}), "");
}

TEST(SentencePiece, PutsASpaceBeforeTextsAndTakesItAwayAgain) {
  Vocabulary vocabulary = sentence_piece();
  const TokenId end = add(vocabulary, "<end_of_turn>", TokenKind::kControl);
  const Tokenizer tokenizer(vocabulary);
  const TokenId space_a = *tokenizer.find("▁a"), a = *tokenizer.find("a"), b = *tokenizer.find("b");
  EXPECT_THAT(tokenizer.encode("ab", false, false), ElementsAre(space_a, b));
  EXPECT_THAT(tokenizer.encode("a<end_of_turn>a", false, true), ElementsAre(space_a, end, space_a));
  EXPECT_THAT(tokenizer.encode("", false, false), ElementsAre());
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{space_a, space_a}), "a a");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{a, space_a}), "a a");
  // What continues a text keeps its space.
  StreamDecoder answer(tokenizer), rest(tokenizer, false, /*continues_text=*/true);
  EXPECT_EQ(answer.push(space_a), "a");
  EXPECT_EQ(rest.push(space_a), " a");
  vocabulary.add_space_prefix = false;
  const Tokenizer plain(vocabulary);
  EXPECT_THAT(plain.encode("ab", false, false), ElementsAre(*plain.find("ab")));
  EXPECT_EQ(plain.decode(std::vector<TokenId>{space_a}), " a");
}

TEST(SentencePiece, BytesWrittenAsTextAreNotByteTokens) {
  Vocabulary vocabulary = sentence_piece();
  vocabulary.add_space_prefix = false;
  const Tokenizer tokenizer(vocabulary);
  const auto tokens = tokenizer.encode("<0x0A>", false, true);
  EXPECT_EQ(tokens.size(), 6u);
  EXPECT_EQ(tokenizer.decode(tokens), "<0x0A>");
}

TEST(SentencePiece, ReplacesEveryInvalidByte) {
  Vocabulary vocabulary = sentence_piece();
  vocabulary.add_space_prefix = false;
  const Tokenizer tokenizer(vocabulary);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xE4\xB8z", false, false)), "a\uFFFD\uFFFDz");
  const TokenId bytes[] = {1 + 0xE4, 1 + 0xB8, 1 + 'z', 1 + 0xE4, 1 + 0xB8, 1 + 0xAD};
  EXPECT_EQ(tokenizer.decode(bytes), "\uFFFD\uFFFDz中");
}

TEST(StreamDecoder, NeverShowsHalfACharacter) {
  const Tokenizer tokenizer(byte_level());
  StreamDecoder decoder(tokenizer);
  std::vector<std::string> parts;
  for (const char byte : std::string("a😀é"))
    parts.push_back(decoder.push(static_cast<std::uint8_t>(byte)));
  EXPECT_THAT(parts, ElementsAre("a", "", "", "", "😀", "", "é"));
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.push(0xC3), "");
  EXPECT_EQ(decoder.push('x'), "\uFFFDx");
}

TEST(StreamDecoder, ReplacesMaximalSubparts) {
  const Tokenizer tokenizer(byte_level());
  const auto decode = [&](const std::string& bytes) {
    std::vector<TokenId> tokens;
    for (const char byte : bytes) tokens.push_back(static_cast<std::uint8_t>(byte));
    return tokenizer.decode(tokens);
  };
  const std::string r = "\uFFFD";
  // The examples of Unicode 15, tables 3-8 to 3-11.
  EXPECT_EQ(decode("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(decode("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(decode("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(decode("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

TEST(Vocabulary, ByteLevelOnesThatAreMalformedAreRefused) {
  EXPECT_EQ(refusal(byte_level()), "not refused");
  const auto with = [](auto change) {
    Vocabulary vocabulary = byte_level();
    change(vocabulary);
    return refusal(vocabulary);
  };
  EXPECT_THAT(with([](auto& v) { v.model = "bert"; }), HasSubstr("tokenizer.ggml.model"));
  EXPECT_THAT(with([](auto& v) { v.pre_tokenizer = "x\n"; }), HasSubstr("tokenizer.ggml.pre: 'x?'"));
  EXPECT_THAT(with([](auto& v) { v.tokens.clear(), v.kinds.clear(); }), HasSubstr(".tokens: 0"));
  EXPECT_THAT(with([](auto& v) { v.tokens[7] = v.tokens[9]; }), HasSubstr(".tokens[9]: the same"));
  EXPECT_THAT(with([](auto& v) { v.tokens[7] = ""; }), HasSubstr(".tokens[7]: empty"));
  EXPECT_THAT(with([](auto& v) { v.tokens[7] = "\xFF"; }), HasSubstr(".tokens[7]: not UTF-8"));
  EXPECT_THAT(with([](auto& v) { v.tokens[7].assign(5000, 'x'); }), HasSubstr(".tokens[7]: 5000"));
  EXPECT_THAT(with([](auto& v) { v.tokens['a'] = "abc"; }), HasSubstr("the byte 0x61"));
  EXPECT_THAT(with([](auto& v) { v.kinds.pop_back(); }), HasSubstr(".token_type: 259 values"));
  EXPECT_THAT(with([](auto& v) { v.kinds[3] = TokenKind{9}; }), HasSubstr(".token_type[3]: 9"));
  EXPECT_THAT(with([](auto& v) { v.eos = 260; }), HasSubstr("eos_token_id: 260"));
  EXPECT_THAT(with([](auto& v) { v.bos = -1; }), HasSubstr("bos_token_id: -1"));
  EXPECT_THAT(with([](auto& v) { v.unk = 1 << 30; }), HasSubstr("unknown_token_id"));
}

// Each byte of theirs takes many in memory.
TEST(Vocabulary, SpecialTokensThatAreTooLongTogetherAreRefused) {
  constexpr int kMost = 4096;  // of as many bytes each
  Vocabulary vocabulary = byte_level();
  for (int i = 0; i <= kMost; ++i) {
    add(vocabulary, std::string(4092, 'x') + std::to_string(1000 + i),
        i % 2 == 0 ? TokenKind::kControl : TokenKind::kUserDefined);
  }
  EXPECT_THAT(refusal(vocabulary), HasSubstr("have 16781312 bytes together, 16777216 at most"));
}

TEST(Vocabulary, MergesThatAreMalformedAreRefused) {
  const auto with = [](const std::string& merge) {
    Vocabulary vocabulary = byte_level();
    add(vocabulary, "<s>", TokenKind::kControl);
    vocabulary.merges.push_back(merge);
    return refusal(vocabulary);
  };
  for (const char* merge : {"", " ", "a", "a ", " a", "a  b", "a b c"})
    EXPECT_THAT(with(merge), HasSubstr("merges[4]: not two tokens")) << merge;
  EXPECT_THAT(with("x y"), HasSubstr("merges[4]: what they make is not a token"));
  EXPECT_THAT(with("hel lo"), HasSubstr("merges[4]: the left one is not a token"));
  EXPECT_THAT(with("h ello"), HasSubstr("merges[4]: the right one is not a token"));
  EXPECT_THAT(with("h e"), HasSubstr("merges[4]: the pair stands above"));
  EXPECT_THAT(with("<s >"), HasSubstr("merges[4]: the left one is not a token"));
  EXPECT_THAT(with("<s> a"), HasSubstr("merges[4]: the left one is a special token"));
}

TEST(Vocabulary, SentencePieceOnesThatAreMalformedAreRefused) {
  EXPECT_EQ(refusal(sentence_piece()), "not refused");
  const auto with = [](auto change) {
    Vocabulary vocabulary = sentence_piece();
    change(vocabulary);
    return refusal(vocabulary);
  };
  EXPECT_THAT(with([](auto& v) { v.scores.pop_back(); }), HasSubstr("scores: 261 values"));
  EXPECT_THAT(with([](auto& v) { v.scores[8] = NAN; }), HasSubstr("scores[8]"));
  EXPECT_THAT(with([](auto& v) { v.tokens[3] = "<0x2>"; }), HasSubstr("tokens[3]: a byte token"));
  EXPECT_THAT(with([](auto& v) { v.kinds[3] = TokenKind::kNormal; }), HasSubstr("255 of the 256"));
  EXPECT_THAT(with([](auto& v) {
                for (int i = 1; i <= 256; ++i) v.kinds[i] = TokenKind::kNormal;
                v.unk.reset();
              }),
              HasSubstr("unknown_token_id"));
}

// Ten times the text takes ten times as long, with room for a busy machine; n^2 would take a
// hundred.
TEST(Tokenizer, LongWordsTakeNoLongerPerByte) {
  const Tokenizer tokenizer(byte_level({"a a", "aa aa", "aaaa a", "b a", "c b", "cb a", "d e"}));
  const auto seconds = [&](const std::string& text) {
    double best = 1e9;
    for (int run = 0; run < 3; ++run) {
      const std::clock_t start = std::clock();  // of this process alone
      EXPECT_FALSE(tokenizer.encode(text, false, false).empty());
      best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    return best;
  };
  for (const std::string& word : {std::string("a"), std::string("cbadeaab"), std::string("😀")}) {
    std::string text;
    while (text.size() < 30'000) text += word;
    std::string longer;
    for (int k = 0; k < 10; ++k) longer += text;
    EXPECT_LT(seconds(longer), 40 * seconds(text)) << word;
  }
}

TEST(Tokenizer, RefusesAWordThatWouldTakeTooMuchMemory) {
  const Tokenizer bpe(byte_level()), piece(sentence_piece());
  const std::string longest(kMaxWordSymbols - 1, 'a');  // the space before it is one more symbol
  for (const Tokenizer* tokenizer : {&bpe, &piece}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(longest, false, false)), longest);
    EXPECT_FALSE(tokenizer->encode(longest + " " + longest, false, false, kAnyNumber).empty());
    try {
      tokenizer->encode("b " + longest + "aa", false, false);
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kTooLarge);
      EXPECT_THAT(error.what(), HasSubstr("a word of more than 1048576"));
    }
  }
}

TEST(Tokenizer, RefusesATextOfTooManyTokens) {
  Vocabulary with_markers = byte_level();
  add(with_markers, "<|x|>", TokenKind::kControl);
  add(with_markers, "\n\n", TokenKind::kUserDefined);
  const Tokenizer bpe(with_markers), piece(sentence_piece());
  for (const Tokenizer* tokenizer : {&bpe, &piece}) {
    for (const char* part : {"a b", " abab", "<|x|>", "\n\n"}) {
      std::string text;
      for (int i = 0; i < 5; ++i) text += part;
      const std::size_t num_tokens = tokenizer->encode(text, false, true).size();
      EXPECT_EQ(tokenizer->encode(text, false, true, num_tokens).size(), num_tokens);
      try {
        tokenizer->encode(text, false, true, num_tokens - 1);
        ADD_FAILURE() << "not refused: " << text;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kPromptTooLong);
      }
    }
  }
}

TEST(Tokenizer, WordsWithoutATokenCountForNone) {
  Vocabulary vocabulary = byte_level();
  vocabulary.tokens[0] = "none";  // of the byte 0
  const Tokenizer tokenizer(vocabulary);
  constexpr std::size_t kNumTokens = 5;
  std::string text;
  for (std::size_t i = 0; i < kNumTokens; ++i) text += std::string("\0a", 2);
  EXPECT_EQ(tokenizer.encode(text, false, true, kNumTokens), std::vector<TokenId>(kNumTokens, 'a'));
  EXPECT_THROW(tokenizer.encode(text, false, true, kNumTokens - 1), Error);
}

// As the `tokenizers` library has SentencePiece's vocabularies: merges are the rule.
Vocabulary merged_pieces() {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "<s>", "\u2581", "a", "b", "ab", "\u2581a", "aa", "ba", "<b>", "\u2581\u2581", "aab"};
  vocabulary.kinds.assign(vocabulary.tokens.size(), TokenKind::kNormal);
  vocabulary.kinds[0] = TokenKind::kUnknown;
  vocabulary.kinds[1] = TokenKind::kControl;
  vocabulary.kinds[9] = vocabulary.kinds[10] = TokenKind::kUserDefined;
  vocabulary.unk = 0;
  // None makes "aa" out of "a a" alone, and "b a" comes first.
  vocabulary.merges = {"b a", "a b", "\u2581 a", "a ab"};
  vocabulary.add_space_prefix = false;
  return vocabulary;
}

TEST(Tokenizer, MergesOfPiecesAreTheRule) {
  const Tokenizer tokenizer(merged_pieces());
  const auto encode = [&](std::string_view text) { return tokenizer.encode(text, false, true); };
  EXPECT_EQ(encode("aa"), (std::vector<TokenId>{3, 3}));       // a piece that no merge makes
  EXPECT_EQ(encode("aba"), (std::vector<TokenId>{3, 8}));      // by rank, not from the left
  EXPECT_EQ(encode("aab"), (std::vector<TokenId>{11}));
  EXPECT_EQ(encode(" a"), (std::vector<TokenId>{6}));
  EXPECT_EQ(encode("a?!b"), (std::vector<TokenId>{3, 0, 4}));  // neighbouring unknown ones are one
  // User-defined tokens are those of the text as it is, not of its spaces.
  EXPECT_EQ(encode("a  b"), (std::vector<TokenId>{3, 2, 2, 4}));
  EXPECT_EQ(encode("a\u2581\u2581" "b"), (std::vector<TokenId>{3, 10, 4}));
  Vocabulary odd = merged_pieces();
  odd.merges.push_back("b a");
  EXPECT_THROW(Tokenizer{odd}, Error);
  odd.merges.back() = "zz a";
  EXPECT_THROW(Tokenizer{odd}, Error);
}

TEST(Tokenizer, PrefixesOfMergedPieces) {
  const auto encode = [](std::string_view text, bool start_only, bool no_space) {
    Vocabulary vocabulary = merged_pieces();
    vocabulary.add_space_prefix = true;
    vocabulary.prefixes_start_only = start_only;
    vocabulary.prefixes_no_space = no_space;
    return Tokenizer(vocabulary).encode(text, false, true);
  };
  using Ids = std::vector<TokenId>;
  // Before every text between added tokens.
  EXPECT_EQ(encode("a<s>a<b>b", false, false), (Ids{6, 1, 6, 9, 2, 4}));
  EXPECT_EQ(encode("<b>a", false, false), (Ids{9, 6}));
  EXPECT_EQ(encode(" a", false, false), (Ids{2, 6}));
  EXPECT_EQ(encode(" a<s>b", false, true), (Ids{6, 1, 2, 4}));
  EXPECT_EQ(encode("a<s>a<b>b", true, true), (Ids{6, 1, 3, 9, 4}));
  EXPECT_EQ(encode("<s>a", true, true), (Ids{1, 3}));
}

TEST(Tokenizer, MoreTokensMayEndATurn) {
  Vocabulary vocabulary = merged_pieces();
  vocabulary.ends = {9, 5};
  const Tokenizer tokenizer(vocabulary);
  EXPECT_EQ(std::vector<TokenId>(tokenizer.end_tokens().begin(), tokenizer.end_tokens().end()), (std::vector<TokenId>{5, 9}));
  vocabulary.ends = {12};
  EXPECT_THROW(Tokenizer{vocabulary}, Error);
}

}  // namespace
}  // namespace larder
