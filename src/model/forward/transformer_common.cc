// What attention shares out, and what its sequences have in common.
#include <algorithm>

#include "model/forward/transformer.h"

namespace larder {

void Transformer::reserve_sharing() {
  const int num_sequences = std::min(limits_.max_sequences, limits_.max_batch_tokens);
  shared_groups_.reserve(static_cast<std::size_t>(layout_.num_groups()));
  shared_sequences_.resize(static_cast<std::size_t>(layout_.num_groups()));
  for (auto& sequences : shared_sequences_) sequences.reserve(static_cast<std::size_t>(num_sequences));
  common_finders_.resize(shared_sequences_.size() + 1);
  for (CommonKeyFinder& finder : common_finders_) finder.reserve(num_sequences);
  logit_sequences_.reserve(static_cast<std::size_t>(limits_.max_logit_rows));
}

// Before a batch goes to a device, which of its sequences share out their keys over the device's blocks; on a CPU too,
// which keys are read once for several of them.
void Transformer::share_keys(ForwardBatch& batch) {
  const auto share = [&](int group, std::span<AttentionSequence> sequences, CommonKeyFinder& finder,
                         KeySharing& sharing, std::span<const CommonKeys>& common) {
    const KvGroup& layers = layout_.group(group);
    const AttentionArgs args{.kv = layout_.view(layers.layers.front()),
                             .num_heads = config_.num_heads,
                             .window = layers.window};
    if (device_ != nullptr)
      sharing = larder::share_keys(args, sequences, finder.find(sequences, device_common_rule(args)),
                                   attention_op_.partial_bytes());
    else
      common = attention_op_.find_common(args, sequences, finder);
  };
  shared_groups_.assign(batch.groups.begin(), batch.groups.end());
  for (std::size_t i = 0; i < shared_groups_.size(); ++i) {
    GroupBatch& group = shared_groups_[i];
    shared_sequences_[i].assign(group.sequences.begin(), group.sequences.end());
    share(static_cast<int>(i), shared_sequences_[i], common_finders_[i], group.sharing, group.common);
    group.sequences = shared_sequences_[i];
  }
  batch.groups = shared_groups_;
  const int last_group = layout_.group_of(config_.num_layers() - 1);
  const GroupBatch& last = shared_groups_[static_cast<std::size_t>(last_group)];
  // Where every token is sampled from, as while all decode, it is the same once more.
  if (batch.logit_rows.size() == batch.tokens.size()) {
    std::ranges::copy(last.sequences, logit_sequences_.begin());
    batch.logit_sharing = last.sharing;
    batch.logit_common = last.common;
    return;
  }
  share(last_group, logit_sequences_, common_finders_.back(), batch.logit_sharing, batch.logit_common);
}

}  // namespace larder
