// Keys and values into their slots, in the types of kv_type.h. Every step of that is a single IEEE
// operation: the same bytes on every instruction set. Before it, queries and keys get their positions.
#include "kernels/cpu/functions.h"
#include "kernels/cpu/store_int4.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr int kLanes = 16;

// One head of one token, and where it goes.
struct HeadSlot {
  const float* values;
  std::byte* block;  // of this head
  int offset;        // the token's place in the block
  int dim;
};

// NaN becomes 0 and what is beyond `largest` becomes that, so that a key that a mask hides times 0
// is 0.
LARDER_INLINE V16 finite(V16 v, float largest) {
  const V16 number = select_ge(abs(v), zero(), v, zero());
  return min(max(number, set1(-largest)), set1(largest));
}

constexpr float kLargestHalf = 65504;
constexpr float kLargestBf16 = 0x1p60F;  // so that sums of products with queries stay finite (attention.cc)

// Of a scale in BF16. Below 1e-37 it would be infinite; what has such a scale is nothing beside any other.
LARDER_INLINE V16 inverse_of(uint16_t scale) {
  const float value = bfloat16_to_float(scale);
  return set1(value > 1e-37F ? 1.0F / value : 0.0F);
}

// The nearest FP16 or BF16 values of lanes [0, lanes) of x.
template <KvType kType>
void round_values(const float* x, int lanes, uint16_t* rounded) {
  const V16 v = load_lanes(x, lanes);
  if constexpr (kType == KvType::kF16) {
    store_f16_partial(rounded, finite(v, kLargestHalf), kLanes);
  } else {
    float values[kLanes];
    store(values, finite(v, kLargestBf16));
    for (int i = 0; i < lanes; ++i) rounded[i] = float_to_bfloat16(values[i]);
  }
}

template <KvType kType>
void store_float(const HeadSlot& slot, bool is_key) {
  auto* to = reinterpret_cast<uint16_t*>(slot.block);
  for (int d = 0; d < slot.dim; d += kLanes) {
    const int lanes = min_of(kLanes, slot.dim - d);
    uint16_t rounded[kLanes];
    round_values<kType>(slot.values + d, lanes, rounded);
    for (int i = 0; i < lanes; ++i) {
      to[is_key ? (d + i) * kBlockSize + slot.offset : slot.offset * slot.dim + d + i] = rounded[i];
    }
  }
}

// The nearest E4M3 numbers of lanes that are at most kLargestE4m3.
void round_to_e4m3(V16 v, uint8_t* rounded) {
  constexpr int kDroppedBits = 20;
  constexpr uint32_t kHalf = (1U << (kDroppedBits - 1)) - 1;
  constexpr uint32_t kBias = (127 - 7) << 3;
  constexpr uint32_t kLeastNormal = (127U - 6) << 23;
  constexpr float kSubnormalPlace = 0x1p14F;  // a unit of the last place is a subnormal's
  float values[kLanes];
  store(values, v);
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, values[i]);
    const uint32_t magnitude = bits & 0x7FFFFFFFU;
    const uint32_t normal =
        ((magnitude + kHalf + (magnitude >> kDroppedBits & 1)) >> kDroppedBits) - kBias;
    const float placed = __builtin_bit_cast(float, magnitude) + kSubnormalPlace;
    const uint32_t subnormal =
        __builtin_bit_cast(uint32_t, placed) - __builtin_bit_cast(uint32_t, kSubnormalPlace);
    const uint32_t number = magnitude < kLeastNormal ? subnormal : normal;
    rounded[i] = static_cast<uint8_t>((bits >> 24 & 0x80U) | number);
  }
}

void store_fp8(const HeadSlot& slot, bool is_key) {
  V16 largest = zero();
  for (int d = 0; d < slot.dim; d += kLanes) {
    const V16 v = load_lanes(slot.values + d, min_of(kLanes, slot.dim - d));
    largest = max(largest, abs(finite(v, kLargestBf16)));
  }
  const uint16_t scale = float_to_bfloat16(reduce_max(largest) / kLargestE4m3);
  const V16 inverse = inverse_of(scale);
  auto* bytes = reinterpret_cast<uint8_t*>(slot.block);
  uint8_t* to = is_key ? bytes : bytes + kFp8ScalesSizeBytes;
  uint8_t* scales = is_key ? bytes + int64_t{slot.dim} * kBlockSize : bytes;
  memcpy(scales + slot.offset * 2, &scale, sizeof scale);
  for (int d = 0; d < slot.dim; d += kLanes) {
    const int lanes = min_of(kLanes, slot.dim - d);
    const V16 v = mul(finite(load_lanes(slot.values + d, lanes), kLargestBf16), inverse);
    uint8_t numbers[kLanes];
    round_to_e4m3(min(max(v, set1(-kLargestE4m3)), set1(kLargestE4m3)), numbers);
    for (int i = 0; i < lanes; ++i)
      to[is_key ? (d + i) * kBlockSize + slot.offset : slot.offset * slot.dim + d + i] = numbers[i];
  }
}

