#include "engine/model_runner.h"

namespace larder {

std::span<const float> ModelRunner::forward(const Batch& batch) {
  groups_.clear();
  for (const Batch::Group& group : batch.groups())
    groups_.push_back({group.slots, group.sequences});
  ForwardBatch forward_batch;
  forward_batch.tokens = batch.tokens();
  forward_batch.positions = batch.positions();
  forward_batch.groups = groups_;
  forward_batch.logit_rows = batch.logit_rows();
  return model_.forward(forward_batch, storage_);
}

}  // namespace larder
