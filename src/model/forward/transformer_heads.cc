// What few families do with queries and keys, beside what store_kv() does with those of all, and with logits.
#include <algorithm>

#include "model/forward/transformer.h"

namespace larder {

// One norm of all of a row's queries, and one of all its keys, before they turn.
void Transformer::norm_heads_together(int layer, bool has_queries, int row_begin, int row_end) {
  const LayerWeights& w = weights_.layer(layer);
  const auto norm = [&](float* values, const float* weight, int num_cols) {
    kernels_.rms_norm({.x = values, .weight = weight, .epsilon = config_.rms_epsilon, .out = values, .num_cols = num_cols},
                      row_begin, row_end);
  };
  norm(buffers_.k, w.k_norm, config_.kv_size());
  if (has_queries) norm(buffers_.q, w.q_norm, config_.q_size());
}

// One factor for all that a query sees, or its softmax would weigh sinks and window on two scales.
void Transformer::apply_temperature(const ForwardBatch& batch, bool has_sinks, int row_begin, int row_end) {
  const auto apply = [&](float* queries, int row, float factor) {
    float* values = queries + std::int64_t{row} * config_.q_size();
    for (int i = 0; i < config_.q_size(); ++i) values[i] *= factor;
  };
  for (const AttentionSequence& sequence : batch.groups.front().sequences) {
    const int end = std::min(row_end, sequence.first_row + sequence.num_tokens);
    for (int row = std::max(row_begin, sequence.first_row); row < end; ++row) {
      const std::int32_t place = seen_place(sequence, batch.positions[static_cast<std::size_t>(row)]);
      const auto factor = static_cast<float>(query_temperature(config_.temperature, place));
      if (factor == 1) continue;
      apply(buffers_.q, row, factor);
      if (has_sinks) apply(buffers_.q_sinks, row, factor);
    }
  }
}

// Before anyone looks at them. One row is long enough to be shared out.
void Transformer::cap_logits(int num_rows) {
  constexpr std::int64_t kTaskValues = 16 * 1024;
  const std::int64_t num_values = std::int64_t{num_rows} * config_.vocab_size;
  if (device_ != nullptr) return kernels_.soft_cap(buffers_.logits, num_values, config_.logit_cap);
  const auto num_tasks = static_cast<int>((num_values + kTaskValues - 1) / kTaskValues);
  pool_.parallel_for_near(num_tasks, [&](int task, int) {
    const std::int64_t begin = task * kTaskValues;
    kernels_.soft_cap(buffers_.logits + begin, std::min(kTaskValues, num_values - begin), config_.logit_cap);
  });
}

}  // namespace larder
