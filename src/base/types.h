// Identifiers that every folder shares.
#pragma once

#include <cstdint>

namespace larder {

// Index into the vocabulary. A plain integer: it travels in flat arrays, JSON and GGUF as it is.
using TokenId = std::int32_t;

// A KV block: kBlockSize consecutive tokens of one sequence, in every layer of one layer group.
enum class BlockId : std::int32_t { kNone = -1 };

// Tokens per KV block. Attention kernels hold one block's keys in one vector of lanes.
inline constexpr int kBlockSize = 16;

constexpr std::int32_t to_index(BlockId id) { return static_cast<std::int32_t>(id); }

}  // namespace larder
