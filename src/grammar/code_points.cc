#include "grammar/code_points.h"

#include <algorithm>
#include <utility>

namespace larder {

CodePointSet complement(CodePointSet set) {
  set.push_back(kSurrogates);
  std::ranges::sort(set, {}, &CodePointRange::first);
  CodePointSet others;
  char32_t next = 0;
  for (const CodePointRange& range : set) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = std::max<char32_t>(next, range.last + 1);
  }
  if (next <= kMaxCodePoint) others.push_back({next, kMaxCodePoint});
  return others;
}

CodePointSet normal_form(CodePointSet set) { return complement(complement(std::move(set))); }

}  // namespace larder
