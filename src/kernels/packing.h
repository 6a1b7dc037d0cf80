// GGUF tensors -> PackedMatrix. Every weight keeps its exact value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace larder {

// The layout that a tensor of this type and shape gets; data is null.
// num_cols must be a multiple of the type's block size.
PackedMatrix packed_layout(GgmlType type, int num_rows, int num_cols);
// Bytes that the layout takes.
std::int64_t packed_size_bytes(const PackedMatrix& layout);

// So many bytes of a matrix's packed ones are there.
using PackProgress = std::function<void(std::int64_t packed_bytes)>;

// Repacks `rows` (GGUF bytes, row after row) into `data`, 64-byte aligned, and returns the view. Throws
// Error{kInvalidArgument} naming the first row with a value that is not finite: rows' sums would no longer be their own.
PackedMatrix pack_matrix(GgmlType type, std::span<const std::byte> rows, int num_rows, int num_cols,
                         std::byte* data, ThreadPool& pool, const PackProgress& progress = {});

}  // namespace larder
