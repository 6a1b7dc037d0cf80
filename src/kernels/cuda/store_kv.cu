// Queries and keys to their positions, keys and values into their slots, and queries into the basis of keys: the
// same bits as the CPU's but for the norms of heads, whose sums are rms_norm()'s.
#include "kernels/cuda/functions.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/store_codes.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr int kHeadWarps = 4;  // of a block: a head each
constexpr int kPairs = 2;      // that a lane has in hand
constexpr int kValues = 4;     // and values that belong to no pair

// The nearest FP16 or BF16 value.
LARDER_DEVICE std::uint16_t round_value(KvType type, float value) {
  value = finite(value, type == KvType::kF16 ? kLargestHalf : kLargestBf16);
  return type == KvType::kF16 ? half_bits(value) : bf16_bits(value);
}

// One row's keys or values of one head.
struct RowHead {
  const float* from;
  HeadSlot slot;

  LARDER_MEMBER RowHead(const StoreKvArgs& args, std::int64_t row, std::int64_t head, bool is_key,
                        std::int64_t head_bytes) {
    const PagedKvView& kv = args.kv;
    const std::int64_t place = args.slots[row];
    std::byte* block = kv.base + place / kBlockSize * kv.block_stride_bytes;
    from = (is_key ? args.k + row * args.ldk : args.v + row * args.ldv) + head * kv.head_dim;
    slot.to = reinterpret_cast<std::uint8_t*>(
        block + (is_key ? kv.k_offset_bytes : kv.v_offset_bytes) + head * head_bytes);
    slot.offset = static_cast<int>(place % kBlockSize);
  }
  LARDER_MEMBER void store(KvType type, bool is_key, int dim, int d, float value) const {
    auto* halves = reinterpret_cast<std::uint16_t*>(slot.to);
    halves[is_key ? d * kBlockSize + slot.offset : slot.offset * dim + d] = round_value(type, value);
  }
};

// A warp's head of one row.
struct Head {
  int dim;
  const float* from;
  float* to = nullptr;        // or null: only stored
  float* to_sinks = nullptr;  // or null
  const float* norm = nullptr;
  float scale = 1;  // of the norm

  LARDER_MEMBER void set_norm(const float* weight, float epsilon) {
    norm = weight;
    if (weight == nullptr) return;
    const bool aligned = reinterpret_cast<std::uintptr_t>(from) % 16 == 0;
    float sum = 0;
    for (int first = 0; first < dim; first += 4 * 32) {
      const int d = first + thread_index() % 32 * 4;
      sum += warp_sum(add_squares(load_x(from + d, dim - d, aligned), 0));
    }
    scale = norm_scale(sum, dim, epsilon);
  }
  LARDER_MEMBER float value(int d) const {
    return norm == nullptr ? from[d] : from[d] * scale * norm[d];
  }

  // Turns it by the row's cosines and sines; put(d, value) takes what comes of it. What is loaded from past the
  // last pair or value is the last, and put nowhere.
  template <class Put>
  LARDER_MEMBER void turn(const RopeArgs& rope, std::int64_t row, const Put& put) const {
    const int half = rope.rope_dim / 2;
    for (int first = thread_index() % 32; first < half; first += kPairs * 32) {
      float a[kPairs], b[kPairs], cos[kPairs], sin[kPairs];
      LARDER_UNROLL
      for (int i = 0; i < kPairs; ++i) {
        const int pair = min_of(first + i * 32, half - 1);
        a[i] = value(rope.interleaved ? 2 * pair : pair);
        b[i] = value(rope.interleaved ? 2 * pair + 1 : half + pair);
        cos[i] = rope.cos[row * half + pair];
        sin[i] = rope.sin[row * half + pair];
      }
      LARDER_UNROLL
      for (int i = 0; i < kPairs; ++i) {
        const int pair = first + i * 32;
        if (pair >= half) break;
        const int at_a = rope.interleaved ? 2 * pair : pair;
        const int at_b = rope.interleaved ? 2 * pair + 1 : half + pair;
        put(at_a, a[i] * cos[i] - b[i] * sin[i]);
        put(at_b, a[i] * sin[i] + b[i] * cos[i]);
        if (to_sinks == nullptr) continue;
        const float c = rope.cos_sinks[row * half + pair];
        const float s = rope.sin_sinks[row * half + pair];
        to_sinks[at_a] = a[i] * c - b[i] * s;
        to_sinks[at_b] = a[i] * s + b[i] * c;
      }
    }
    take_rest(rope.rope_dim, put);
  }

  // The dimensions from first_dim on, as they are.
  template <class Put>
  LARDER_MEMBER void take_rest(int first_dim, const Put& put) const {
    for (int first = first_dim + thread_index() % 32; first < dim; first += kValues * 32) {
      float values[kValues];
      LARDER_UNROLL
      for (int i = 0; i < kValues; ++i) values[i] = value(min_of(first + i * 32, dim - 1));
      LARDER_UNROLL
      for (int i = 0; i < kValues; ++i) {
        const int d = first + i * 32;
        if (d >= dim) break;
        put(d, values[i]);
        if (to_sinks != nullptr) to_sinks[d] = values[i];
      }
    }
  }
};

LARDER_DEVICE void place_query(const RopeArgs& rope, int dim, std::int64_t row, int index) {
  const std::int64_t at = row * rope.ldq + std::int64_t{index} * dim;
  Head head = {dim, rope.q + at, rope.q + at, rope.q_sinks == nullptr ? nullptr : rope.q_sinks + at};
  head.set_norm(rope.q_norm, rope.epsilon);
  head.turn(rope, row, [&](int d, float value) { head.to[d] = value; });
}

