// Fingerprints by which a prompt finds its relatives among many.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"

namespace larder {

// A 64-bit mix of two values: every bit of the result depends on every bit of both.
std::uint64_t mix64(std::uint64_t value, std::uint64_t seed);

// Hash i covers tokens [0, (i + 1) * step): equal exactly where prefixes are. seed: keeps
// apart what must not meet. Some 1 ns a token.
std::vector<std::uint64_t> prefix_hashes(std::span<const TokenId> tokens, std::uint64_t seed,
                                         std::size_t step = kBlockSize);
// Those that come behind one of them, by the tokens behind what that one covers.
std::vector<std::uint64_t> further_hashes(std::uint64_t hash, std::span<const TokenId> tokens,
                                          std::size_t step = kBlockSize);

// The kSketchSize smallest hashes of all runs of kShingle tokens (bottom-k sketch, Broder 1997):
// the share that two sketches have in common tells how much of their content two prompts share,
// wherever it stands.
inline constexpr int kShingle = 6;
inline constexpr std::size_t kSketchSize = 24;
struct PromptSketch {
  std::array<std::uint64_t, kSketchSize> smallest{};  // ascending, distinct
  std::size_t size = 0;                               // fewer where the prompt is short
};
PromptSketch make_sketch(std::span<const TokenId> tokens, std::uint64_t seed);
int num_in_common(const PromptSketch& left, const PromptSketch& right);

// Where two prompts that part at num_common come together again.
struct Realignment {
  int left_end = 0;   // of what differs, in the left one
  int right_end = 0;  // in the right one
  int num_equal = 0;  // tokens that are equal from there on, 0 = they do not meet again
};

// Looks at the kRealignTokens tokens after num_common of either; the longest run of equal tokens
// counts, of at least kShingle or up to both ends.
inline constexpr int kRealignTokens = 4096;
Realignment realign(std::span<const TokenId> left, std::span<const TokenId> right, int num_common);

}  // namespace larder
