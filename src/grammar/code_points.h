// Sets of Unicode's characters.
#pragma once

#include <vector>

namespace larder {

inline constexpr char32_t kMaxCodePoint = 0x10FFFF;

struct CodePointRange {
  char32_t first, last;  // both of them, too
};
using CodePointSet = std::vector<CodePointRange>;

inline constexpr CodePointRange kSurrogates = {0xD800, 0xDFFF};  // which are no characters

// All characters that are not in the set, in order.
CodePointSet complement(CodePointSet set);

// In order, and none twice; characters only.
CodePointSet normal_form(CodePointSet set);

}  // namespace larder
