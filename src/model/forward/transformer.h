// The forward pass of decoder-only transformers: tokens in, logits out.
//
// A row's bits depend on that row's token, its position and the keys and values before it, never on
// the other rows of the batch, the chunking of the prompt or the number of threads (promise 1). K
// and V are written to the blocks and read back from them as stored, also by the pass that wrote
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "base/types.h"
#include "kernels/kernels.h"
#include "kernels/ops.h"
#include "kv/kv_storage.h"
#include "model/forward/batch_staging.h"
#include "model/forward/expert_layers.h"
#include "model/forward/forward_batch.h"
#include "model/forward/latent_attention.h"
#include "model/forward/output_split.h"
#include "model/forward/product_partners.h"
#include "model/forward/shared_products.h"
#include "model/forward/weights.h"
#include "model/model_config.h"

namespace larder {

enum class ActivationType {
  kInt8,  // into quantised matrices; BF16 ones take BF16 where the set multiplies it, else all take FP32
  kF32,   // everywhere: the reference path
};

// What the scratch is sized for.
struct TransformerLimits {
  int max_batch_tokens = 512;
  int max_logit_rows = 64;
  int max_context_len = 4096;  // of one sequence
  int max_sequences = 256;     // of a batch; more may come, but a device reserves no room for them, nor draws for more
  int max_chunk_tokens = 512;  // of a batch that forward_layers() computes, at most max_batch_tokens
  ActivationType activations = ActivationType::kInt8;
  bool packs_rows = false;  // once for all tasks of a product: takes_packed_rows()
  OutputSplit split = {};  // over machines, of which this one is the first; on a CPU
};

// Valid until the next call.
struct Logits {
  // [num_logit_rows, vocab_size], in the order of logit_rows. From a device those of ForwardBatch::read_logits alone,
  // the other rows are anything; none where none are read.
  std::span<const float> values;
  std::span<const float> maxima;   // of each row's run_maxima(); none from a device
  std::span<const TokenId> best = {};  // first_of_best(), [num_logit_rows]; from a device alone
  std::span<const TokenId> drawn = {};  // [num_draws]; from a device alone

  // Of one logit row.
  Logits row(int index, int vocab_size) const {
    const auto part = [index](std::span<const float> rows, int size) {
      const auto width = static_cast<std::size_t>(size);
      return rows.empty() ? rows : rows.subspan(static_cast<std::size_t>(index) * width, width);
    };
    return {part(values, vocab_size), part(maxima, num_logit_runs(vocab_size)),
            best.empty() ? best : best.subspan(static_cast<std::size_t>(index), 1)};
  }
};

class KeyStatistics;

// Thread: one at a time. On the CPU no allocation, and so nothing that throws, once it has seen its
// largest batch.
class Transformer {
 public:
  // References must outlive it; the layout is the storage's. device: whose kernels these are and
  // where weights and storage lie, null = the CPU. partners: the other machines of limits.split, null = none; weights
  // are then the server's share.
  Transformer(const ModelConfig& config, const Weights& weights, const KvLayout& layout,
              const KernelTable& kernels, ThreadPool& pool, const TransformerLimits& limits,
              Device* device = nullptr, ProductPartners* partners = nullptr);

  // Computes K and V of every token and the logits of logit_rows. A batch over the limits
  // is a bug (CHECK). Throws PartnerLost where there are partners: the blocks of this batch's tokens then hold
  // anything, and a batch that passes layers has to begin again.
  Logits forward(const ForwardBatch& batch, const KvStorage& storage);

  // The same of a batch of at most max_chunk_tokens in pieces, layers [begin, end) at a time, in order; the last
  // piece has the logits, those before return none. Calls of forward() may come between the pieces,
  // another batch's pieces may not.
  Logits forward_layers(const ForwardBatch& batch, const KvStorage& storage, int begin, int end);

  // From now on statistics hears every layer's queries and keys; null = nobody.
  void observe_keys(KeyStatistics* statistics) { key_statistics_ = statistics; }

  const ModelConfig& config() const { return config_; }
  const TransformerLimits& limits() const { return limits_; }
  ThreadPool& pool() { return pool_; }  // idle between calls of forward()
  // What it holds where it computes: activations, logits, attention's scratch, a device's copy of a batch and of
  // the rotations' frequencies.
  std::size_t scratch_size_bytes() const;

