#include "kv/kv_layout.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace larder {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr int kMaxHeadsTimesDim = 1 << 20;

std::int64_t aligned(std::int64_t size_bytes) {
  return (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Bytes of a layer's keys, and of its values, in a block.
std::int64_t keys_size_bytes(const KvLayerShape& shape, KvType type) {
  const std::int64_t size_bytes = shape.num_kv_heads * kv_key_size_bytes(type, shape.head_dim);
  // Heads in 4 bits begin anywhere in a cache line as it is: no room is lost between keys and values.
  return type == KvType::kInt4 ? size_bytes : aligned(size_bytes);
}
std::int64_t values_size_bytes(const KvLayerShape& shape, KvType type) {
  if (shape.is_latent) return 0;
  return shape.num_kv_heads * kv_value_size_bytes(type, shape.head_dim);
}

void validate(const KvLayerShape& shape, KvTypes types) {
  if ((has_codes(types.k) || has_codes(types.v)) && shape.head_dim > kMaxCodeDim)
    throw_invalid("--kv-type: heads of {} values are too large for int8 and int4, which take {}",
                  shape.head_dim, kMaxCodeDim);
  if (shape.num_kv_heads <= 0 || shape.head_dim <= 0 || shape.window < 0 ||
      shape.num_kv_heads > kMaxHeadsTimesDim / shape.head_dim) {
    throw_invalid("KV layer of {} heads of {} values with window {} is out of range",
                  shape.num_kv_heads, shape.head_dim, shape.window);
  }
}

// The most layers per group for which at most one block layer in 16 is padding. Fewer, larger
// groups mean shorter tables; one layer per group never pads.
int choose_layers_per_group(const std::map<int, int>& num_layers_by_window, int num_layers) {
  int most = num_layers;
  for (const auto& [window, count] : num_layers_by_window) most = std::min(most, count);
  for (int size = most; size > 1; --size) {
    int num_padded = 0;
    for (const auto& [window, count] : num_layers_by_window) {
      num_padded += (size - count % size) % size;
    }
    if (num_padded * 16 <= num_layers) return size;
  }
  return 1;
}

}  // namespace

KvLayout::KvLayout(std::span<const KvLayerShape> shapes, KvTypes types) : types_(types) {
  if (shapes.empty()) throw_invalid("a model without layers has no KV layout");
  std::map<int, int> num_layers_by_window;  // 0, the full layers, is the first key
  for (const KvLayerShape& shape : shapes) {
    validate(shape, types);
    ++num_layers_by_window[shape.window];
    layer_size_bytes_ =
        std::max(layer_size_bytes_, aligned(keys_size_bytes(shape, types.k) +
                                            values_size_bytes(shape, types.v)));
  }
  places_.resize(shapes.size());
  const int layers_per_group =
      choose_layers_per_group(num_layers_by_window, static_cast<int>(shapes.size()));
  block_size_bytes_ = layers_per_group * layer_size_bytes_;
  for (const auto& [window, count] : num_layers_by_window) {
    add_groups(shapes, window, layers_per_group);
  }
}

void KvLayout::add_groups(std::span<const KvLayerShape> shapes, int window, int layers_per_group) {
  int place_in_group = layers_per_group;
  for (std::size_t layer = 0; layer < shapes.size(); ++layer) {
    if (shapes[layer].window != window) continue;
    if (place_in_group == layers_per_group) {
      groups_.push_back({window, {}});
      place_in_group = 0;
    }
    groups_.back().layers.push_back(static_cast<int>(layer));
    Place& place = places_[layer];
    place.group = num_groups() - 1;
    place.shape = shapes[layer];
    place.k_offset_bytes = place_in_group * layer_size_bytes_;
    place.v_offset_bytes = place.k_offset_bytes + keys_size_bytes(place.shape, types_.k);
    ++place_in_group;
  }
}

std::int64_t KvLayout::bytes_per_token() const {
  return num_groups() * block_size_bytes_ / kBlockSize;
}

std::int64_t KvLayout::num_blocks_for(std::int64_t num_tokens, int max_step_tokens) const {
  const auto blocks_of = [](std::int64_t tokens) { return (tokens + kBlockSize - 1) / kBlockSize; };
  std::int64_t num_blocks = 0;
  for (int index = 0; index < num_groups(); ++index) {
    std::int64_t num_held = blocks_of(num_tokens);
    const std::int64_t window = group(index).window;
    // The window before the step's first token and the step itself; one more as they start
    // anywhere.
    if (index > 0 && window > 0) {
      num_held = std::min(num_held, blocks_of(window - 1 + max_step_tokens) + 1);
    }
    num_blocks += num_held;
  }
  return num_blocks;
}

void KvLayout::set_key_basis(std::vector<KeyBasis> basis) {
  CHECK(basis.empty() || basis.size() == places_.size(), basis.size());
  for (std::size_t layer = 0; layer < basis.size(); ++layer) {
    const KvLayerShape& shape = places_[layer].shape;
    const auto size = static_cast<std::size_t>(shape.num_kv_heads * shape.head_dim);
    CHECK(basis[layer].balance.size() == size && basis[layer].order.size() == size, layer);
  }
  key_basis_ = std::move(basis);
}

std::int64_t KvLayout::key_basis_size_bytes() const {
  if (!has_codes(types_.k)) return 0;
  std::int64_t num_values = 0;
  for (const Place& place : places_)
    num_values += std::int64_t{place.shape.num_kv_heads} * place.shape.head_dim;
  return num_values * static_cast<std::int64_t>(sizeof(float) + sizeof(std::int16_t));
}

PagedKvView KvLayout::view(int layer) const {
  CHECK(layer >= 0 && layer < num_layers(), layer);
  const Place& place = places_[static_cast<std::size_t>(layer)];
  CHECK(!place.shape.is_latent || (is_half(types_.k) && types_.v == types_.k), layer);
  PagedKvView view;
  view.block_stride_bytes = block_size_bytes_;
  view.k_offset_bytes = place.k_offset_bytes;
  view.v_offset_bytes = place.shape.is_latent ? place.k_offset_bytes : place.v_offset_bytes;
  view.values_are_keys = place.shape.is_latent;
  view.num_kv_heads = place.shape.num_kv_heads;
  view.head_dim = place.shape.head_dim;
  view.types = types_;
  if (!key_basis_.empty()) {
    const KeyBasis& basis = key_basis_[static_cast<std::size_t>(layer)];
    view.key_balance = basis.balance.data();
    view.key_order = basis.order.data();
  }
  return view;
}

}  // namespace larder
