#include "grammar/json_numbers.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_state.h"

namespace larder {
namespace {

using NamedBounds = std::initializer_list<std::pair<std::string_view, std::string_view>>;

NumberBounds within(NamedBounds named) {
  NumberBounds bounds;
  for (const auto& [name, bound] : named) {
    if (name == ">=") bounds.least = bound;
    if (name == ">") bounds.above = bound;
    if (name == "<=") bounds.most = bound;
    if (name == "<") bounds.below = bound;
  }
  return bounds;
}

Grammar integers(const NumberBounds& bounds) {
  GrammarBuilder builder;
  return builder.finish(add_json_integer(builder, bounds));
}

Grammar numbers(const NumberBounds& bounds) {
  GrammarBuilder builder;
  return builder.finish(add_json_number(builder, bounds));
}

bool matches(const Grammar& grammar, std::string_view text) {
  GrammarState state(grammar);
  for (const char byte : text) {
    if (!state.push(static_cast<std::uint8_t>(byte))) return false;
    EXPECT_LE(state.num_places(), 2u) << text;  // digits, and what may come behind them
  }
  return state.is_whole();
}

void expect_all(const Grammar& grammar, const std::vector<std::string>& texts, bool match) {
  for (const std::string& text : texts) EXPECT_EQ(matches(grammar, text), match) << text;
}

// Thousandths, with all three digits behind the point.
std::string written(int thousandths) {
  const int magnitude = std::abs(thousandths);
  return fmt::format("{}{}.{:03}", thousandths < 0 ? "-" : "", magnitude / 1000, magnitude % 1000);
}

// The shortest way, without a point where it needs none.
std::string shortest(int thousandths) {
  std::string text = written(thousandths);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string written_any_way(int thousandths, std::mt19937& random) {
  const int magnitude = std::abs(thousandths);
  const char* sign = thousandths < 0 ? "-" : "";
  switch (random() % 5) {
    case 0:
      return written(thousandths);
    case 1:
      return fmt::format("{}{}e-3", sign, magnitude);
    case 2:
      return fmt::format("{}{}.{:02}E-01", sign, magnitude / 100, magnitude % 100);
    case 3:
      return fmt::format("{}0.00{:07}e+6", sign, magnitude);
    default:
      return shortest(thousandths);
  }
}

// Of random kinds and values, beside what they mean.
struct RandomBounds {
  NumberBounds bounds;
  int low = std::numeric_limits<int>::min(), high = std::numeric_limits<int>::max();

  RandomBounds(int most, int unit, std::mt19937& random) {
    const auto value = [&] { return (static_cast<int>(random() % (2 * most + 1)) - most) * unit; };
    const auto set = [&](std::optional<std::string>& bound, int thousandths) {
      bound = written_any_way(thousandths, random);
    };
    const int a = value(), b = value(), c = value();
    const int least = std::min(a, b), greatest = std::max(a, b);
    const unsigned kinds = random() % 16;
    if ((kinds & 1) != 0) set(bounds.least, least), low = least;
    if ((kinds & 2) != 0) set(bounds.most, greatest), high = greatest;
    if ((kinds & 4) != 0) set(bounds.above, std::min(c, least)), low = std::max(low, std::min(c, least) + 1);
    if ((kinds & 8) != 0) set(bounds.below, std::max(c, greatest)), high = std::min(high, std::max(c, greatest) - 1);
  }

  bool has(int thousandths) const { return low <= thousandths && thousandths <= high; }
  std::string text() const {
    const auto of = [](const std::optional<std::string>& bound) { return bound.value_or("none"); };
    return fmt::format(">= {} > {} <= {} < {}", of(bounds.least), of(bounds.above), of(bounds.most), of(bounds.below));
  }
};

const std::vector<std::string> kNoNumbers = {"",    "-",   "+1",  "01",  "00",   "-01",   ".5",   "1.",  "-.5",
                                             "1..", "1.-", "--1", "0x1", "1 ",   " 1",    "1e",   "1e+", "e1",
                                             "1.e", "1,5", "-00", "NaN", "1.0.", "1.0.0", "1e1.0"};

TEST(JsonNumbers, IntegersWithinBoundsAreThoseOfPlainComparison) {
  std::mt19937 random(1);
  int num_bounds = 0;
  for (int round = 0; round < 240; ++round) {
    const RandomBounds bounds(round % 3 == 0 ? 20 : 1200, 1000, random);
    bool any = false;
    for (int i = -1300; i <= 1300; ++i) any |= bounds.has(i * 1000);
    if (!any) {
      EXPECT_THROW(integers(bounds.bounds), Error) << bounds.text();
      continue;
    }
    const Grammar grammar = integers(bounds.bounds);
    EXPECT_LT(grammar.num_nodes(), 200u);
    for (int i = -1200; i <= 1200; ++i) {
      ASSERT_EQ(matches(grammar, std::to_string(i)), bounds.has(i * 1000)) << i << " of " << bounds.text();
    }
    expect_all(grammar, kNoNumbers, false);
    expect_all(grammar, {"-0", "1.0", "0.0", "1e0", "0e0", "-1200.0"}, false);
    ++num_bounds;
  }
  EXPECT_GT(num_bounds, 150);
}

TEST(JsonNumbers, IntegerBoundsMayLieBetweenIntegers) {
  std::mt19937 random(2);
  for (int round = 0; round < 150; ++round) {
    const RandomBounds bounds(3000, round % 2 == 0 ? 1 : 50, random);
    bool any = false;
    for (int i = -200; i <= 200; ++i) any |= bounds.has(i * 1000);
    if (!any) {
      EXPECT_THROW(integers(bounds.bounds), Error) << bounds.text();
      continue;
    }
    const Grammar grammar = integers(bounds.bounds);
    for (int i = -200; i <= 200; ++i) {
      ASSERT_EQ(matches(grammar, std::to_string(i)), bounds.has(i * 1000)) << i << " of " << bounds.text();
    }
  }
}

TEST(JsonNumbers, DecimalsWithinBoundsAreThoseOfPlainComparison) {
  std::mt19937 random(3);
  constexpr int kUnits[] = {1, 10, 100, 500, 1000};
  for (int round = 0; round < 60; ++round) {
    const int unit = kUnits[round % 5];
    const RandomBounds bounds(2200 / unit, unit, random);
    if (bounds.low > bounds.high) continue;
    const Grammar grammar = numbers(bounds.bounds);
    EXPECT_LT(grammar.num_nodes(), 400u);
    if (!bounds.bounds.any()) continue;
    for (int i = -2300; i <= 2300; i += round % 4 == 0 ? 1 : 7) {
      if (i == 0) continue;
      ASSERT_EQ(matches(grammar, written(i)), bounds.has(i)) << i << " of " << bounds.text();
      ASSERT_EQ(matches(grammar, shortest(i)), bounds.has(i)) << i << " of " << bounds.text();
      ASSERT_EQ(matches(grammar, written(i) + "0000000000000"), bounds.has(i)) << i << " of " << bounds.text();
      ASSERT_FALSE(matches(grammar, written(i) + "00000000000000"));
    }
    for (const char* zero : {"0", "0.0", "0.0000"}) EXPECT_EQ(matches(grammar, zero), bounds.has(0)) << bounds.text();
    expect_all(grammar, kNoNumbers, false);
    expect_all(grammar, {"1e1", "1.5e1", "0e0", "0E0"}, false);
  }
}

TEST(JsonNumbers, BetweenThousandthsToo) {
  const Grammar from = numbers(within({{">=", "0.5"}}));
  expect_all(from, {"0.5", "0.50", "0.5000000000000000", "0.5000000000000001", "0.51", "3", "3.0", "10"}, true);
  expect_all(from, {"0.4", "0.49999", "0.4999999999999999", "0", "-1", "-0.5", "0.50000000000000000"}, false);
  const Grammar above = numbers(within({{">", "0.5"}}));
  expect_all(above, {"0.5000000000000001", "0.51", "0.501", "1", "9999999999999999.9999999999999999"}, true);
  expect_all(above, {"0.5", "0.50", "0.5000000000000000", "0.4", "0", "10000000000000000"}, false);
  const Grammar below = numbers(within({{">=", "-3"}, {"<", "3.0"}}));
  expect_all(below, {"2.9999999999999999", "2", "0", "-3", "-3.0", "-3.000"}, true);
  expect_all(below, {"3", "3.0", "3.00", "-3.0000000000000001", "-3.1", "-4"}, false);
  const Grammar one = numbers(within({{">=", "3"}, {"<=", "3"}}));
  expect_all(one, {"3", "3.0", "3.000"}, true);
  expect_all(one, {"2", "4", "3.1", "30", "-3", "3.0000000000000001"}, false);
}

TEST(JsonNumbers, WithoutBounds) {
  const Grammar whole = integers({});
  EXPECT_LT(whole.num_nodes(), 60u);
  expect_all(whole, {"0", "7", "-7", "10", "123456789012345678", "-999999999999999999"}, true);
  expect_all(whole, {"-0", "1234567890123456789", "-1000000000000000000", "1.0", "1e1"}, false);
  expect_all(whole, kNoNumbers, false);
  const Grammar any = numbers({});
  EXPECT_LT(any.num_nodes(), 80u);
  expect_all(any, {"0", "-0", "0.0", "-0.0", "1.5e10", "1E-07", "0e0", "2e+99", "1234567890123456", "-1.5", "12e3"},
             true);
  expect_all(any, {"0.1234567890123456", "1234567890123456.1234567890123456e-12"}, true);
  expect_all(any, {"12345678901234567", "0.12345678901234567", "1e100", "1e1e1", "1e-", "0e+", "1.5e1.5"}, false);
  expect_all(any, kNoNumbers, false);
}

TEST(JsonNumbers, ExtremeBounds) {
  const Grammar all = integers(within({{">=", "-9223372036854775808"}, {"<=", "9223372036854775807"}}));
  expect_all(all, {"999999999999999999", "-999999999999999999", "0"}, true);
  expect_all(all, {"1000000000000000000", "9223372036854775807", "-9223372036854775808"}, false);
  const Grammar great = integers(within({{">=", "999999999999999990"}, {"<", "1e30"}}));
  expect_all(great, {"999999999999999990", "999999999999999999"}, true);
  expect_all(great, {"999999999999999989", "1000000000000000000", "-999999999999999990", "99999999999999999"}, false);
  expect_all(integers(within({{">", "-1E+400"}, {"<=", "-1"}})), {"-1", "-999999999999999999"}, true);
  expect_all(numbers(within({{">", "-1e999999999999999999999"}, {"<", "1e30"}})), {"-9999999999999999.9", "0"}, true);
  expect_all(numbers(within({{">", "-1e99"}, {"<", "1e30"}})), {"1e5"}, false);
  for (const char* zero : {"0", "-0", "-0.0", "0e5", "0.000", "-0E-400", "0e99999999999999999999"}) {
    const Grammar grammar = numbers(within({{">=", zero}}));
    expect_all(grammar, {"0", "0.0", "0.0000000000000001", "5"}, true);
    expect_all(grammar, {"-0.0000000000000001", "-1"}, false);
    expect_all(numbers(within({{">", zero}})), {"0", "0.0", "-1"}, false);
    expect_all(integers(within({{"<=", zero}})), {"0", "-1", "-10"}, true);
    expect_all(integers(within({{"<=", zero}})), {"1", "-0"}, false);
  }
  for (const NumberBounds& tiny :
       {within({{">=", "1e-20"}}), within({{">", "1e-20"}}), within({{">=", "1e-99999999999999"}})}) {
    expect_all(numbers(tiny), {"0.0000000000000001", "1"}, true);
    expect_all(numbers(tiny), {"0", "0.0", "0.0000000000000000", "-1"}, false);
    expect_all(integers(tiny), {"1"}, true);
    expect_all(integers(tiny), {"0", "-1"}, false);
  }
  const Grammar negative = numbers(within({{"<=", "-1e-20"}}));
  expect_all(negative, {"-0.0000000000000001", "-1"}, true);
  expect_all(negative, {"0", "-0", "-0.0", "1"}, false);
  const std::string shifted = "0." + std::string(1000, '0') + "25e1002";
  expect_all(integers(within({{">=", shifted}, {"<=", shifted}})), {"25"}, true);
  const std::string long_one = "25" + std::string(1000, '0') + "1e-1002";
  expect_all(integers(within({{">=", long_one}, {"<=", "4"}})), {"3", "4"}, true);
  expect_all(integers(within({{">=", long_one}, {"<=", "4"}})), {"2", "5"}, false);
}

TEST(JsonNumbers, EveryNumberOfDigitsTakesFewNodes) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 100; ++round) {
    const auto some = [&] { return static_cast<std::int64_t>(random() % 1'000'000'000'000'000'000) >> random() % 60; };
    const std::int64_t a = some(), b = some();
    const std::int64_t low = random() % 2 == 0 ? -a : std::min(a, b), high = std::max(a, b);
    const Grammar whole = integers(within({{">=", std::to_string(low)}, {"<=", std::to_string(high)}}));
    EXPECT_LT(whole.num_nodes(), 300u);
    for (const std::int64_t i : {low, low + (high - low) / 2, high})
      EXPECT_TRUE(matches(whole, std::to_string(i))) << i;
    for (const std::int64_t i : {low - 1, high + 1}) EXPECT_FALSE(matches(whole, std::to_string(i))) << i;
    // The numbers next to a bound, too.
    const std::string least = std::to_string(low % 10'000'000'000), most = std::to_string(high % 100 + 10'000'000'000);
    const Grammar any = numbers(within({{">", least + ".0123450678901234"}, {"<", most + ".0123450678901234"}}));
    const char* inside = low < 0 ? ".0123450678901233" : ".0123450678901235";
    const char* outside = low < 0 ? ".0123450678901235" : ".0123450678901233";
    if (low != 0) expect_all(any, {least + inside, most + ".0123450678901233", most + ".012345"}, true);
    expect_all(any, {least + ".0123450678901234", most + ".0123450678901234", most + ".0123450678901235"}, false);
    expect_all(any, {least + outside, most + ".0123451"}, false);
    EXPECT_LT(any.num_nodes(), 500u);
  }
}

std::string message_of(Grammar (*make)(const NumberBounds&), const NumberBounds& bounds) {
  try {
    make(bounds);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.message();
  }
  return "no error";
}

TEST(JsonNumbers, BoundsThatLeaveNothingAreRefused) {
  const NumberBounds none[] = {within({{">=", "3"}, {"<=", "2"}}),
                               within({{">", "3"}, {"<=", "3"}}),
                               within({{">=", "3"}, {"<", "3.0"}}),
                               within({{">=", "5e30"}}),
                               within({{"<=", "-5e30"}}),
                               within({{">=", "1"}, {">", "5"}, {"<=", "9"}, {"<", "5"}}),
                               within({{">", "0"}, {"<", "0.00000000000000001"}})};
  for (const NumberBounds& bounds : none) {
    EXPECT_NE(message_of(integers, bounds).find("leave no integer"), std::string::npos);
    EXPECT_NE(message_of(numbers, bounds).find("leave no number"), std::string::npos);
  }
  EXPECT_NE(message_of(integers, within({{">", "3"}, {"<", "4"}})).find("leave no integer"), std::string::npos);
  EXPECT_NE(message_of(integers, within({{">=", "0.1"}, {"<=", "0.9"}})).find("leave no integer"), std::string::npos);
  EXPECT_NE(message_of(integers, within({{">=", "1000000000000000000"}})).find("leave no integer"), std::string::npos);
  EXPECT_EQ(message_of(numbers, within({{">", "3"}, {"<", "4"}})), "no error");
}

TEST(JsonNumbers, BoundsThatAreNoNumbersAreRefused) {
  for (const std::string& bound : kNoNumbers) {
    for (const NumberBounds& bounds :
         {within({{">=", bound}}), within({{">", bound}}), within({{"<=", bound}}), within({{"<", bound}})}) {
      EXPECT_NE(message_of(integers, bounds).find(fmt::format("'{}', which is no number", bound)), std::string::npos);
      EXPECT_NE(message_of(numbers, bounds).find("no number"), std::string::npos);
    }
  }
  EXPECT_NE(message_of(integers, within({{">=", std::string("1\0", 2)}})).find("no number"), std::string::npos);
}

TEST(JsonNumbers, AreComparedExactly) {
  const std::vector<std::string> ascending = {"-1e30", "-123456789012345678901234567890", "-12345678901234567890123456789e0",
                                              "-2",    "-0.05",                           "0",
                                              "1e-9",  "0.05",                            "0.5",
                                              "1",     "12.5",                            "99",
                                              "1e2",   "123456789012345678901234567890"};
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    for (std::size_t j = 0; j < ascending.size(); ++j)
      EXPECT_EQ(is_less(ascending[i], ascending[j]), i < j) << ascending[i] << " " << ascending[j];
  }
  for (const char* zero : {"0", "-0", "0.00", "0e5", "-0e-5"}) {
    EXPECT_FALSE(is_less(zero, "0"));
    EXPECT_FALSE(is_less("0", zero));
  }
  EXPECT_FALSE(is_less("1.50", "15e-1"));
  EXPECT_FALSE(is_less("15e-1", "1.50"));
  EXPECT_THROW(is_less("1", "x"), Error);
  EXPECT_TRUE(is_within("2", {.least = "2", .most = "2.0"}));
  EXPECT_FALSE(is_within("2", {.above = "2"}));
  EXPECT_FALSE(is_within("2", {.below = "2"}));
  EXPECT_TRUE(is_within("2", {.above = "1.9", .below = "2.1"}));
  EXPECT_FALSE(is_within("2", {.least = "2.1"}));
  EXPECT_FALSE(is_within("2", {.most = "1.9"}));
}

}  // namespace
}  // namespace larder