 private:
  // What a batch takes along from layer to layer.
  struct Stream {
    float* hidden = nullptr;  // [rows, hidden_size], the residual stream
    float* normed = nullptr;  // [rows, hidden_size]; between layers: what is still to be added
    // [2, num_ropes, max_batch_tokens, rope_dim / 2]: of positions, of sink_positions
    float* cos = nullptr;
    float* sin = nullptr;
  };
  // Views into scratch_, see transformer.cc.
  struct Buffers : Stream {   // of max_batch_tokens rows
    float* q = nullptr;       // [max_batch_tokens, q_size]
    float* k = nullptr;       // [max_batch_tokens, kv_size]
    float* v = nullptr;  // [2 * max_batch_tokens, kv_size], see refine_input()
    float* attention = nullptr;  // [max_batch_tokens, q_size]
    float* values = nullptr;     // [max_batch_tokens, o_size], of latent attention alone
    float* gate = nullptr;       // [max_batch_tokens, ffn_size]
    float* up = nullptr;
    float* q_sinks = nullptr;  // [max_batch_tokens, q_size], see AttentionArgs
    float* logits = nullptr;  // [max_logit_rows, vocab_size]
    float* maxima = nullptr;  // [max_logit_rows, runs of vocab_size]
    // [max_logit_rows + max_sequences]: of each row of logits, behind them what is drawn; on a device alone.
    TokenId* best = nullptr;
    // [max_batch_tokens, the widest input], and room for attention's input twice.
    QuantizedRows quantized;
    // What 8 bits leave over of attention's input: for V, see refine_input().
    float* rest = nullptr;  // [max_batch_tokens, hidden_size]
    std::byte* row_room = nullptr;  // see MatmulArgs; where limits say so
    std::byte* product = nullptr;  // see MatmulArgs; on a device alone
    std::byte* sent = nullptr;      // a stage's input, and what comes back of it; with partners alone
    std::byte* received = nullptr;
    Stream chunk;  // of max_chunk_tokens rows, while forward_layers() is between two pieces
  };
  friend struct ScratchPlan;

  // y = w x + bias
  struct Product {
    const PackedMatrix* w = nullptr;
    const float* bias = nullptr;
    float* y = nullptr;
    bool twice = false;  // the input has its rests behind it, see refine_input()
    float* maxima = nullptr;  // see MatmulArgs
    int num_outputs = 0;  // of the whole matrix, of which w has the first ones; 0: w has all
  };
  struct Products {
    std::array<Product, 3> of;
    std::size_t count = 0;
    StageId stage = {};  // for partners
  };

  void prepare_device();
  Logits run_layers(const ForwardBatch& given, const KvStorage& storage, int begin, int end);
  void check(const ForwardBatch& batch) const;
  // From here on, the batch's arrays lie where the kernels read them.
  void embed(const ForwardBatch& batch);
  void compute_rotations(std::span<const std::int32_t> positions, std::int64_t first_table);
  std::span<const AttentionSequence> list_logit_sequences(const ForwardBatch& batch);
  void reserve_sharing();
  void share_keys(ForwardBatch& batch);
  bool is_last(int layer) const { return layer + 1 == config_.num_layers(); }
  // Queries, keys and values; those two stored.
  void project_heads(int num_rows, int layer, bool has_queries);
  void project_latent(int num_rows, int layer, bool has_queries);
  void norm_heads_together(int layer, bool has_queries, int row_begin, int row_end);
  void apply_temperature(const ForwardBatch& batch, bool has_sinks, int row_begin, int row_end);
  void project_input(const ForwardBatch& batch, const KvStorage& storage, int layer, bool has_queries);
  void gather_rows(std::span<const std::int32_t> rows, bool has_sinks);
  void attend(const ForwardBatch& batch, const KvStorage& storage, int layer);
  void project_attention(int num_rows, int layer);
  void run_mlp(int num_rows, int layer);
  void compute_layers(const ForwardBatch& batch, const KvStorage& storage, int begin, int end);
  void compute_logits(const ForwardBatch& batch);
  Logits take_logits(const ForwardBatch& given, int num_rows);
  Logits take_from_device(const ForwardBatch& given, int num_rows);
  void copy_logits(int begin, int end);

