// What a model's kernels take of a thread's stack, for the planner: rows are put in order there.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "model/transformer.h"

namespace larder {

// At most, of each thread that computes. matrices: list_matrices(); blocks: head_dim and types alone.
std::int64_t kernel_stack_bytes(const KernelTable& kernels, std::span<const PackedMatrix> matrices,
                                const PagedKvView& blocks, const TransformerLimits& limits);

}  // namespace larder
