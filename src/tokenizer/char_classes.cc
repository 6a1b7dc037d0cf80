#include "tokenizer/char_classes.h"

#include <algorithm>
#include <iterator>

namespace larder {
namespace {

struct Range {
  char32_t first, last;
  std::uint8_t classes;
};

constexpr Range kRanges[] = {
#include "tokenizer/unicode_ranges.inc"
};

}  // namespace

CharClasses::CharClasses() : table_(std::rbegin(kRanges)->last + 1) {
  for (const Range& range : kRanges)
    std::fill(table_.begin() + range.first, table_.begin() + range.last + 1, range.classes);
}

}  // namespace larder
