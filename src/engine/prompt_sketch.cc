#include "engine/prompt_sketch.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace larder {
namespace {

constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio

std::uint64_t token_value(TokenId token) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(token)) + 1;
}

// Of every run of kShingle tokens, by a polynomial that rolls along.
template <class Function>
void each_shingle(std::span<const TokenId> tokens, Function function) {
  if (tokens.size() < kShingle) return;
  std::uint64_t high = 1;
  for (int i = 0; i < kShingle; ++i) high *= kOdd;
  std::uint64_t rolling = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    rolling = (rolling + token_value(tokens[i])) * kOdd;
    if (i >= kShingle) rolling -= token_value(tokens[i - kShingle]) * high * kOdd;
    if (i + 1 >= kShingle) function(static_cast<int>(i + 1 - kShingle), rolling);
  }
}

// The first place of each shingle, for at most kRealignTokens of them.
class ShinglePlaces {
 public:
  explicit ShinglePlaces(std::size_t num_most)
      : slots_(std::bit_ceil(2 * num_most + 1)), mask_(slots_.size() - 1) {}

  void add(std::uint64_t hash, int place) {
    Slot& slot = slot_of(hash);
    if (slot.place < 0) slot = {hash, place};
  }
  // -1 = nowhere.
  int find(std::uint64_t hash) { return slot_of(hash).place; }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    int place = -1;
  };
  Slot& slot_of(std::uint64_t hash) {
    std::size_t index = mix64(hash, 1) & mask_;
    while (slots_[index].place >= 0 && slots_[index].hash != hash) index = (index + 1) & mask_;
    return slots_[index];
  }

  std::vector<Slot> slots_;  // at most half full
  std::size_t mask_;
};

int num_equal_from(std::span<const TokenId> left, std::span<const TokenId> right) {
  const auto [end, other] = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  return static_cast<int>(end - left.begin());
}

}  // namespace

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014) over both.
std::uint64_t mix64(std::uint64_t value, std::uint64_t seed) {
  std::uint64_t mixed = (value + seed * kOdd) ^ (seed >> 31);
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return mixed ^ (mixed >> 31);
}

std::vector<std::uint64_t> prefix_hashes(std::span<const TokenId> tokens, std::uint64_t seed, std::size_t step) {
  return further_hashes(mix64(seed, 1), tokens, step);
}

std::vector<std::uint64_t> further_hashes(std::uint64_t hash, std::span<const TokenId> tokens, std::size_t step) {
  std::vector<std::uint64_t> hashes;
  hashes.reserve(tokens.size() / step);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    hash = mix64(hash ^ token_value(tokens[i]), kOdd);
    if ((i + 1) % step == 0) hashes.push_back(hash);
  }
  return hashes;
}

PromptSketch make_sketch(std::span<const TokenId> tokens, std::uint64_t seed) {
  PromptSketch sketch;
  auto& smallest = sketch.smallest;
  each_shingle(tokens, [&](int, std::uint64_t rolling) {
    const std::uint64_t hash = mix64(rolling, seed);
    if (sketch.size == kSketchSize && hash >= smallest.back()) return;
    const auto end = smallest.begin() + static_cast<std::ptrdiff_t>(sketch.size);
    const auto place = std::lower_bound(smallest.begin(), end, hash);
    if (place != end && *place == hash) return;
    const auto last = sketch.size < kSketchSize ? end : std::prev(end);
    std::move_backward(place, last, std::next(last));
    *place = hash;
    sketch.size = std::min(sketch.size + 1, kSketchSize);
  });
  return sketch;
}

int num_in_common(const PromptSketch& left, const PromptSketch& right) {
  int num = 0;
  std::size_t other = 0;
  for (std::size_t i = 0; i < left.size; ++i) {
    while (other < right.size && right.smallest[other] < left.smallest[i]) ++other;
    if (other < right.size && right.smallest[other] == left.smallest[i]) ++num;
  }
  return num;
}

Realignment realign(std::span<const TokenId> left, std::span<const TokenId> right,
                    int num_common) {
  const auto begin = static_cast<std::size_t>(num_common);
  const auto after = [&](std::span<const TokenId> tokens) {
    return tokens.subspan(std::min(begin, tokens.size()));
  };
  left = after(left);
  right = after(right);
  const auto window = [](std::span<const TokenId> tokens) {
    return tokens.first(std::min<std::size_t>(tokens.size(), kRealignTokens));
  };
  ShinglePlaces places(window(right).size());
  each_shingle(window(right), [&](int place, std::uint64_t hash) { places.add(hash, place); });
  Realignment best;
  int seen_until = 0;  // of left: inside a run that was looked at already
  each_shingle(window(left), [&](int place, std::uint64_t hash) {
    if (place < seen_until) return;
    const int found = places.find(hash);
    if (found < 0) return;
    const int num_equal = num_equal_from(left.subspan(static_cast<std::size_t>(place)),
                                         right.subspan(static_cast<std::size_t>(found)));
    seen_until = place + num_equal;
    if (num_equal > best.num_equal) best = {place, found, num_equal};
  });
  if (best.num_equal == 0) {
    // A short common end is one, too.
    const auto length = std::min({left.size(), right.size(), std::size_t{kRealignTokens}});
    int num_equal = 0;
    while (num_equal < static_cast<int>(length) &&
           left[left.size() - 1 - static_cast<std::size_t>(num_equal)] ==
               right[right.size() - 1 - static_cast<std::size_t>(num_equal)]) {
      ++num_equal;
    }
    best = {static_cast<int>(left.size()) - num_equal, static_cast<int>(right.size()) - num_equal,
            num_equal};
  }
  // Equal tokens just before belong to the run, as far as nothing is taken twice.
  while (best.num_equal > 0 && best.left_end > 0 && best.right_end > 0 &&
         left[static_cast<std::size_t>(best.left_end) - 1] ==
             right[static_cast<std::size_t>(best.right_end) - 1]) {
    --best.left_end;
    --best.right_end;
    ++best.num_equal;
  }
  best.left_end += num_common;
  best.right_end += num_common;
  return best;
}

}  // namespace larder