void finite_values(const HeadSlot& slot, float* values) {
  for (int d = 0; d < slot.dim; d += kLanes) {
    const int lanes = min_of(kLanes, slot.dim - d);
    store_lanes(values + d, finite(load_lanes(slot.values + d, lanes), kLargestHalf), lanes);
  }
}

// Codes of dimensions [begin, end) and their scale.
void store_int8_group(const HeadSlot& slot, bool is_key, int begin, int end, uint16_t* scale_to) {
  V16 values[kCodeGroup / kLanes];
  V16 largest = zero();
  for (int d = begin; d < end; d += kLanes) {
    const V16 v = finite(load_lanes(slot.values + d, min_of(kLanes, end - d)), kLargestBf16);
    values[(d - begin) / kLanes] = v;
    largest = max(largest, abs(v));
  }
  const uint16_t scale = float_to_bfloat16(reduce_max(largest) / 127.0F);
  scale_to[slot.offset] = scale;
  const V16 inverse = inverse_of(scale);
  auto* tiles = reinterpret_cast<uint8_t*>(slot.block);
  for (int d = begin; d < end; d += kLanes) {
    int8_t codes[kLanes];
    const V16 v = mul(values[(d - begin) / kLanes], inverse);
    store_int8(codes, to_int(min(max(v, set1(-127.0F)), set1(127.0F))));
    uint8_t* tile = tiles + d * kBlockSize;
    for (int i = 0; i < kLanes; ++i) {
      const int at = is_key ? kv_code_offset(i, slot.offset) : kv_code_offset(slot.offset, i);
      tile[at] = static_cast<uint8_t>(codes[i] + 128);
    }
  }
}

void store_int8(const HeadSlot& slot, bool is_key) {
  const int num_tiles = (slot.dim + kCodeTile - 1) / kCodeTile;
  auto* scales =
      reinterpret_cast<uint16_t*>(slot.block + int64_t{num_tiles} * kCodeTile * kBlockSize);
  for (int begin = 0; begin < slot.dim; begin += kCodeGroup) {
    store_int8_group(slot, is_key, begin, min_of(slot.dim, begin + kCodeGroup), scales);
    scales += kBlockSize;
  }
}

// x, of one head, times the balance of its dimensions or, of a query, divided by it.
void balance_head(const PagedKvView& kv, int kv_head, bool is_query, float* x) {
  if (kv.key_balance == nullptr) return;
  const float* balance = kv.key_balance + kv_head * kv.head_dim;
  for (int d = 0; d < kv.head_dim; d += kLanes) {
    const int lanes = min_of(kLanes, kv.head_dim - d);
    const V16 value = load_lanes(x + d, lanes);
    const V16 factor = load_lanes(balance + d, lanes);
    store_lanes(x + d, is_query ? div(value, factor) : mul(value, factor), lanes);
  }
}

void store_key_codes(const PagedKvView& kv, int head, const HeadSlot& slot) {
  float values[kMaxCodeDim];
  finite_values(slot, values);
  balance_head(kv, head, false, values);
  if (kv.types.k == KvType::kInt4) return store_key_int4(kv, head, values, slot.block, slot.offset);
  hadamard_blocks(values, slot.dim);
  store_int8({values, slot.block, slot.offset, slot.dim}, true);
}

void store_value_codes(const PagedKvView& kv, const HeadSlot& slot) {
  if (kv.types.v == KvType::kInt8) return store_int8(slot, false);
  float values[kMaxCodeDim];
  finite_values(slot, values);
  store_value_int4(kv, values, slot.block, slot.offset);
}

