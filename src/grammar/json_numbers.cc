#include "grammar/json_numbers.h"

#include <algorithm>
#include <compare>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/printable.h"

namespace larder {
namespace {

// A number by how many of its last digit there are in it: 1.5 as 15 * 10^15 where 16 digits are behind the point.
using Units = __int128;

// How many digits a number may have.
struct NumberSize {
  int before, behind;  // the point

  constexpr int both() const { return before + behind; }
};

constexpr NumberSize kIntegerSize{18, 0};
constexpr NumberSize kNumberSize{16, 16};
static_assert(kNumberSize.both() <= 37, "or Units overflow");

struct UnitRange {
  Units low, high;  // both of them, too
};

Units power_of_ten(int exponent) {
  Units power = 1;
  for (int i = 0; i < exponent; ++i) power *= 10;
  return power;
}

Units greatest(NumberSize size) { return power_of_ten(size.both()) - 1; }

// --- bounds

// As it is written.
struct WrittenNumber {
  bool is_negative = false;
  std::string digits;      // without the point
  std::int64_t point = 0;  // where it is among them, or so far before or behind them
};

class NumberReader {
 public:
  explicit NumberReader(std::string_view text) : text_(text) {}

  WrittenNumber read() {
    WrittenNumber number;
    number.is_negative = take('-');
    number.digits = read_digits();
    if (number.digits.size() > 1 && number.digits.front() == '0') fail();
    number.point = static_cast<std::int64_t>(number.digits.size());
    if (take('.')) number.digits += read_digits();
    if (take('e') || take('E')) number.point += read_exponent();
    if (at_ != text_.size()) fail();
    return number;
  }

 private:
  [[noreturn]] void fail() const {
    throw_invalid("has the bound '{}', which is no number as JSON writes it", printable(text_));
  }

  bool take(char c) {
    const bool is_next = at_ < text_.size() && text_[at_] == c;
    at_ += is_next ? 1 : 0;
    return is_next;
  }

  std::string_view read_digits() {
    const std::size_t end = std::min(text_.find_first_not_of("0123456789", at_), text_.size());
    if (end == at_) fail();
    const std::string_view digits = text_.substr(at_, end - at_);
    at_ = end;
    return digits;
  }

  std::int64_t read_exponent() {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;  // no text has as many digits to make up for it
    const bool is_negative = take('-');
    if (!is_negative) take('+');
    std::int64_t exponent = 0;
    for (const char digit : read_digits()) exponent = std::min(exponent * 10 + (digit - '0'), kMost);
    return is_negative ? -exponent : exponent;
  }

  const std::string_view text_;
  std::size_t at_ = 0;
};

// Without the zeros that mean nothing; no digits are zero.
WrittenNumber read_shortest(const std::string& text) {
  WrittenNumber number = NumberReader(text).read();
  const std::size_t num_zeros = std::min(number.digits.find_first_not_of('0'), number.digits.size());
  number.point -= static_cast<std::int64_t>(num_zeros);
  number.digits.erase(0, num_zeros);
  while (number.digits.ends_with('0')) number.digits.pop_back();
  return number.digits.empty() ? WrittenNumber{} : number;
}

bool is_magnitude_less(const WrittenNumber& one, const WrittenNumber& other) {
  if (one.digits.empty() || other.digits.empty()) return one.digits.size() < other.digits.size();
  return std::tie(one.point, one.digits) < std::tie(other.point, other.digits);
}

// A bound between the two numbers next to it, which are the same where it is one of them.
UnitRange around(const std::string& bound, NumberSize size) {
  const WrittenNumber number = NumberReader(bound).read();
  const std::int64_t num_whole = number.point + size.behind;  // digits that make up the units
  const Units beyond = greatest(size) + 1;
  Units units = 0;
  bool has_rest = false;
  for (std::size_t i = 0; i < number.digits.size(); ++i) {
    const char digit = number.digits[i];
    const bool is_whole = static_cast<std::int64_t>(i) < num_whole;
    if (is_whole) units = std::min(units * 10 + (digit - '0'), beyond);
    has_rest |= !is_whole && digit != '0';
  }
  const std::int64_t num_zeros = num_whole - static_cast<std::int64_t>(number.digits.size());
  for (std::int64_t i = 0; i < num_zeros && units != 0 && units != beyond; ++i) units = std::min(units * 10, beyond);
  const Units next = units + (has_rest ? 1 : 0);
  return number.is_negative ? UnitRange{-next, -units} : UnitRange{units, next};
}

UnitRange range_of(const NumberBounds& bounds, NumberSize size) {
  UnitRange range{-greatest(size), greatest(size)};
  if (bounds.least) range.low = std::max(range.low, around(*bounds.least, size).high);
  if (bounds.above) range.low = std::max(range.low, around(*bounds.above, size).low + 1);
  if (bounds.most) range.high = std::min(range.high, around(*bounds.most, size).low);
  if (bounds.below) range.high = std::min(range.high, around(*bounds.below, size).high - 1);
  return range;
}

// --- digits

// Every text of the numbers of a range that has none below zero. It is read along the digits of the two bounds, for
// every number of digits that it may turn out to have; a node is for all those readings, so that only one of them is
// ever open.
class DigitPaths {
 public:
  DigitPaths(GrammarBuilder& builder, NumberSize size, UnitRange range)
      : builder_(builder),
        num_before_(static_cast<std::size_t>(size.before)),
        low_(digits_of(range.low, size)),
        high_(digits_of(range.high, size)) {
    CHECK(0 <= range.low && range.low <= range.high);
  }

