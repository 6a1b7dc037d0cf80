#include "grammar/utf8_ranges.h"

#include <algorithm>

namespace larder {
namespace {

constexpr int kFollowingBits = 6;  // of a character in each byte behind the first
constexpr std::uint8_t kFollowingMark = 0x80;

// By how many bytes follow the first: the last character of that length, and what its first byte is marked with.
constexpr char32_t kLastOfLength[] = {0x7F, 0x7FF, 0xFFFF, kMaxCodePoint};
constexpr std::uint8_t kFirstMarks[] = {0x00, 0xC0, 0xE0, 0xF0};

}  // namespace

CodePointPaths::CodePointPaths(GrammarBuilder& builder, GrammarNode from, GrammarNode to)
    : builder_(builder), from_(from), before_any_{to} {}

void CodePointPaths::add(char32_t first, char32_t last) {
  if (first < kSurrogates.first && last >= kSurrogates.first) add(first, kSurrogates.first - 1);
  if (last >= kSurrogates.first && first <= kSurrogates.last) first = kSurrogates.last + 1;
  char32_t first_of_length = 0;
  for (int num_following = 0; num_following <= kMostFollowing; ++num_following) {
    const char32_t begin = std::max(first, first_of_length), end = std::min(last, kLastOfLength[num_following]);
    if (begin <= end) add_bytes(from_, begin, end, num_following, kFirstMarks[num_following]);
    first_of_length = kLastOfLength[num_following] + 1;
  }
}

// Characters by their lowest bits, those of the next byte and of so many behind it.
void CodePointPaths::add_bytes(GrammarNode from, char32_t first, char32_t last, int num_following, std::uint8_t mark) {
  const int shift = num_following * kFollowingBits;
  const char32_t rest = (char32_t{1} << shift) - 1;
  const auto byte_of = [&](char32_t code_point) { return static_cast<std::uint8_t>(mark | code_point >> shift); };
  const auto add_some = [&](char32_t begin, char32_t end) {  // with the same byte
    const GrammarNode next = node_behind(from, byte_of(begin));
    add_bytes(next, begin & rest, end & rest, num_following - 1, kFollowingMark);
  };
  const bool is_one_byte = byte_of(first) == byte_of(last);
  if (is_one_byte && ((first & rest) != 0 || (last & rest) != rest)) return add_some(first, last);
  if ((first & rest) != 0) {
    add_some(first, first | rest);
    first = (first | rest) + 1;
  }
  if ((last & rest) != rest) {
    add_some(last & ~rest, last);
    last = (last & ~rest) - 1;
  }
  if (first <= last) builder_.add_bytes(from, {byte_of(first), byte_of(last)}, node_before_any(num_following));
}

GrammarNode CodePointPaths::node_before_any(int num_following) {
  for (; num_before_any_ <= num_following; ++num_before_any_) {
    const GrammarNode node = builder_.add_node();
    builder_.add_bytes(node, {kFollowingMark, kFollowingMark | 0x3F}, before_any_[num_before_any_ - 1]);
    before_any_[num_before_any_] = node;
  }
  return before_any_[num_following];
}

GrammarNode CodePointPaths::node_behind(GrammarNode from, std::uint8_t byte) {
  const auto known = behind_.find({from, byte});
  if (known != behind_.end()) return known->second;
  const GrammarNode node = builder_.add_node();
  builder_.add_bytes(from, {byte, byte}, node);
  behind_.emplace(std::pair(from, byte), node);
  return node;
}

void add_code_points(GrammarBuilder& builder, GrammarNode from, char32_t first, char32_t last, GrammarNode to) {
  CodePointPaths(builder, from, to).add(first, last);
}

}  // namespace larder
