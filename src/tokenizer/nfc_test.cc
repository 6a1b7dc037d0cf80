#include "tokenizer/nfc.h"

#include <gtest/gtest.h>
#include <unicode/normalizer2.h>

#include <algorithm>
#include <random>

#include "tokenizer/utf8.h"

namespace larder {
namespace {

std::string icu_nfc(const std::string& text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(status);
  std::string out;
  nfc->normalize(icu::UnicodeString::fromUTF8(text), status).toUTF8String(out);
  EXPECT_TRUE(U_SUCCESS(status));
  return out;
}

// Marks of many classes, such that are made of two, and what joins its neighbour without being a mark.
std::string random_marks(std::size_t num_chars, std::mt19937& random) {
  constexpr char32_t kChars[] = {0x301, 0x301, 0x316, 0x327, 0x344, 0x340, 0xF73,
                                 0xF71, 0xF80, 0x5B0, 0x3099, 0x1161, 0x11A8, 0x1D16D};
  std::string text;
  for (std::size_t i = 0; i < num_chars; ++i)
    append_utf8(kChars[random() % std::size(kChars)], text);
  return text;
}

TEST(Nfc, TextInTheFormIsToldApart) {
  for (const std::string text : {"", "plain", "\u00e9t\u00e9", "\xff\xfe \u00e9", "\uac00"})
    EXPECT_FALSE(to_nfc(text)) << text;
  const auto composed = to_nfc("xe\u0301\xff\u1100\u1161");
  ASSERT_TRUE(composed);
  EXPECT_EQ(composed->text, "x\u00e9\xff\uac00");
  EXPECT_EQ(composed->origin, (std::vector<std::uint32_t>{0, 1, 1, 4, 5, 5, 5}));
}

TEST(Nfc, LongRunsOfMarksAreWhatICUMakesOfThem) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string text = "head ";
    for (int i = 0; i < 3; ++i) {
      text += std::string_view(i == 0 ? "a" : i == 1 ? "\u00e9" : "\u1100");
      text += random_marks(random() % 200, random);
      if (random() % 2 == 0) text += " and ";
    }
    const auto normal = to_nfc(text);
    const std::string expected = icu_nfc(text);
    ASSERT_EQ(normal ? normal->text : text, expected) << round;
    if (!normal) continue;
    ASSERT_EQ(normal->origin.size(), expected.size());
    EXPECT_TRUE(std::ranges::is_sorted(normal->origin));
    EXPECT_LT(normal->origin.back(), text.size());
    EXPECT_EQ(normal->origin[3], 3u);
  }
}

// Put in order by insertion, as ICU does it, these would take some minutes.
TEST(Nfc, AMegabyteOfMarksIsPutInOrder) {
  constexpr std::size_t kMarks = std::size_t{1} << 18;
  std::string text = "a", expected = "\u0105";
  for (std::size_t i = 0; i < kMarks; ++i) text += "\u0301";
  for (std::size_t i = 0; i < kMarks; ++i) text += "\u0328";  // below, so before
  for (std::size_t i = 1; i < kMarks; ++i) expected += "\u0328";
  for (std::size_t i = 0; i < kMarks; ++i) expected += "\u0301";
  const auto normal = to_nfc(text);
  ASSERT_TRUE(normal);
  EXPECT_TRUE(normal->text == expected);
}

}  // namespace
}  // namespace larder
