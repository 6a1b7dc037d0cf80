// MXFP4 as safetensors keep it, numbers and scales apart, to GGUF's blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"

namespace larder {

// One matrix of a tensor whose GgufTensor::parts are two of each: its numbers and its scales. Rows may lie two apart,
// as those of gate and up do, which take turns: the spans begin with its first row and end with its last.
struct Mxfp4Parts {
  std::span<const std::byte> numbers;  // per row: num_cols / 32 times 16 bytes, each of two neighbours, the first below
  std::span<const std::byte> scales;   // per row: num_cols / 32 bytes
};

// Bytes that blocks of such a matrix take.
std::size_t mxfp4_size_bytes(int num_rows, int num_cols);

// blocks: [mxfp4_size_bytes()]. Throws Error{kInvalidArgument} where the spans are of no such matrix.
void join_mxfp4(const Mxfp4Parts& parts, int num_rows, int num_cols, std::byte* blocks, ThreadPool& pool);

}  // namespace larder
