// Keys and values into their slots, FP16 and BF16: the same bytes as the CPU's.
#include "kernels/cuda/functions.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256;

// NaN becomes 0 and what is beyond the type's range its end.
LARDER_DEVICE std::uint16_t round_value(KvType type, float value) {
  const float largest = type == KvType::kF16 ? 65504.0F : 0x1.FEp127F;
  if (!(fabsf(value) >= 0)) value = 0;
  value = fminf(fmaxf(value, -largest), largest);
  return type == KvType::kF16 ? half_bits(value) : bf16_bits(value);
}

// A thread per row, head and dimension.
LARDER_KERNEL store_kv_kernel(StoreKvArgs args, int row_begin, std::int64_t count) {
  const std::int64_t i = grid_index();
  if (i >= count) return;
  const PagedKvView& kv = args.kv;
  const int dim = kv.head_dim;
  const int d = static_cast<int>(i % dim);
  const std::int64_t head = i / dim % kv.num_kv_heads;
  const std::int64_t row = row_begin + i / dim / kv.num_kv_heads;
  const std::int64_t slot = args.slots[row];
  const std::int64_t offset = slot % kBlockSize;
  std::byte* block = kv.base + slot / kBlockSize * kv.block_stride_bytes;
  const std::int64_t head_bytes = std::int64_t{kBlockSize} * dim * 2;
  auto* k = reinterpret_cast<std::uint16_t*>(block + kv.k_offset_bytes + head * head_bytes);
  auto* v = reinterpret_cast<std::uint16_t*>(block + kv.v_offset_bytes + head * head_bytes);
  k[std::int64_t{d} * kBlockSize + offset] =
      round_value(kv.types.k, args.k[row * args.ldk + head * dim + d]);
  v[offset * dim + d] = round_value(kv.types.v, args.v[row * args.ldv + head * dim + d]);
}

}  // namespace

void store_kv(const StoreKvArgs& args, int row_begin, int row_end) {
  const std::int64_t count =
      std::int64_t{row_end - row_begin} * args.kv.num_kv_heads * args.kv.head_dim;
  launch(store_kv_kernel, blocks_for(count, kThreads), kThreads, args, row_begin, count);
}

// Keys that are codes have a basis of their own; there are none here yet.
void to_key_basis(const PagedKvView&, int, float*, std::int64_t, int, int) {}

}  // namespace larder::LARDER_CUDA_NAMESPACE