// Stored where both types are halves; else store_codes_kernel() does that.
LARDER_DEVICE void place_key(const StoreKvArgs& args, bool stores, std::int64_t row, int index) {
  const RopeArgs& rope = args.rope;
  const int dim = args.kv.head_dim;
  const RowHead to(args, row, index, true, std::int64_t{kBlockSize} * dim * 2);
  const auto store = [&](int d, float value) {
    if (stores) to.store(args.kv.types.k, true, dim, d, value);
  };
  Head head = {dim, to.from};
  if (rope.k == nullptr) return head.take_rest(0, store);
  head.to = rope.k + row * args.ldk + std::int64_t{index} * dim;
  head.set_norm(rope.k_norm, rope.epsilon);
  head.turn(rope, row, [&](int d, float value) {
    head.to[d] = value;
    store(d, value);
  });
}

LARDER_DEVICE void place_value(const StoreKvArgs& args, std::int64_t row, int index) {
  const int dim = args.kv.head_dim;
  const RowHead to(args, row, index, false, std::int64_t{kBlockSize} * dim * 2);
  const Head head = {dim, to.from};
  head.take_rest(0, [&](int d, float value) { to.store(args.kv.types.v, false, dim, d, value); });
}

// Grid: rows, heads of queries, keys and, where it stores, values.
LARDER_KERNEL_OF(kHeadWarps * 32)
heads_kernel(LARDER_PARAM StoreKvArgs args, bool stores, int row_begin) {
  wait_for_kernels_before();
  const std::int64_t row = row_begin + static_cast<std::int64_t>(blockIdx.x);
  int head = static_cast<int>(blockIdx.y) * kHeadWarps + thread_index() / 32;
  if (head < args.rope.num_heads) return place_query(args.rope, args.kv.head_dim, row, head);
  head -= args.rope.num_heads;
  const int num_kv_heads = args.kv.num_kv_heads;
  if (head < num_kv_heads) return place_key(args, stores, row, head);
  head -= num_kv_heads;
  if (stores && head < num_kv_heads) place_value(args, row, head);
}

// Where keys or values are no halves. Grid: rows, heads, keys and values.
LARDER_KERNEL_OF(kCodeThreads)
store_codes_kernel(StoreKvArgs args, CodeParts parts, int row_begin) {
  LARDER_SHARED StoreShared shared;
  wait_for_kernels_before();
  const bool is_key = blockIdx.z == 0;
  const KvType type = is_key ? args.kv.types.k : args.kv.types.v;
  const int head = static_cast<int>(blockIdx.y);
  const RowHead row(args, row_begin + static_cast<std::int64_t>(blockIdx.x), head, is_key,
                    is_key ? parts.key_bytes : parts.value_bytes);
  const int dim = parts.dim;
  if (type == KvType::kInt4) {
    return is_key ? store_key_int4(args.kv, parts, head, row.from, row.slot, shared)
                  : store_value_int4(parts, row.from, row.slot, shared);
  }
  if (type == KvType::kFp8) return store_fp8(row.slot, row.from, dim, is_key);
  if (type != KvType::kInt8) {  // 16 bits
    for (int d = thread_index(); d < dim; d += kCodeThreads) row.store(type, is_key, dim, d, row.from[d]);
    return;
  }
  if (!is_key) return store_int8(row.slot, row.from, dim, parts.value_scale_offset, false);
  into_key_basis(args.kv, parts, head, false, row.from, shared);
  store_int8(row.slot, shared.values, dim, parts.key_scale_offset, true);
}

// Grid: rows, heads.
LARDER_KERNEL_OF(kCodeThreads)
key_basis_kernel(PagedKvView kv, CodeParts parts, int group, float* q, std::int64_t ldq) {
  LARDER_SHARED StoreShared shared;
  wait_for_kernels_before();
  const int dim = parts.dim;
  const int head = static_cast<int>(blockIdx.y);
  float* values = q + static_cast<std::int64_t>(blockIdx.x) * ldq + std::int64_t{head} * dim;
  into_key_basis(kv, parts, head / group, true, values, shared);
  for (int d = thread_index(); d < dim; d += kCodeThreads) values[d] = shared.values[d];
}

}  // namespace

void store_kv(const StoreKvArgs& args, int row_begin, int row_end) {
  const PagedKvView& kv = args.kv;
  const auto num_rows = static_cast<unsigned>(row_end - row_begin);
  const bool are_halves = is_half(kv.types.k) && is_half(kv.types.v);
  const bool turns = args.rope.k != nullptr || args.rope.num_heads > 0;
  if (turns || are_halves) {
    const int num_heads = args.rope.num_heads + (are_halves ? 2 : 1) * kv.num_kv_heads;
    const auto blocks = static_cast<unsigned>((num_heads + kHeadWarps - 1) / kHeadWarps);
    launch(heads_kernel, dim3(num_rows, blocks), kHeadWarps * 32, args, are_halves, row_begin);
  }
  if (are_halves) return;
  require(kv.head_dim <= kCudaMaxHeadDim, "head_dim");
  const dim3 grid(num_rows, static_cast<unsigned>(kv.num_kv_heads), 2);
  launch(store_codes_kernel, grid, kCodeThreads, args, code_parts(kv), row_begin);
}

void to_key_basis(const PagedKvView& kv, int num_heads, float* q, std::int64_t ldq, int row_begin,
                  int row_end) {
  if (!has_codes(kv.types.k)) return;
  require(kv.head_dim <= kCudaMaxHeadDim, "head_dim");
  const dim3 grid(static_cast<unsigned>(row_end - row_begin), static_cast<unsigned>(num_heads));
  launch(key_basis_kernel, grid, kCodeThreads, kv, code_parts(kv), num_heads / kv.num_kv_heads,
         q + row_begin * ldq, ldq);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
