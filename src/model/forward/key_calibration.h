// Which dimensions of a layer's keys matter, measured on a text of our own: the basis for keys as
// codes.
//
// An error in dimension i of a key reaches the score multiplied by the query's dimension i. So keys
// are scaled by balance[i] = (E q_i^2 / E k_i^2)^(1/4) and queries by its inverse, which gives both
// the same spread and makes errors count alike (as SmoothQuant does for weights, Xiao et al. 2023),
// and in 4 bits the dimensions with most of E q_i^2 * E k_i^2 get more of them. Both moments are
// averaged over the two dimensions of a RoPE pair, whose energy does not depend on the position.
// Of 8 bits, turned, every dimension has the same error, which is that of (sum of |q_i| |k_i|)^2
// rather than of sum q_i^2 * sum k_i^2: in Gemma 3 270M 0.05 to 0.84 of it, layer by layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "base/types.h"
#include "kernels/kernels.h"
#include "kv/key_basis.h"
#include "model/forward/transformer.h"
#include "model/forward/weights.h"
#include "model/model_config.h"

namespace larder {

// Sums of squares of queries and keys, gathered by Transformer::observe_keys.
// Thread: the forward pass's. Sums run in one order, so that they are the same for any threads.
class KeyStatistics {
 public:
  explicit KeyStatistics(const ModelConfig& config);

  // Rows with their positions applied; q [num_rows, q_size], k [num_rows, kv_size]. The first
  // tokens of a text attract attention whatever they are, and are left out. device: in whose memory
  // they lie, null = the host's.
  void add(int layer, const float* q, const float* k, std::span<const std::int32_t> positions,
           Device* device = nullptr);
  // Per layer.
  std::vector<KeyBasis> basis() const;

 private:
  struct Moments {
    std::vector<double> q;  // [num_kv_heads * head_dim]
    std::vector<double> k;
    std::int64_t num_rows = 0;
  };

  KeyBasis basis_of(const Moments& moments) const;
  // The other dimension of i's RoPE pair; i itself where there is none.
  int partner(int i) const;

  const ModelConfig& config_;
  std::vector<Moments> layers_;
};

// A text of many kinds, to be encoded with the model's tokenizer.
extern const char* const kKeyCalibrationText;

// Runs the tokens through the model with keys and values in FP16, in memory of its own. The same for
// any number of threads; other instruction sets may differ in the last bits. device: whose kernels
// these are and where the weights lie, null = the CPU. partners: the other machines of split, null = none; then the
// weights are the server's share, and the same comes of it. Throws PartnerLost.
inline constexpr int kCalibrationBatchTokens = 128;
// What that takes meanwhile of so many tokens, the weights aside.
std::int64_t calibration_size_bytes(const ModelConfig& config, int num_tokens, const ThreadPool& pool,
                                    const Device* device = nullptr);
std::vector<KeyBasis> calibrate_keys(const ModelConfig& config, const Weights& weights,
                                     const KernelTable& kernels, ThreadPool& pool,
                                     std::span<const TokenId> tokens, Device* device = nullptr,
                                     ProductPartners* partners = nullptr, const OutputSplit& split = {});

}  // namespace larder
