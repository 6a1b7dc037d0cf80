#include "model/kernel_stack.h"

#include <algorithm>

#include "model/weights.h"

namespace larder {
namespace {

std::int64_t product_stack_bytes(const PackedMatrix& matrix, const KernelTable& kernels, const TransformerLimits& limits) {
  const bool is_int8 = limits.activations == ActivationType::kInt8;
  const QuantizedRows rows{.num_cols = matrix.num_cols};
  return kernels.matmul_stack_bytes({.w = &matrix,
                                     .xq = is_int8 && takes_codes(kernels, matrix) ? &rows : nullptr,
                                     .rounds_to_bf16 = is_int8,
                                     .num_rows = 2 * limits.max_batch_tokens});  // with what 8 bits leave over
}

}  // namespace

// One product, or attention, stands at a time where another has stood.
std::int64_t kernel_stack_bytes(const KernelTable& kernels, std::span<const PackedMatrix> matrices,
                                const PagedKvView& blocks, const TransformerLimits& limits) {
  AttentionArgs attention;
  attention.kv = blocks;
  attention.rounds_to_bf16 = limits.activations == ActivationType::kInt8;
  std::int64_t most = kernels.attention_stack_bytes(attention);
  for (const PackedMatrix& matrix : matrices) most = std::max(most, product_stack_bytes(matrix, kernels, limits));
  return most;
}

}  // namespace larder
