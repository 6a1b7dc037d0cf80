// A cache over a small storage whose bytes can be written and checked token by token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "kv/cache/kv_cache.h"

namespace larder {

inline std::vector<TokenId> counting(int num_tokens, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline std::vector<TokenId> joined(std::vector<TokenId> left, const std::vector<TokenId>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// For each position a hash of the tokens up to it: K and V depend on all of them, too.
inline std::vector<std::uint64_t> prefix_hashes(std::span<const TokenId> tokens) {
  std::vector<std::uint64_t> hashes;
  std::uint64_t hash = 1469598103934665603u;
  for (const TokenId token : tokens) {
    hash = (hash ^ static_cast<std::uint64_t>(token + 1)) * 1099511628211u;
    hashes.push_back(hash ^ (hash >> 29));
  }
  return hashes;
}

struct TestCache {
  TestCache(std::vector<KvLayerShape> shapes, int num_blocks,
            EvictionKind eviction = EvictionKind::kDensity)
      : layout(shapes),
        storage(layout, num_blocks),
        cache(layout, storage, clock, {.num_blocks = num_blocks, .eviction = eviction}) {}
  // With tiers, and buffers of one or two blocks each for what they bring. device: whose memory is the host's, or null.
  TestCache(std::vector<KvLayerShape> shapes, int num_blocks,
            std::vector<std::unique_ptr<KvTier>> of_tiers, Device* device = nullptr)
      : layout(shapes),
        storage(layout, num_blocks, device),
        tiers(std::make_unique<KvTiers>(std::move(of_tiers), storage, layout.block_size_bytes(), 0)),
        cache(layout, storage, clock, {.num_blocks = num_blocks, .tiers = tiers.get()}) {}

  std::uint16_t* slot(int layer, BlockId block, int offset, int element) {
    const PagedKvView view = storage.view(layer);
    std::byte* base = view.base + to_index(block) * view.block_stride_bytes;
    const int dim = view.head_dim;
    const bool is_key = element < dim;
    base += is_key ? view.k_offset_bytes : view.v_offset_bytes;
    const int place = is_key ? element * kBlockSize + offset : offset * dim + (element - dim);
    return reinterpret_cast<std::uint16_t*>(base) + place;
  }

  // As a forward pass would: writes positions [begin, end).
  void write(const BlockTable& table, std::span<const TokenId> tokens, int begin, int end) {
    const auto hashes = prefix_hashes(tokens.first(static_cast<std::size_t>(end)));
    for (int layer = 0; layer < layout.num_layers(); ++layer) {
      each_value(table, layer, {begin, end}, hashes, [](std::uint16_t* place, std::uint16_t value) {
        *place = value;
        return true;
      });
    }
  }

  // Whether all that a query at position end sees is there, with the right bits.
  bool holds(const BlockTable& table, std::span<const TokenId> tokens, int end) {
    const auto hashes = prefix_hashes(tokens.first(static_cast<std::size_t>(end)));
    for (int layer = 0; layer < layout.num_layers(); ++layer) {
      const int window = layout.group(layout.group_of(layer)).window;
      const int begin = window == 0 ? 0 : std::max(0, end - window + 1);
      const auto equals = [](const std::uint16_t* place, std::uint16_t value) {
        return *place == value;
      };
      if (!each_value(table, layer, {begin, end}, hashes, equals)) return false;
    }
    return true;
  }

  ManualClock clock;
  KvLayout layout;
  KvStorage storage;
  std::unique_ptr<KvTiers> tiers;
  KvCache cache;

 private:
  struct Range {
    int begin, end;
  };

  template <class Function>
  bool each_value(const BlockTable& table, int layer, Range range,
                  std::span<const std::uint64_t> hashes, Function function) {
    const auto blocks = table.blocks(layout.group_of(layer));
    for (int position = range.begin; position < range.end; ++position) {
      const BlockId block = blocks[static_cast<std::size_t>(position / kBlockSize)];
      if (block == BlockId::kNone) return false;
      const std::uint64_t hash = hashes[static_cast<std::size_t>(position)];
      for (int element = 0; element < 2 * storage.view(layer).head_dim; ++element) {
        const auto salt = static_cast<std::uint64_t>(layer * 97 + element + 1);
        const auto value = static_cast<std::uint16_t>((hash * (2 * salt + 1)) >> 32);
        if (!function(slot(layer, block, position % kBlockSize, element), value)) return false;
      }
    }
    return true;
  }
};

}  // namespace larder
