// What sequences of a batch have in common: keys that attention on a CPU reads once for all of them.
#include "model/transformer.h"

namespace larder {

void Transformer::find_common_keys(ForwardBatch& batch) {
  const auto find = [&](int group, std::span<AttentionSequence> sequences, CommonKeyFinder& finder) {
    const KvGroup& layers = layout_.group(group);
    return attention_op_.find_common({.kv = layout_.view(layers.layers.front()),
                                      .num_heads = config_.num_heads,
                                      .window = layers.window},
                                     sequences, finder);
  };
  shared_groups_.assign(batch.groups.begin(), batch.groups.end());
  shared_sequences_.resize(shared_groups_.size());
  common_finders_.resize(shared_groups_.size() + 1);
  for (std::size_t i = 0; i < shared_groups_.size(); ++i) {
    GroupBatch& group = shared_groups_[i];
    shared_sequences_[i].assign(group.sequences.begin(), group.sequences.end());
    group.common = find(static_cast<int>(i), shared_sequences_[i], common_finders_[i]);
    group.sequences = shared_sequences_[i];
  }
  batch.groups = shared_groups_;
  batch.logit_common = find(layout_.group_of(config_.num_layers() - 1), logit_sequences_, common_finders_.back());
}

}  // namespace larder
