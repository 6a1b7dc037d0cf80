// What goes between machines that share out a model's products: a stage's input, whole, and each one's outputs.
//
// Both ends know every size from the model's configuration and its tensors' types, so that a message says nothing
// about its own form. Numbers lie as x86-64 has them: both ends run the same kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "model/forward/output_split.h"
#include "model/forward/product_partners.h"
#include "model/forward/weights.h"
#include "model/model_config.h"

namespace larder {

// One product of a stage.
struct SharedProduct {
  const PackedMatrix* w = nullptr;  // a machine's rows of the matrix
  const float* bias = nullptr;      // of the whole matrix, or null
  int num_outputs = 0;              // of the whole matrix
  bool has_rests = false;           // the input has its rests behind it, and so have the outputs
};

struct SharedStage {
  std::array<SharedProduct, 3> products;
  int num_products = 0;
  int num_cols = 0;           // of the input
  bool takes_values = false;  // FP32, [num_rows, num_cols]
  bool takes_codes = false;   // 8 bits, [num_rows, num_cols], and as many rests
  bool takes_rests = false;
  bool activates = false;     // the outputs are one vector: the activation of the first two products
  bool gives_codes = false;   // of which come its 8 bits alone
};

// The stages of a model, to a machine that has these weights. Thread: any.
class SharedModel {
 public:
  // References must outlive it. int8: matrices that the kernels want so take their input in 8 bits.
  SharedModel(const ModelConfig& config, const Weights& weights, const KernelTable& kernels, bool int8)
      : config_(config), weights_(weights), kernels_(kernels), int8_(int8) {}

  const ModelConfig& config() const { return config_; }
  bool int8() const { return int8_; }
  bool wants_int8(const PackedMatrix& matrix) const { return int8_ && takes_codes(kernels_, matrix); }
  // Whether a model has such a stage, and other machines have a part in it: layers with experts keep their MLP on
  // the server, latent attention its heads. For any layer and stage.
  static bool is_shared(const ModelConfig& config, StageId id);
  // Of one that is shared.
  SharedStage stage(StageId id) const;

 private:
  SharedProduct product(const PackedMatrix& w, int num_outputs, const float* bias = nullptr) const {
    return {&w, bias, num_outputs, false};
  }
  SharedStage make_heads(int layer, bool has_queries) const;
  SharedStage make_gate(int layer) const;

  const ModelConfig& config_;
  const Weights& weights_;
  const KernelTable& kernels_;
  const bool int8_;
};

// Of a stage of num_rows.
std::size_t stage_input_bytes(const SharedStage& stage, int num_rows);
std::size_t stage_reply_bytes(const SharedStage& stage, const MachineShare& share, int num_rows);

// What any stage takes at most; max_logit_rows: of kLogits.
struct StageLimits {
  int max_rows = 0;
  int max_logit_rows = 0;
};
std::size_t max_stage_input_bytes(const ModelConfig& config, const StageLimits& limits);
std::size_t max_stage_reply_bytes(const ModelConfig& config, const StageLimits& limits, const MachineShare& share);

// x [num_rows, num_cols], codes [num_rows (+ rests), num_cols] to out, [stage_input_bytes()].
void write_stage_input(const SharedStage& stage, const float* x, const QuantizedRows& codes, int num_rows,
                       std::byte* out);

// Codes as they are sent, [num_rows, num_cols] and their scales, to columns [first_col, first_col + num_cols) of
// `to`, [num_rows, to.num_cols]. first_col and num_cols: of whole groups.
void read_codes(const std::byte* from, int num_rows, int num_cols, const QuantizedRows& to, int first_col);

// Another machine's part of every stage. Thread: one at a time. Allocates at construction alone.
class StageComputer {
 public:
  static constexpr std::size_t kSlackBytes = 64;

  // References must outlive it; weights are the share's.
  StageComputer(const SharedModel& model, const MachineShare& share, const KernelTable& kernels, ThreadPool& pool,
                const StageLimits& limits);

  // input: stage_input_bytes() of it, aligned to 64 bytes, and kSlackBytes more that may be read. The outputs: of product after product
  // [num_rows (+ rests), rows of the share], FP32; of an activation as of one product, FP32 or its codes and their
  // scales. Valid until the next call.
  std::span<const std::byte> compute(StageId id, int num_rows, std::span<const std::byte> input);

  std::size_t size_bytes() const { return scratch_.size_bytes(); }
  static std::size_t size_bytes(const ModelConfig& config, const StageLimits& limits, const MachineShare& share);

 private:
  struct Buffers {
    std::byte* reply = nullptr;    // [max_stage_reply_bytes()]
    QuantizedRows input;           // [2 * max_rows, the widest input], its sums alone: the codes lie in the message
    float* gate = nullptr;         // [max_rows, rows of ffn_size]
    float* up = nullptr;
    std::int32_t* sums = nullptr;  // of the codes that go back
  };
  friend struct StageScratchPlan;

  const float* take_input(const SharedStage& stage, int num_rows, std::span<const std::byte> input);
  void activate(const SharedStage& stage, int num_rows, int num_cols);

  const SharedModel& model_;
  const MachineShare share_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
  AlignedBuffer scratch_;
  Buffers buffers_;
};

}  // namespace larder
