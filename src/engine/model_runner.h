// A batch through the model.
#pragma once

#include <span>
#include <vector>

#include "engine/batch.h"
#include "kv/kv_storage.h"
#include "model/forward/transformer.h"

namespace larder {

// Thread: engine only.
class ModelRunner {
 public:
  // References must outlive it.
  ModelRunner(Transformer& model, const KvStorage& storage) : model_(model), storage_(storage) {}

  // Writes K and V of every token of the batch and returns its logit_rows.
  Logits forward(const Batch& batch);
  Logits forward(const BatchRows& rows, std::span<const std::int32_t> logit_rows);
  // The same of one layer, see Transformer::forward_layers; nothing before the last.
  Logits forward_layer(const Batch& batch, int layer);

  // Time of a forward pass over num_tokens of a prompt, per token, in seconds. Writes into the
  // storage's first blocks, which nobody may hold yet.
  double measure_seconds_per_token(int num_tokens, int num_groups);

  const Transformer& model() const { return model_; }

 private:
  ForwardBatch to_forward_batch(const BatchRows& rows);
  ForwardBatch to_forward_batch(const Batch& batch);

  Transformer& model_;
  const KvStorage& storage_;
  std::vector<GroupBatch> groups_;
};

}  // namespace larder
