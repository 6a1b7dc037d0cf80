#include "server/chat/cache_marks.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "server/json_fields.h"

namespace larder {
namespace {

using Key = std::pair<int, int>;

constexpr int kMinute = 60;  // in seconds

Key key_of(const CacheMark& mark) { return {mark.message, mark.part}; }

}  // namespace

std::optional<CacheMark> read_breakpoint(const Fields& part, int default_ttl_s) {
  const Json* value = part.find("prompt_cache_breakpoint");
  if (value == nullptr) return std::nullopt;
  const Fields inner(*value, part.path_of("prompt_cache_breakpoint"));
  const auto mode = inner.string("mode", kMaxNameBytes);
  if (mode != "explicit") inner.fail("mode", "must be \"explicit\"");
  const std::string ttl = read_either(inner, "ttl", "30m", "12h");
  if (ttl.empty()) return CacheMark{.ttl_s = default_ttl_s};
  return CacheMark{.ttl_s = ttl == "12h" ? 12 * 60 * kMinute : 30 * kMinute};
}

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