  Fragment build() {
    const Fragment whole{builder_.add_node(), end_ = builder_.add_node()};
    add_steps(first_readings(), whole.begin, true);
    while (!open_.empty()) {
      const auto [readings, node] = std::move(open_.back());
      open_.pop_back();
      if (std::ranges::any_of(readings, [this](const Reading& r) { return may_end(r); }))
        builder_.add_empty(node, end_);
      add_steps(readings, node, false);
    }
    return whole;
  }

 private:
  struct Reading {
    std::size_t position = 0;  // among the bounds' digits
    bool is_on_low = false;    // the same as the bound so far, and the rest of that is not all zeros
    bool is_on_high = false;   // nor all nines

    auto operator<=>(const Reading&) const = default;
  };
  using Readings = std::vector<Reading>;  // ascending

  // As many for every number.
  static std::string digits_of(Units units, NumberSize size) {
    std::string digits(static_cast<std::size_t>(size.both()), '0');
    for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit, units /= 10) {
      *digit = static_cast<char>('0' + static_cast<int>(units % 10));
    }
    if (size.behind > 0) digits.insert(static_cast<std::size_t>(size.before), 1, '.');
    return digits;
  }

  // Where it begins when it is written without zeros in front.
  std::size_t begin_of(const std::string& digits) const {
    return std::min(digits.find_first_not_of('0'), num_before_ - 1);
  }

  Readings first_readings() const {
    Readings readings;
    for (std::size_t begin = begin_of(high_); begin <= begin_of(low_); ++begin) {
      readings.push_back(simplified({begin, begin == begin_of(low_), begin == begin_of(high_)}));
    }
    return readings;
  }

  Reading simplified(Reading reading) const {
    reading.is_on_low &= low_.find_first_not_of("0.", reading.position) != std::string::npos;
    reading.is_on_high &= high_.find_first_not_of("9.", reading.position) != std::string::npos;
    return reading;
  }

  // Without a point, or with a digit behind it. Zeros for the digits that are missing make no number too great.
  bool may_end(const Reading& reading) const {
    const bool is_written = reading.position == num_before_ || reading.position > num_before_ + 1;
    return is_written && !reading.is_on_low;
  }

  bool may_follow(const Reading& reading, char c, bool is_first) const {
    if (reading.position == low_.size()) return false;
    const bool is_point = low_[reading.position] == '.';
    if (is_point || c == '.') return is_point && c == '.';
    if (is_first && c == '0' && reading.position + 1 != num_before_) return false;
    return !(reading.is_on_low && c < low_[reading.position]) && !(reading.is_on_high && c > high_[reading.position]);
  }