  // Of a layer or, as its last, of the logits; those that one call of multiply() takes together.
  Products input_products(int layer, bool has_queries = true);
  Products output_products(int layer);
  Products gate_products(int layer);
  Products down_products(int layer);
  Products products_behind(int layer);

  // function(row_begin, row_end) over all rows, in pieces where threads share them.
  template <class Function>
  void for_rows(int num_rows, Function&& function);
  bool shares_rows(int num_rows) const;

  // Products of one input, which lies in buffers_.quantized, too, where a matrix wants that.
  // prepare(row_begin, row_end) makes that input. next: what will be multiplied after these.
  template <class Prepare>
  void multiply(const float* x, int num_rows, const Products& products, const Products& next,
                const Prepare& prepare);
  std::size_t to_args(const float* x, int num_rows, const Products& products,
                      std::span<MatmulArgs> args) const;
  // Around a stage's own part, with partners (transformer_shared.cc).
  void send_stage(const float* x, int num_rows, const Products& products);
  void receive_stage(int num_rows, const Products& products);
  void take_outputs(const SharedStage& stage, int machine, int num_rows, const Products& products);
  void activate_share(int num_rows, bool wants_codes);
  void take_activated(const SharedStage& stage, int machine, int num_rows);
  void cap_logits(int num_rows);
  // Not by the product's tasks, which do not know them all, or not as they will be.
  bool finds_maxima_late() const { return partners_ != nullptr || config_.logit_cap > 0; }
  void find_maxima(int num_rows);
  bool wants_int8(const PackedMatrix& matrix) const;
  void quantize_input(const float* x, int num_cols, int row_begin, int row_end);
  void refine_input(int num_rows, int row_begin, int row_end);
  void add_rests_of_v(int num_rows, const float* bias, int row_begin, int row_end);
  bool has_sinks(const ForwardBatch& batch, int layer) const;
  bool has_experts(int layer) const { return config_.layers[static_cast<std::size_t>(layer)].has_experts; }
  // Where a layer's rotations begin in cos and sin.
  std::int64_t rotation_table(int layer) const {
    return rotation_table_size() * config_.layers[static_cast<std::size_t>(layer)].rope;
  }
  std::int64_t rotation_table_size() const {
    return std::int64_t{limits_.max_batch_tokens} * (config_.rope_dim / 2);
  }
  RopeArgs rope_args(int layer, bool has_queries, bool has_sinks) const;
  void norm_behind(int layer, const float* weight, int row_begin, int row_end);
  void norm(const float* added, const float* post_norm, const float* weight, int row_begin, int row_end);

  const ModelConfig& config_;
  const Weights& weights_;
  const KvLayout& layout_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
  const TransformerLimits limits_;
  AttentionOp attention_op_;
  DeviceBuffer scratch_;
  Buffers buffers_;
  std::optional<ExpertLayers> expert_layers_;
  std::optional<LatentAttention> latent_;
  ProductPartners* const partners_;  // null = none
  const SharedModel shared_;
  // Where the kernels read them, [num_ropes].
  std::vector<const double*> rope_frequencies_;
  std::vector<AttentionSequence> logit_sequences_;  // of this batch, on the host
  std::vector<GroupBatch> shared_groups_;  // of this batch
  std::vector<std::vector<AttentionSequence>> shared_sequences_;  // per group
  std::vector<CommonKeyFinder> common_finders_;  // per group, then of the logits' sequences
  // With a device alone.
  Device* device_;
  std::optional<BatchStaging> staging_;
  DeviceBuffer device_frequencies_;
  // Copied back, see Logits.
  HostBuffer logits_;  // [max_logit_rows, vocab_size]
  HostBuffer best_;    // as buffers_.best
  KeyStatistics* key_statistics_ = nullptr;
};

// What Transformer::scratch_size_bytes() will say, for the planner. Takes no memory.
std::size_t transformer_scratch_size_bytes(const ModelConfig& config,
                                           const TransformerLimits& limits, const ThreadPool& pool,
                                           const Device* device = nullptr);

}  // namespace larder
