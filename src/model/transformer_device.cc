// What the forward pass does on a device alone.
#include "model/transformer.h"

namespace larder {

// Before the batch goes to the device.
void Transformer::share_keys(ForwardBatch& batch) {
  const auto share = [&](int group, std::span<AttentionSequence> sequences) {
    const KvGroup& layers = layout_.group(group);
    return larder::share_keys({.kv = layout_.view(layers.layers.front()),
                               .num_heads = config_.num_heads,
                               .window = layers.window},
                              sequences, attention_op_.partial_bytes());
  };
  shared_groups_.assign(batch.groups.begin(), batch.groups.end());
  shared_sequences_.resize(shared_groups_.size());
  for (std::size_t i = 0; i < shared_groups_.size(); ++i) {
    GroupBatch& group = shared_groups_[i];
    shared_sequences_[i].assign(group.sequences.begin(), group.sequences.end());
    group.sharing = share(static_cast<int>(i), shared_sequences_[i]);
    group.sequences = shared_sequences_[i];
  }
  batch.groups = shared_groups_;
  batch.logit_sharing = share(layout_.group_of(config_.num_layers() - 1), logit_sequences_);
}

Logits Transformer::take_from_device(int num_rows, bool wants_logits) {
  if (num_rows == 0) {
    // The caller takes the time of a step, and that it has been computed when this returns.
    device_->synchronize();
    return {};
  }
  const auto rows = static_cast<std::size_t>(num_rows);
  const std::size_t count = rows * static_cast<std::size_t>(config_.vocab_size);
  if (wants_logits)
    device_->copy_out(logits_.get(), reinterpret_cast<const std::byte*>(buffers_.logits),
                      count * sizeof(float));
  device_->copy_out(best_.get(), reinterpret_cast<const std::byte*>(buffers_.best),
                    rows * sizeof(TokenId));
  return {{reinterpret_cast<const float*>(logits_.get()), wants_logits ? count : 0},
          {},
          {reinterpret_cast<const TokenId*>(best_.get()), rows}};
}

}  // namespace larder
