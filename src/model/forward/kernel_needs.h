// What a model's kernels need besides weights and blocks, for the planner: they put rows in order on threads' stacks, or
// once for all threads.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "model/forward/transformer.h"
#include "model/gguf.h"

namespace larder {

// At most, of each thread that computes. matrices: list_matrices(); blocks: head_dim and types alone.
std::int64_t kernel_stack_bytes(const KernelTable& kernels, std::span<const PackedMatrix> matrices,
                                const PagedKvView& blocks, const TransformerLimits& limits);

// TransformerLimits::packs_rows of a model: whether a layer's matrix takes many rows packed. Few rows want logits.
bool takes_packed_rows(const KernelTable& kernels, const ModelConfig& config, const GgufFile& gguf, const TransformerLimits& limits);

}  // namespace larder