  Readings after(const Readings& readings, char c, bool is_first) const {
    Readings next;
    for (const Reading& reading : readings) {
      if (!may_follow(reading, c, is_first)) continue;
      next.push_back(simplified({reading.position + 1, reading.is_on_low && c == low_[reading.position],
                                 reading.is_on_high && c == high_[reading.position]}));
    }
    return next;
  }

  void add_steps(const Readings& readings, GrammarNode from, bool is_first) {
    char first = '0';
    for (char c = '0'; c <= '9'; ++c) {
      const Readings next = after(readings, c, is_first);
      if (c < '9' && after(readings, static_cast<char>(c + 1), is_first) == next) continue;
      add_step(from, first, c, next);
      first = static_cast<char>(c + 1);
    }
    add_step(from, '.', '.', after(readings, '.', is_first));
  }

  void add_step(GrammarNode from, char first, char last, const Readings& next) {
    if (next.empty()) return;
    builder_.add_bytes(from, {static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last)}, node_of(next));
  }

  GrammarNode node_of(const Readings& readings) {
    const auto known = nodes_.find(readings);
    if (known != nodes_.end()) return known->second;
    const GrammarNode node = builder_.add_node();
    nodes_.emplace(readings, node);
    open_.emplace_back(readings, node);
    return node;
  }

  GrammarBuilder& builder_;
  const std::size_t num_before_;  // digits before the point
  const std::string low_, high_;
  GrammarNode end_ = 0;
  std::map<Readings, GrammarNode> nodes_;
  std::vector<std::pair<Readings, GrammarNode>> open_;  // made, but for what follows
};

Fragment add_minus(GrammarBuilder& builder) { return builder.text("-"); }

// Zero has no sign.
Fragment add_range(GrammarBuilder& builder, NumberSize size, UnitRange range) {
  std::vector<Fragment> parts;
  if (range.low < 0) {
    const UnitRange magnitudes{std::max<Units>(-range.high, 1), -range.low};
    parts.push_back(builder.sequence({add_minus(builder), DigitPaths(builder, size, magnitudes).build()}));
  }
  if (range.high >= 0) {
    parts.push_back(DigitPaths(builder, size, {std::max<Units>(range.low, 0), range.high}).build());
  }
  return builder.choice(parts);
}

Fragment add_any_number(GrammarBuilder& builder) {
  const auto digit = [&] { return builder.bytes({{'0', '9'}}); };
  const Fragment digits = DigitPaths(builder, kNumberSize, {0, greatest(kNumberSize)}).build();
  const Fragment sign = builder.optional(builder.bytes({{'+', '+'}, {'-', '-'}}));
  const Fragment exponent =
      builder.sequence({builder.bytes({{'E', 'E'}, {'e', 'e'}}), sign, digit(), builder.optional(digit())});
  return builder.sequence({builder.optional(add_minus(builder)), digits, builder.optional(exponent)});
}

}  // namespace

bool is_less(const std::string& one, const std::string& other) {
  const WrittenNumber left = read_shortest(one), right = read_shortest(other);
  if (left.is_negative != right.is_negative) return left.is_negative;
  return left.is_negative ? is_magnitude_less(right, left) : is_magnitude_less(left, right);
}

bool is_within(const std::string& number, const NumberBounds& bounds) {
  return !(bounds.least && is_less(number, *bounds.least)) && !(bounds.above && !is_less(*bounds.above, number)) &&
         !(bounds.most && is_less(*bounds.most, number)) && !(bounds.below && !is_less(number, *bounds.below));
}

Fragment add_json_integer(GrammarBuilder& builder, const NumberBounds& bounds) {
  const UnitRange range = range_of(bounds, kIntegerSize);
  if (range.low > range.high) {
    throw_invalid("has bounds that leave no integer of at most {} digits; widen them", kIntegerSize.before);
  }
  return add_range(builder, kIntegerSize, range);
}

Fragment add_json_number(GrammarBuilder& builder, const NumberBounds& bounds) {
  if (!bounds.any()) return add_any_number(builder);
  const UnitRange range = range_of(bounds, kNumberSize);
  if (range.low > range.high) {
    throw_invalid("has bounds that leave no number of at most {} digits before its point and {} behind it; widen them",
                  kNumberSize.before, kNumberSize.behind);
  }
  return add_range(builder, kNumberSize, range);
}

}  // namespace larder
