// Ranges of characters as the bytes that UTF-8 writes them with.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "grammar/code_points.h"
#include "grammar/grammar_builder.h"

namespace larder {

// All ways by one character of a class between two nodes. Characters share the nodes behind the bytes that they have
// in common: no more than one way is open at a time, whatever the class, so long as its ranges do not overlap.
class CodePointPaths {
 public:
  CodePointPaths(GrammarBuilder& builder, GrammarNode from, GrammarNode to);

  // Those of [first, last] that are characters: surrogates and what lies above kMaxCodePoint are left out.
  void add(char32_t first, char32_t last);

 private:
  static constexpr int kMostFollowing = 3;  // bytes of a character behind its first

  void add_bytes(GrammarNode from, char32_t first, char32_t last, int num_following, std::uint8_t mark);
  GrammarNode node_before_any(int num_following);
  GrammarNode node_behind(GrammarNode from, std::uint8_t byte);

  GrammarBuilder& builder_;
  const GrammarNode from_;
  GrammarNode before_any_[kMostFollowing + 1];  // that many bytes, whichever they are; the last is `to`
  int num_before_any_ = 1;                      // made so far
  std::map<std::pair<GrammarNode, std::uint8_t>, GrammarNode> behind_;  // bytes of which not all may follow
};

// Ways from one node to the other by any character of [first, last].
void add_code_points(GrammarBuilder& builder, GrammarNode from, char32_t first, char32_t last, GrammarNode to);

}  // namespace larder
