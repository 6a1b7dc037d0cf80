#include "model/forward/batch_staging.h"

#include <algorithm>

namespace larder {
namespace {

constexpr std::size_t kAlignment = 16;

int num_blocks_of(const AttentionSequence& sequence) {
  return (sequence.context_len + kBlockSize - 1) / kBlockSize - sequence.skipped_blocks;
}

std::size_t rounded_up(std::size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

template <class T>
std::size_t array_bytes(int count) {
  return rounded_up(static_cast<std::size_t>(count) * sizeof(T));
}

std::size_t size_of(const ForwardBatch& batch) {
  std::size_t size = rounded_up(batch.tokens.size_bytes()) +
                     rounded_up(batch.positions.size_bytes()) +
                     rounded_up(batch.sink_positions.size_bytes()) +
                     rounded_up(batch.logit_rows.size_bytes()) +
                     rounded_up(batch.draws.size_bytes()) +
                     rounded_up(batch.logit_sequences.size_bytes());
  for (const GroupBatch& group : batch.groups) {
    size += rounded_up(group.slots.size_bytes()) + rounded_up(group.sequences.size_bytes());
    for (const AttentionSequence& sequence : group.sequences)
      size += array_bytes<BlockId>(num_blocks_of(sequence));
  }
  return size;
}

}  // namespace

std::size_t BatchStaging::size_bytes(const StagingLimits& limits) {
  const int table_size = limits.max_context_len / kBlockSize + 1;
  const std::size_t group_bytes =
      array_bytes<std::int64_t>(limits.max_tokens) +
      array_bytes<AttentionSequence>(limits.max_sequences) +
      static_cast<std::size_t>(limits.max_sequences) * array_bytes<BlockId>(table_size);
  return array_bytes<TokenId>(limits.max_tokens) +
         2 * array_bytes<std::int32_t>(limits.max_tokens) +
         array_bytes<std::int32_t>(limits.max_logit_rows) +
         array_bytes<TokenDraw>(limits.max_draws) +
         array_bytes<AttentionSequence>(limits.max_logit_rows) +
         static_cast<std::size_t>(limits.num_groups) * group_bytes;
}

std::size_t BatchStaging::extend(std::size_t size_bytes) {
  const std::size_t offset = num_written_;
  num_written_ += rounded_up(size_bytes);
  return offset;
}

template <class T>
std::size_t BatchStaging::append(std::span<const T> values) {
  const std::size_t offset = extend(values.size_bytes());
  if (!values.empty()) std::memcpy(host_.get() + offset, values.data(), values.size_bytes());
  return offset;
}

std::size_t BatchStaging::append_table(const AttentionSequence& sequence) {
  const auto num_blocks = static_cast<std::size_t>(num_blocks_of(sequence));
  const auto num_sinks =
      std::min(static_cast<std::size_t>(sequence.num_sinks / kBlockSize), num_blocks);
  const std::size_t offset = extend(num_blocks * sizeof(BlockId));
  auto* table = reinterpret_cast<BlockId*>(host_.get() + offset);
  std::copy_n(sequence.block_table, num_sinks, table);
  std::copy_n(sequence.block_table + num_sinks + sequence.skipped_blocks, num_blocks - num_sinks,
              table + num_sinks);
  return offset;
}

template <class T>
std::span<const T> BatchStaging::staged(std::size_t offset, std::size_t count) const {
  return {reinterpret_cast<const T*>(memory_.data() + offset), count};
}

ForwardBatch BatchStaging::stage(const ForwardBatch& batch) {
  const std::size_t size = size_of(batch);
  if (size > memory_.size_bytes()) {
    memory_ = DeviceBuffer(&device_, std::max(size, 2 * memory_.size_bytes()));
    host_ = host_buffer(device_, memory_.size_bytes());
  }
  num_written_ = 0;
  groups_.clear();
  const auto stage_values = [&]<class T>(std::span<const T> values) {
    return staged<T>(append(values), values.size());
  };
  ForwardBatch on_device;
  on_device.tokens = stage_values(batch.tokens);
  on_device.positions = stage_values(batch.positions);
  on_device.sink_positions = stage_values(batch.sink_positions);
  on_device.logit_rows = stage_values(batch.logit_rows);
  on_device.draws = stage_values(batch.draws);
  logit_sequences_.assign(batch.logit_sequences.begin(), batch.logit_sequences.end());
  for (const GroupBatch& group : batch.groups) {
    const auto slots = stage_values(group.slots);
    const std::size_t sequences = append(group.sequences);
    groups_.push_back({slots, staged<AttentionSequence>(sequences, group.sequences.size()), group.sharing});
  }
  const std::size_t placed_logits = append(batch.logit_sequences);
  // Block tables come last: whatever grows, all else stays where it was a step before.
  for (std::size_t g = 0; g < batch.groups.size(); ++g) {
    const GroupBatch& group = batch.groups[g];
    // Where they lie on the host, to be given their tables.
    std::byte* sequences =
        host_.get() + (reinterpret_cast<const std::byte*>(groups_[g].sequences.data()) - memory_.data());
    std::size_t next = 0;  // the group's share the block tables, those of other groups match none
    for (std::size_t i = 0; i < group.sequences.size(); ++i) {
      AttentionSequence sequence = group.sequences[i];
      sequence.block_table = staged<BlockId>(append_table(sequence), 1).data();
      for (; next < logit_sequences_.size() &&
             batch.logit_sequences[next].block_table == group.sequences[i].block_table;
           ++next) {
        logit_sequences_[next].block_table = sequence.block_table;
        logit_sequences_[next].skipped_blocks = sequence.skipped_blocks;
      }
      std::memcpy(sequences + i * sizeof(sequence), &sequence, sizeof(sequence));
    }
  }
  std::copy(logit_sequences_.begin(), logit_sequences_.end(),
            reinterpret_cast<AttentionSequence*>(host_.get() + placed_logits));
  on_device.logit_sequences = staged<AttentionSequence>(placed_logits, logit_sequences_.size());
  on_device.logit_sharing = batch.logit_sharing;
  on_device.groups = groups_;
  device_.copy_in(memory_.data(), host_.get(), num_written_);
  return on_device;
}

}  // namespace larder
