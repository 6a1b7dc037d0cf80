#include "model/forward/kernel_needs.h"

#include <algorithm>

#include "model/forward/weights.h"

namespace larder {
namespace {

// function(args) of the longest product.
template <class Function>
auto with_longest_product(const PackedMatrix& matrix, const KernelTable& kernels, const TransformerLimits& limits,
                          const Function& function) {
  const bool is_int8 = limits.activations == ActivationType::kInt8;
  const QuantizedRows rows{.num_cols = matrix.num_cols};
  return function(MatmulArgs{.w = &matrix,
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
  for (const PackedMatrix& matrix : matrices)
    most = std::max(most, with_longest_product(matrix, kernels, limits, kernels.matmul_stack_bytes));
  return most;
}

bool takes_packed_rows(const KernelTable& kernels, const ModelConfig& config, const GgufFile& gguf, const TransformerLimits& limits) {
  if (kernels.pack_rows == nullptr) return false;
  return std::ranges::any_of(list_matrices(config, gguf), [&](const PackedMatrix& matrix) {
    return matrix.num_rows != config.vocab_size && with_longest_product(matrix, kernels, limits, kernels.num_row_tiles) > 0;
  });
}

}  // namespace larder
