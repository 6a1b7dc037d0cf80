// What the parts of attention share: a task, a tile of keys, a partial softmax. Included by
// attention.cc alone.
#pragma once

#include "kernels/cpu/functions.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr int kKeyTile = 64;
constexpr int kTileBlocks = kKeyTile / kBlockSize;
constexpr int kLanes = 16;
static_assert(kBlockSize == kLanes, "a vector holds one block's keys");
static_assert(kKeySplit % kKeyTile == 0);
static_assert(kCommonKeyStep % kKeyTile == 0);
static_assert(kTileBlocks % kAttentionVectors == 0);

// With so few rows (decode) a tile is bound by memory: the next one's keys and values are fetched
// ahead, mostly into the second-level cache. They lie in runs of a few kB, too short for the
// processor's own prefetchers, and a core has more fetches under way there than into the first
// level: 18 GB/s rather than 10 on a Zen 4.
constexpr int kFetchRows = 4;

// One of the lines of such a run, into the first level where is_near, else into the second. On a Zen
// 5 they take turns: runs of 1 to 2 kB came at 39 to 42 GB/s so, where one level's fetches alone
// brought 20 to 35.
LARDER_INLINE void fetch_line(const void* p, bool is_near, bool is_odd) {
  if (machine_stream_fetch == StreamFetch::kFar ? is_odd : is_near) {
    prefetch(p);
  } else {
    prefetch_l2(p);
  }
}

// A maximum below every score. Finite, so that a difference of two of them is 0 and not NaN.
constexpr float kNothing = -1e30F;

// Sums of a partial softmax, per row: of 2^(score - max) * value, max, of 2^(score - max).
struct Partial {
  float* values;  // [rows, padded_dim]
  float* max;     // [rows]
  float* sum;     // [rows]
};

LARDER_INLINE Partial partial_at(std::byte* memory, int rows, int padded_dim) {
  auto* values = reinterpret_cast<float*>(memory);
  float* max = values + int64_t{rows} * padded_dim;
  return {values, max, max + rows};
}

// Queries of a task, scaled. For keys that are codes also in 16 bits: value = scale * word.
struct Queries {
  float* values;   // [rows, padded_dim]
  int32_t* words;  // [rows, attention_words()], in pairs that share a 32-bit word
  float* scale;    // [rows]
  int32_t* start;  // [rows, 3 num_groups]: what takes the codes' offset off a group's sum

  Queries row(int r, int dim) const {
    const int64_t padded_dim = (dim + kLanes - 1) / kLanes * kLanes;
    return {values + r * padded_dim, words + int64_t{r} * attention_words(dim), scale + r,
            start + int64_t{r} * 3 * kv_num_groups(dim)};
  }
};

// Scores are logarithms to base 2. Beside what a key may hold (store_kv.cc) no score leaves FP32: one that did would
// outlast its tile or not by which rows are masked beside it.
LARDER_INLINE float to_base_two(float x, float factor) {
  constexpr float kLog2E = 1.44269504088896341F;
  constexpr float kLargest = 0x1p50F;
  const float scale = factor * kLog2E;
  const float value = x * scale;
  const float bounded = value < kLargest ? value : kLargest;
  return bounded > -kLargest ? bounded : -kLargest;
}

// A task and where its operands lie. Row r: query query_begin + r / group, head r % group of the KV
// head.
struct Work {
  const AttentionArgs& args;
  const AttentionSequence& sequence;
  int kv_head;
  int group;  // query heads per KV head
  int rows;
  int dim;
  int padded_dim;
  int num_groups;  // of dimensions with one scale
  int first_position;  // of query_begin
  int query_begin;
  int window;  // 0 = none
  int sinks;   // keys [0, sinks) are seen whatever the window
  Queries q;
  Queries q_sinks;
  float* scores;  // [rows, kKeyTile]
  float* factor;  // [rows]: what the sums so far are multiplied by in this tile
  uint16_t* values;  // [kKeyTile, dim]: where values_are_keys, those of a tile

  int position(int row) const { return first_position + row / group; }
  // Of the window.
  int first_key(int row) const { return window > 0 ? max_of(0, position(row) - window + 1) : 0; }
  bool past_sinks(int row) const { return args.q_sinks != nullptr && first_key(row) > sinks; }
  // Whether a row sees a key of [begin, end), as far as the first row's window and the sinks say.
  bool sees(int begin, int end) const { return begin < sinks || end > first_key(0); }
};

// Keys and values that are floats: two bytes each, or one.
template <KvType kType>
struct NumberOf {
  using Type = uint16_t;
};
template <>
struct NumberOf<KvType::kFp8> {
  using Type = uint8_t;
};
template <KvType kType>
using Number = typename NumberOf<kType>::Type;

// Where the numbers of a head begin in its part of a block.
template <KvType kType>
LARDER_INLINE const Number<kType>* keys_in(const std::byte* head) {
  return reinterpret_cast<const Number<kType>*>(head);
}
template <KvType kType>
LARDER_INLINE const Number<kType>* values_in(const std::byte* head) {
  return reinterpret_cast<const Number<kType>*>(
      kType == KvType::kFp8 ? head + kFp8ScalesSizeBytes : head);
}

// E4M3 without its scale, and divided by kE4m3InHalf.
template <KvType kType>
LARDER_INLINE V16 load_value(const Number<kType>* p) {
  if constexpr (kType == KvType::kF16) return load_f16(p);
  if constexpr (kType == KvType::kBF16) return load_bf16(p);
  if constexpr (kType == KvType::kFp8) return load_e4m3(p);
}
template <KvType kType>
LARDER_INLINE V16 load_value_partial(const Number<kType>* p, int n) {
  Number<kType> lanes[kLanes] = {};
  memcpy(lanes, p, sizeof *p * static_cast<size_t>(n));
  return load_value<kType>(lanes);
}

// Calls function<type>() of one of those types.
template <class Function>
LARDER_INLINE void with_float_type(KvType type, const Function& function) {
  switch (type) {
    case KvType::kF16:
      return function.template operator()<KvType::kF16>();
    case KvType::kBF16:
      return function.template operator()<KvType::kBF16>();
    case KvType::kFp8:
      return function.template operator()<KvType::kFp8>();
    default:
      return;
  }
}

struct TilePairs;  // bf16/attention_bf16.h

// The blocks of a tile of keys, this head's part. Those that no row sees repeat one that is seen:
// masked, never used.
struct KeyTile {
  int begin;
  int num_blocks;
  const std::byte* k[kTileBlocks];
  const std::byte* v[kTileBlocks];
  const std::byte* next_k[kTileBlocks];  // of the tile after it, to be fetched ahead
  const std::byte* next_v[kTileBlocks];
  const TilePairs* pairs;  // where AVX-512 BF16 multiplies them
};

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
