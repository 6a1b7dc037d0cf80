// The MLPs of layers with experts: every row goes through those that it chooses, and through those
// that all share.
//
// A row's bits depend on that row alone, as everywhere: each expert's product gives a row the same bits
// whoever else chose it, and what experts give is added up in the order of the experts.
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

// On a CPU. Thread: one at a time. Allocates at construction alone.
class ExpertLayers {
 public:
  // References must outlive it. int8: quantised matrices take their input in 8 bits.
  ExpertLayers(const ModelConfig& config, const KernelTable& kernels, ThreadPool& pool, int max_rows,
               bool int8);

  // x becomes what a layer's experts make of it, [num_rows, hidden_size].
  void run(const LayerWeights& weights, float* x, int num_rows);

  std::size_t size_bytes() const { return scratch_.size_bytes(); }
  // What it will say of one made with these, for the planner: takes no memory.
  static std::size_t size_bytes(const ModelConfig& config, int max_rows);

 private:
  // A place is one row's turn in one expert; places lie expert by expert, and by row within each.
  struct Buffers {
    float* scores = nullptr;          // [max_rows, num_experts]
    float* shared_scores = nullptr;   // [max_rows], of the shared ones, then their weights
    float* weights = nullptr;         // [max_rows, num_chosen]
    std::int32_t* chosen = nullptr;   // [max_rows, num_chosen], ascending
    std::int32_t* places = nullptr;   // [max_rows, num_chosen], of those choices
    std::int32_t* rows = nullptr;     // [max_rows * num_chosen], of the places
    std::int32_t* first = nullptr;    // [num_experts + 1], places of each expert begin here
    float* x = nullptr;               // [max_rows * num_chosen, hidden_size], what experts take and give
    float* gate = nullptr;            // [max_rows * num_chosen, ffn_size]
    float* up = nullptr;
    float* shared_gate = nullptr;     // [max_rows, shared_ffn_size]
    float* shared_up = nullptr;
    QuantizedRows taken;              // [max_rows, hidden_size], of all rows
    QuantizedRows inner;              // [max_rows * num_chosen, the wider of hidden_size and ffn_size]
    QuantizedRows shared_inner;       // [max_rows, shared_ffn_size]
  };
  friend struct ExpertScratchPlan;

  bool takes_int8(const LayerWeights& weights) const;
  void choose(const LayerWeights& weights, const float* x, int num_rows);
  void list_places(int num_rows);
  void take_rows(const LayerWeights& weights, const float* x, int num_rows);
  void copy_row(const float* x, int row, int place);
  void copy_codes(int row, int place);
  void activate(const LayerWeights& weights, int num_rows);
  void add_up(int num_rows, bool has_shared, float* out);
  int num_rows_of(int expert) const { return buffers_.first[expert + 1] - buffers_.first[expert]; }
  int num_places(int num_rows) const { return num_rows * config_.experts.num_chosen; }

  const ModelConfig& config_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
  DeviceBuffer scratch_;
  Buffers buffers_;
  ProductGroup products_;
};

}  // namespace larder
