// Where a token's keys and values lie: data, not classes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "kv/key_basis.h"

namespace larder {

// The first block that the query after num_computed tokens sees through a window.
constexpr int first_block_seen(int num_computed, int window) {
  return std::max(0, num_computed - window + 1) / kBlockSize;
}

// What one layer stores for a token.
struct KvLayerShape {
  int num_kv_heads = 0;
  int head_dim = 0;
  int window = 0;  // tokens that a query sees, itself included; 0 = all before it
  // MLA (DeepSeek-V2, 2024): a key is its value as well, stored once. Other types than f16 and bf16 are planned,
  // not computed: they have no view().
  bool is_latent = false;

  bool operator==(const KvLayerShape&) const = default;
};

// Layers that share block ids: one block holds kBlockSize tokens of each of them.
struct KvGroup {
  int window = 0;
  std::vector<int> layers;  // ascending
};

// Groups have one number of layers, hence blocks of one size, so that a single pool serves full and
// sliding layers alike and none can run out while another has room. (Gemma 3 270M, 3 full and 15
// sliding layers: six groups of 3.) Where the counts have no good common divisor, the last group of
// a window may have fewer layers than its block has room for. Layers with different shapes are
// padded to the largest. Immutable after construction, but for the keys' basis.
class KvLayout {
 public:
  // shapes: per layer, at least one. Full groups come first, then sliding ones by ascending window.
  // types: as which every layer's keys and values are stored.
  // Throws Error{kInvalidArgument} for sizes that are not positive or too large.
  explicit KvLayout(std::span<const KvLayerShape> shapes, KvTypes types = {});

  int num_layers() const { return static_cast<int>(places_.size()); }
  int num_groups() const { return static_cast<int>(groups_.size()); }
  const KvGroup& group(int index) const { return groups_[static_cast<std::size_t>(index)]; }
  int group_of(int layer) const { return places_[static_cast<std::size_t>(layer)].group; }
  KvTypes types() const { return types_; }
  std::int64_t block_size_bytes() const { return block_size_bytes_; }
  // Over all layers, every token kept, scales and padding included.
  std::int64_t bytes_per_token() const;
  // The most blocks, over all groups, that one sequence holds at any time on its way to num_tokens
  // when at most max_step_tokens of them are computed in a step. Group 0 is kept whole, also if it
  // slides.
  std::int64_t num_blocks_for(std::int64_t num_tokens, int max_step_tokens) const;
  // Per layer, [num_layers] or none: what keys as codes are stored in. Before anything is
  // stored; nothing that was stored with another one may be read with it.
  void set_key_basis(std::vector<KeyBasis> basis);
  std::span<const KeyBasis> key_basis() const { return key_basis_; }
  // Of the numbers in it, known before it is set; 0 where keys need none.
  std::int64_t key_basis_size_bytes() const;
  // The layer's part of a block; base is null, see KvStorage::view.
  PagedKvView view(int layer) const;

 private:
  struct Place {
    int group = 0;
    std::int64_t k_offset_bytes = 0;
    std::int64_t v_offset_bytes = 0;
    KvLayerShape shape;
  };

  void add_groups(std::span<const KvLayerShape> shapes, int window, int layers_per_group);

  KvTypes types_;
  std::vector<KvGroup> groups_;
  std::vector<Place> places_;
  std::vector<KeyBasis> key_basis_;
  std::int64_t layer_size_bytes_ = 0;  // of a block, padding included
  std::int64_t block_size_bytes_ = 0;
};

}  // namespace larder
