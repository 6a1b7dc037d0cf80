#include "server/cache_marks.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace larder {
namespace {

using Key = std::pair<int, int>;

Key key_of(const CacheMark& mark) { return {mark.message, mark.part}; }

}  // namespace

std::vector<PromptPin> place_marks(std::span<const CacheMark> marks, const RenderedPrompt& prompt,
                                   const Encoding& encoding) {
  std::vector<CacheMark> sorted(marks.begin(), marks.end());
  std::ranges::stable_sort(sorted, {}, key_of);
  std::vector<std::size_t> ends(sorted.size(), 0);  // bytes
  for (const TextSpan& span : prompt.spans) {
    if (span.message < 0 && span.tool < 0) continue;
    const Key key = span.tool >= 0 ? Key{-1, span.tool} : Key{span.message, span.part};
    const auto covering = std::ranges::lower_bound(sorted, key, {}, key_of);
    if (covering == sorted.end()) continue;
    std::size_t& end = ends[static_cast<std::size_t>(covering - sorted.begin())];
    end = std::max(end, span.end);
  }
  std::vector<PromptPin> pins;
  std::size_t end = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    end = std::max(end, ends[i]);
    const int num_tokens = num_tokens_within(encoding, end, prompt.text.size());
    if (num_tokens < kBlockSize) continue;
    if (!pins.empty() && pins.back().num_tokens == num_tokens) {
      pins.back().ttl_s = std::max(pins.back().ttl_s, sorted[i].ttl_s);
    } else {
      pins.push_back({.num_tokens = num_tokens, .ttl_s = sorted[i].ttl_s});
    }
  }
  return pins;
}

}  // namespace larder
