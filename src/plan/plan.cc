#include "plan/plan.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace larder {
namespace {

// Without options: room for eight full contexts, at least 1 GiB and at most 4 GiB, and never more
// than half of what is left, since other programs live here too.
constexpr std::int64_t kDefaultContexts = 8;
constexpr std::int64_t kDefaultMinBytes = std::int64_t{1} << 30;
constexpr std::int64_t kDefaultMaxBytes = std::int64_t{4} << 30;

std::int64_t default_kv_bytes(std::int64_t bytes_per_context, std::int64_t left_bytes) {
  const std::int64_t wanted =
      std::clamp(bytes_per_context * kDefaultContexts, kDefaultMinBytes, kDefaultMaxBytes);
  return std::min(wanted, left_bytes / 2);
}

// All but KV.
std::int64_t fixed_bytes_of(const Footprint& footprint) {
  return footprint.weights_bytes + footprint.scratch_bytes + footprint.process_bytes +
         footprint.bookkeeping_bytes;
}

std::int64_t chosen_kv_bytes(const KvLayout& layout, const Footprint& footprint,
                             const PlanOptions& options, std::int64_t available_bytes) {
  const std::int64_t fixed_bytes = fixed_bytes_of(footprint);
  if (options.kv_bytes > 0) return options.kv_bytes;
  if (options.memory_bytes > 0) return options.memory_bytes - fixed_bytes;
  const int context = options.max_model_len > 0 ? options.max_model_len : footprint.context_length;
  return default_kv_bytes(
      layout.num_blocks_for(context, footprint.max_batch_tokens) * layout.block_size_bytes(),
      available_bytes - fixed_bytes);
}

// The longest sequence that num_blocks hold, at most limit.
int longest_sequence(const KvLayout& layout, std::int64_t num_blocks, int limit, int chunk) {
  std::int64_t low = 0, high = limit;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (layout.num_blocks_for(middle, chunk) <= num_blocks)
      low = middle;
    else
      high = middle - 1;
  }
  return static_cast<int>(low);
}

}  // namespace

Plan make_plan(const KvLayout& layout, const Footprint& footprint, const PlanOptions& options,
               std::int64_t available_bytes) {
  const std::int64_t fixed_bytes = fixed_bytes_of(footprint);
  const std::int64_t kv_bytes = chosen_kv_bytes(layout, footprint, options, available_bytes);
  Plan plan;
  plan.footprint = footprint;
  plan.block_bytes = layout.block_size_bytes();
  plan.kv_bytes_per_token = layout.bytes_per_token();
  plan.num_blocks = static_cast<int>(std::clamp<std::int64_t>(
      kv_bytes / plan.block_bytes, 0, std::numeric_limits<std::int32_t>::max() / kBlockSize));
  plan.kv_bytes = plan.num_blocks * plan.block_bytes;

  if (plan.most_bytes() > available_bytes)
    throw Error(
        ErrorKind::kUnavailable,
        fmt::format("does not fit: {} are needed (weights {}, KV {}, scratch {}, process {}, "
                    "bookkeeping {}) and {} are available: take a smaller --kv-size or a smaller "
                    "model",
                    format_bytes(plan.most_bytes()), format_bytes(footprint.weights_bytes),
                    format_bytes(plan.kv_bytes), format_bytes(footprint.scratch_bytes),
                    format_bytes(footprint.process_bytes),
                    format_bytes(footprint.bookkeeping_bytes), format_bytes(available_bytes)));
  const int asked = options.max_model_len > 0 ? options.max_model_len : footprint.context_length;
  plan.max_model_len = longest_sequence(layout, plan.num_blocks, asked, footprint.max_batch_tokens);
  if (plan.max_model_len < std::min(asked, 2 * kBlockSize) ||
      (options.max_model_len > 0 && plan.max_model_len < options.max_model_len))
    throw Error(
        ErrorKind::kUnavailable,
        fmt::format(
            "{} of KV hold {} tokens at most, and --max-model-len asks for {}: give "
            "--kv-size {} or --memory {}",
            format_bytes(std::max<std::int64_t>(kv_bytes, 0)), plan.max_model_len, asked,
            format_bytes(layout.num_blocks_for(asked, footprint.max_batch_tokens) *
                         plan.block_bytes),
            format_bytes(fixed_bytes + layout.num_blocks_for(asked, footprint.max_batch_tokens) *
                                           plan.block_bytes)));
  plan.max_concurrency =
      static_cast<double>(plan.num_blocks) /
      static_cast<double>(layout.num_blocks_for(plan.max_model_len, footprint.max_batch_tokens));
  plan.kv_capacity_tokens =
      static_cast<std::int64_t>(plan.max_concurrency * static_cast<double>(plan.max_model_len));
  return plan;
}

}  // namespace larder
