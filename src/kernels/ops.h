// Kernels over a ThreadPool: how work is shared out, and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace larder {

// Several products that do not depend on one another, in one fork and join (Q, K and V; gate and up).
void matmul(const KernelTable& kernels, ThreadPool& pool, std::span<const MatmulArgs> products);

// Attention of a whole batch. Scratch is sized at construction.
class AttentionOp {
 public:
  // max_rows: query rows of a batch; max_context_len: the longest sequence.
  AttentionOp(ThreadPool& pool, int max_rows, int num_heads, int head_dim, int max_context_len);
  void run(const KernelTable& kernels, const AttentionArgs& args);
  std::size_t scratch_size_bytes() const { return scratch_.size_bytes(); }

 private:
  ThreadPool& pool_;
  AlignedBuffer scratch_;
};

}  // namespace larder