void store_head(const PagedKvView& kv, int head, const HeadSlot& slot, bool is_key) {
  const KvType type = is_key ? kv.types.k : kv.types.v;
  switch (type) {
    case KvType::kF16:
      return store_float<KvType::kF16>(slot, is_key);
    case KvType::kBF16:
      return store_float<KvType::kBF16>(slot, is_key);
    case KvType::kFp8:
      return store_fp8(slot, is_key);
    case KvType::kInt8:
    case KvType::kInt4:
      return is_key ? store_key_codes(kv, head, slot) : store_value_codes(kv, slot);
  }
}

// Of one row.
void norm_heads(float* x, int num_heads, int head_dim, const float* weight, float epsilon) {
  if (weight == nullptr) return;
  for (int head = 0; head < num_heads; ++head, x += head_dim)
    rms_norm_row(x, weight, epsilon, x, head_dim);
}

void rotate_heads(const RopeArgs& rope, float* x, int num_heads, int head_dim, const float* cos,
                  const float* sin) {
  for (int head = 0; head < num_heads; ++head, x += head_dim)
    rotate(x, rope.rope_dim, cos, sin, rope.interleaved);
}

void place_keys(const StoreKvArgs& args, int64_t row) {
  const RopeArgs& rope = args.rope;
  if (rope.k == nullptr) return;
  float* k = rope.k + row * args.ldk;
  const int head_dim = args.kv.head_dim;
  const int64_t pairs = row * (rope.rope_dim / 2);
  norm_heads(k, args.kv.num_kv_heads, head_dim, rope.k_norm, rope.epsilon);
  rotate_heads(rope, k, args.kv.num_kv_heads, head_dim, rope.cos + pairs, rope.sin + pairs);
}

void place_queries(const RopeArgs& rope, int head_dim, int64_t row) {
  if (rope.num_heads == 0) return;
  float* q = rope.q + row * rope.ldq;
  const int64_t pairs = row * (rope.rope_dim / 2);
  norm_heads(q, rope.num_heads, head_dim, rope.q_norm, rope.epsilon);
  if (rope.q_sinks != nullptr) {
    float* q_sinks = rope.q_sinks + row * rope.ldq;
    memcpy(q_sinks, q, sizeof(float) * static_cast<size_t>(rope.num_heads * head_dim));
    rotate_heads(rope, q_sinks, rope.num_heads, head_dim, rope.cos_sinks + pairs,
                 rope.sin_sinks + pairs);
  }
  rotate_heads(rope, q, rope.num_heads, head_dim, rope.cos + pairs, rope.sin + pairs);
}

}  // namespace

void store_kv(const StoreKvArgs& args, int row_begin, int row_end) {
  const PagedKvView& kv = args.kv;
  const int64_t k_bytes = kv_key_size_bytes(kv.types.k, kv.head_dim);
  const int64_t v_bytes = kv_value_size_bytes(kv.types.v, kv.head_dim);
  for (int row = row_begin; row < row_end; ++row) {
    place_queries(args.rope, kv.head_dim, row);
    place_keys(args, row);
    const int64_t slot = args.slots[row];
    const int offset = static_cast<int>(slot % kBlockSize);
    std::byte* block = kv.base + slot / kBlockSize * kv.block_stride_bytes;
    for (int head = 0; head < kv.num_kv_heads; ++head) {
      const float* k = args.k + row * args.ldk + int64_t{head} * kv.head_dim;
      std::byte* k_to = block + kv.k_offset_bytes + head * k_bytes;
      store_head(kv, head, {k, k_to, offset, kv.head_dim}, true);
      if (kv.values_are_keys) continue;
      const float* v = args.v + row * args.ldv + int64_t{head} * kv.head_dim;
      std::byte* v_to = block + kv.v_offset_bytes + head * v_bytes;
      store_head(kv, head, {v, v_to, offset, kv.head_dim}, false);
    }
  }
}

void to_key_basis(const PagedKvView& kv, int num_heads, float* q, int64_t ldq, int row_begin,
                  int row_end) {
  if (!has_codes(kv.types.k)) return;
  const int group = num_heads / kv.num_kv_heads;
  float turned[kMaxCodeDim];
  for (int row = row_begin; row < row_end; ++row) {
    for (int head = 0; head < num_heads; ++head) {
      float* values = q + row * ldq + int64_t{head} * kv.head_dim;
      balance_head(kv, head / group, true, values);
      if (kv.types.k == KvType::kInt8) {
        hadamard_blocks(values, kv.head_dim);
        continue;
      }
      into_int4_basis(kv, head / group, values, turned);
      memcpy(values, turned, sizeof(float) * static_cast<size_t>(kv.head_dim));
    }
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
