// Keys and values into their slots, and queries into the basis of keys: the same bits as the CPU's.
#include "kernels/cuda/functions.h"
#include "kernels/cuda/store_codes.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256;

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
  LARDER_MEMBER void store(KvType type, bool is_key, int dim, int d) const {
    auto* halves = reinterpret_cast<std::uint16_t*>(slot.to);
    halves[is_key ? d * kBlockSize + slot.offset : slot.offset * dim + d] =
        round_value(type, from[d]);
  }
};

// A thread per row, head and dimension.
LARDER_KERNEL store_halves_kernel(StoreKvArgs args, int row_begin, std::int64_t count) {
  wait_for_kernels_before();
  const std::int64_t i = grid_index();
  if (i >= count) return;
  const PagedKvView& kv = args.kv;
  const int dim = kv.head_dim;
  const int d = static_cast<int>(i % dim);
  const std::int64_t head = i / dim % kv.num_kv_heads;
  const std::int64_t row = row_begin + i / dim / kv.num_kv_heads;
  const std::int64_t head_bytes = std::int64_t{kBlockSize} * dim * 2;
  RowHead(args, row, head, true, head_bytes).store(kv.types.k, true, dim, d);
  RowHead(args, row, head, false, head_bytes).store(kv.types.v, false, dim, d);
}

// Where keys or values are codes. Grid: rows, heads, keys and values.
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
  if (type != KvType::kInt8) {
    for (int d = thread_index(); d < dim; d += kCodeThreads) row.store(type, is_key, dim, d);
    return;
  }
  if (!is_key) return store_int8(row.slot, row.from, dim, parts.value_scale_offset, false);
  for (int d = thread_index(); d < dim; d += kCodeThreads)
    shared.values[d] = finite(row.from[d], kLargestHalf);
  hadamard_rows(shared.values, 1, 0, dim);
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
  if (kv.types.k == KvType::kInt4) {
    into_key_basis(kv, parts, head / group, true, values, shared);
  } else {
    for (int d = thread_index(); d < dim; d += kCodeThreads) shared.values[d] = values[d];
    hadamard_rows(shared.values, 1, 0, dim);
  }
  for (int d = thread_index(); d < dim; d += kCodeThreads) values[d] = shared.values[d];
}

}  // namespace

void store_kv(const StoreKvArgs& args, int row_begin, int row_end) {
  const PagedKvView& kv = args.kv;
  const int num_rows = row_end - row_begin;
  if (has_codes(kv.types.k) || has_codes(kv.types.v)) {
    require(kv.head_dim <= kCudaMaxHeadDim, "head_dim");
    const dim3 grid(static_cast<unsigned>(num_rows), static_cast<unsigned>(kv.num_kv_heads), 2);
    launch(store_codes_kernel, grid, kCodeThreads, args, code_parts(kv), row_begin);
    return;
  }
  const std::int64_t count = std::int64_t{num_rows} * kv.num_kv_heads * kv.head_dim;
  launch(store_halves_kernel, blocks_for(count, kThreads), kThreads, args, row_begin, count);
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
