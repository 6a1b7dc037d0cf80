// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) around the attention kernels.
//
// A token keeps one vector for all heads: its rotated part, then its latent, from which every head
// makes its keys and values. Instead of making them, a head's query goes through the matrix of its
// keys, and what attention gives through that of its values: to the kernels it is attention with
// one KV head whose values are its keys.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "model/forward/product_group.h"
#include "model/forward/weights.h"
#include "model/model_config.h"

namespace larder {

// On a CPU. A row's bits depend on that row alone. Thread: one at a time. Allocates at construction alone.
class LatentAttention {
 public:
  // References must outlive it. int8: quantised matrices take their input in 8 bits.
  LatentAttention(const ModelConfig& config, const KernelTable& kernels, ThreadPool& pool, int max_rows,
                  bool int8);

  // Of x [num_rows, hidden_size]: keys k [num_rows, head_dim] and, unless q is null, queries
  // q [num_rows, num_heads * head_dim], both without their rotation.
  void project(const LayerWeights& weights, const float* x, int num_rows, float* k, float* q);
  // Attention's sums [num_rows, num_heads * head_dim] to each head's values: out [num_rows, num_heads * value_dim].
  void make_values(const LayerWeights& weights, const float* sums, int num_rows, float* out);

  std::size_t size_bytes() const { return scratch_.size_bytes(); }
  // What it will say of one made with these, for the planner: takes no memory.
  static std::size_t size_bytes(const ModelConfig& config, int max_rows);

 private:
  struct Buffers {
    QuantizedRows x;          // [2 * max_rows, hidden_size]: rests behind the rows, as Transformer::refine_input()
    float* rests = nullptr;   // [max_rows, hidden_size]
    float* kv = nullptr;      // [2 * max_rows, head_dim]: the latent, then what rotates; products of rests behind
    float* latent = nullptr;  // [max_rows, rank]
    float* q_low = nullptr;   // [max_rows, q_rank]
    QuantizedRows q_low_codes;
    float* q_flat = nullptr;  // [max_rows, num_heads * (nope_dim + rope_dim)]
    // By heads, then rows: a head's rows are one input.
    float* by_heads = nullptr;  // [num_heads, max_rows, the wider of nope_dim and rank]
    QuantizedRows by_heads_codes;
  };
  friend struct LatentScratchPlan;

  void take_input(const LayerWeights& weights, const float* x, int num_rows, bool has_queries);
  void make_keys(const LayerWeights& weights, int num_rows, bool has_rests, float* k);
  void widen_queries(const LayerWeights& weights, int num_rows);
  void make_queries(const LayerWeights& weights, int num_rows, float* q);
  // Each head's part of rows [num_rows, ld], from its column `first` on, to by_heads.
  void split_heads(const float* rows, std::int64_t ld, int head_stride, int first, int count, int num_rows);
  void quantize_heads(const PackedMatrix& w, int num_rows);

  const ModelConfig& config_;
  const LatentConfig& latent_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
  DeviceBuffer scratch_;
  Buffers buffers_;
  ProductGroup products_;
};

}  // namespace larder
