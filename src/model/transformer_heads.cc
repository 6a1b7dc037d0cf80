// What few families do with queries and keys, beside what store_kv() does with those of all.
#include "model/transformer.h"

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

// By the positions that the queries have turned to.
void Transformer::apply_temperature(const ForwardBatch& batch, bool has_sinks, int row_begin, int row_end) {
  const auto apply = [&](float* queries, std::span<const std::int32_t> positions) {
    for (int row = row_begin; row < row_end; ++row) {
      const auto factor =
          static_cast<float>(query_temperature(config_.temperature, positions[static_cast<std::size_t>(row)]));
      if (factor == 1) continue;
      float* values = queries + std::int64_t{row} * config_.q_size();
      for (int i = 0; i < config_.q_size(); ++i) values[i] *= factor;
    }
  };
  apply(buffers_.q, batch.positions);
  if (has_sinks) apply(buffers_.q_sinks, batch.sink_positions);
}

}  // namespace larder
