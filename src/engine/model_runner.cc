#include "engine/model_runner.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace larder {

Logits ModelRunner::forward(const Batch& batch) {
  return model_.forward(to_forward_batch(batch), storage_);
}

Logits ModelRunner::forward(const BatchRows& rows, std::span<const std::int32_t> logit_rows) {
  ForwardBatch forward_batch = to_forward_batch(rows);
  forward_batch.logit_rows = logit_rows;
  return model_.forward(forward_batch, storage_);
}

Logits ModelRunner::forward_layer(const Batch& batch, int layer) {
  return model_.forward_layers(to_forward_batch(batch), storage_, layer, layer + 1);
}

ForwardBatch ModelRunner::to_forward_batch(const BatchRows& rows) {
  groups_.clear();
  for (const BatchRows::Group& group : rows.groups())
    groups_.push_back({group.slots, group.sequences});
  ForwardBatch forward_batch;
  forward_batch.tokens = rows.tokens();
  forward_batch.positions = rows.positions();
  forward_batch.sink_positions = rows.sink_positions();
  forward_batch.groups = groups_;
  return forward_batch;
}

ForwardBatch ModelRunner::to_forward_batch(const Batch& batch) {
  ForwardBatch forward_batch = to_forward_batch(static_cast<const BatchRows&>(batch));
  forward_batch.logit_rows = batch.logit_rows();
  forward_batch.read_logits = batch.read_logits();
  forward_batch.draws = batch.draws();
  return forward_batch;
}

double ModelRunner::measure_seconds_per_token(int num_tokens, int num_groups) {
  constexpr int kRuns = 3;  // the first one warms up
  const std::vector<TokenId> tokens(static_cast<std::size_t>(num_tokens));
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> slots;
  for (int i = 0; i < num_tokens; ++i) {
    positions.push_back(i);
    slots.push_back(i);
  }
  std::vector<BlockId> blocks;
  for (int i = 0; i * kBlockSize < num_tokens; ++i) blocks.push_back(BlockId{i});
  const AttentionSequence sequence{
      .first_row = 0, .num_tokens = num_tokens, .context_len = num_tokens,
      .block_table = blocks.data()};
  groups_.assign(static_cast<std::size_t>(num_groups), {slots, {&sequence, 1}});
  double best = std::numeric_limits<double>::max();
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    model_.forward({.tokens = tokens, .positions = positions, .sink_positions = {}, .groups = groups_,
                    .logit_rows = {}},
                   storage_);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    best = std::min(best, elapsed.count() / num_tokens);
  }
  return best;
}

}  // namespace larder
