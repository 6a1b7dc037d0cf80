// A model's weights, repacked for the kernels into one arena whose size is known before it is
// taken.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "model/forward/output_split.h"
#include "model/gguf.h"
#include "model/model_config.h"

namespace larder {

// Null pointers where the architecture has no such weight. Where machines share out products, a matrix has this one's
// rows alone (MachineShare), and only the server has what is not shared out: norms, the embedding, experts, the heads of
// latent attention.
struct LayerWeights {
  const float* attention_norm = nullptr;  // [hidden_size]
  PackedMatrix q, k, v;                   // [q_size | kv_size, hidden_size]
  const float* q_bias = nullptr;
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* q_norm = nullptr;  // [head_dim], or [q_size] and [kv_size] where a norm is of all heads together
  const float* k_norm = nullptr;
  // Of latent attention, in place of k and v: q takes q_a's normed output where there is a q_a.
  PackedMatrix q_a, kv_a;                // [q_rank | head_dim, hidden_size]; the latent comes first
  const float* q_a_norm = nullptr;       // [q_rank]
  const float* kv_a_norm = nullptr;      // [rank]
  std::vector<PackedMatrix> k_b, v_b;    // [num_heads] of [rank, nope_dim] | [value_dim, rank]
  const float* sink_scores = nullptr;          // [num_heads]
  PackedMatrix o;                              // [hidden_size, o_size]
  const float* o_bias = nullptr;               // [hidden_size]
  const float* post_attention_norm = nullptr;  // [hidden_size]
  const float* ffn_norm = nullptr;             // [hidden_size]
  PackedMatrix gate, up;                       // [ffn_size, hidden_size]
  PackedMatrix down;                           // [hidden_size, ffn_size]
  const float* post_ffn_norm = nullptr;        // [hidden_size]
  // Of a layer with experts, whose shared ones are gate, up and down.
  PackedMatrix router;                 // [num_experts, hidden_size]
  const float* router_bias = nullptr;   // [num_experts], of the product
  const float* ranking_bias = nullptr;  // [num_experts], see choose_experts()
  PackedMatrix shared_router;          // [1, hidden_size], of what the shared ones give
  std::vector<PackedMatrix> expert_gate, expert_up;  // [num_experts] of [experts.ffn_size, hidden_size]
  std::vector<PackedMatrix> expert_down;             // [num_experts] of [hidden_size, experts.ffn_size]
  const float* expert_gate_bias = nullptr;           // [num_experts, experts.ffn_size]
  const float* expert_up_bias = nullptr;
  const float* expert_down_bias = nullptr;           // [num_experts, hidden_size]
};

// Whether it holds codes with scales, rather than numbers, and these kernels take activations for them in 8 bits.
bool takes_codes(const KernelTable& kernels, const PackedMatrix& matrix);

// Called from the loading thread after each tensor: bytes packed so far and in all.
using LoadProgress = std::function<void(std::size_t done_bytes, std::size_t total_bytes)>;

// The exact size of the arena that Weights takes. Checks that every tensor is there with its shape:
// throws Error{kInvalidArgument} naming the tensor.
std::size_t weights_size_bytes(const ModelConfig& config, const GgufFile& gguf, const MachineShare& share = {});

// All of its matrices, without data; several that one tensor has count as one.
std::vector<PackedMatrix> list_matrices(const ModelConfig& config, const GgufFile& gguf);

// Immutable after construction. Thread: any.
class Weights {
 public:
  // Packs with all threads of the pool. The file is not needed afterwards. Throws like
  // weights_size_bytes, and Error{kUnavailable} when there is no memory.
  // device: in whose memory they lie, which must outlive them; of the host's they take what the largest tensor
  // does, meanwhile. null = the host's. num_layers: only so many layers, for one that measures; default all.
  // share: what this machine holds of the model.
  Weights(const ModelConfig& config, const GgufFile& gguf, ThreadPool& pool, const LoadProgress& progress = {},
          Device* device = nullptr, int num_layers = std::numeric_limits<int>::max(),
          const MachineShare& share = {});

  const PackedMatrix& embedding() const { return embedding_; }  // [vocab_size, hidden_size], of the server
  const PackedMatrix& output() const { return output_; }        // the embedding itself when tied, or its first rows
  const float* output_norm() const { return output_norm_; }     // [hidden_size]
  const LayerWeights& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }
  std::size_t size_bytes() const { return arena_.size_bytes(); }
  const std::byte* data() const { return arena_.data(); }  // [size_bytes()], the device's

 private:
  DeviceBuffer arena_;
  PackedMatrix embedding_, output_;
  const float* output_norm_ = nullptr;
  std::vector<LayerWeights> layers_;
};

}  // namespace larder
