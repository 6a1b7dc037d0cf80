#include "plan/plan.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "plan/largest.h"

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
         footprint.draft_bytes + footprint.bookkeeping_bytes;
}

std::int64_t draft_kv_bytes(const Footprint& footprint, std::int64_t num_blocks) {
  return footprint.draft_kv_bytes && num_blocks > 0 ? footprint.draft_kv_bytes(static_cast<int>(num_blocks)) : 0;
}

// For messages; "" where there is none.
std::string draft_part(const Plan& plan) {
  return plan.draft_bytes() > 0 ? fmt::format(", draft model {}", format_bytes(plan.draft_bytes())) : "";
}

KvBookkeeping beside_blocks(const Footprint& footprint, std::int64_t num_blocks) {
  if (!footprint.beside_blocks || num_blocks == 0) return {};
  return footprint.beside_blocks(static_cast<int>(num_blocks));
}

// Of that many blocks, with what the cache keeps beside them.
std::int64_t bytes_with_blocks(const KvLayout& layout, const Footprint& footprint,
                               std::int64_t num_blocks) {
  const KvBookkeeping beside = beside_blocks(footprint, num_blocks);
  return fixed_bytes_of(footprint) + num_blocks * layout.block_size_bytes() + beside.fixed_bytes +
         beside.growth_bytes + draft_kv_bytes(footprint, num_blocks);
}

std::int64_t chosen_num_blocks(const KvLayout& layout, const Footprint& footprint,
                               const PlanOptions& options, std::int64_t available_bytes) {
  constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max() / kBlockSize;
  const std::int64_t fixed_bytes = fixed_bytes_of(footprint);
  const auto blocks_of = [&](std::int64_t bytes) {
    return std::clamp<std::int64_t>(bytes / layout.block_size_bytes(), 0, kMaxBlocks);
  };
  if (options.kv_bytes > 0) return blocks_of(options.kv_bytes);
  if (options.memory_bytes > 0)
    return largest(blocks_of(options.memory_bytes - fixed_bytes), [&](std::int64_t num_blocks) {
      return bytes_with_blocks(layout, footprint, num_blocks) <= options.memory_bytes;
    });
  const int context = options.max_model_len > 0 ? options.max_model_len : footprint.context_length;
  return blocks_of(default_kv_bytes(
      layout.num_blocks_for(context, footprint.max_batch_tokens) * layout.block_size_bytes(),
      available_bytes - fixed_bytes));
}

std::string availability(const PlanOptions& options, std::int64_t available_bytes) {
  return fmt::format("{} are available{}{}", format_bytes(available_bytes), options.memory_bound.empty() ? "" : " under ",
                     options.memory_bound);
}

// limit: --memory or what is available, for the message.
[[noreturn]] void refuse_measuring(const Plan& plan, const std::string& limit) {
  throw Error(ErrorKind::kUnavailable,
              fmt::format("{}: measuring keys at a first start takes {} beside weights {} and process {}{}: give {}, or "
                          "take --kv-type f16",
                          limit, format_bytes(plan.footprint.measuring_bytes), format_bytes(plan.footprint.weights_bytes),
                          format_bytes(plan.footprint.process_bytes), draft_part(plan), option_bytes(plan.measuring_bytes())));
}

// fixed_bytes: all but KV.
[[noreturn]] void refuse_size(const Plan& plan, const PlanOptions& options, std::int64_t fixed_bytes,
                              std::int64_t available_bytes) {
  // A smaller model's blocks are smaller, too, and more of them have to be indexed.
  const bool is_by_index = fixed_bytes >= available_bytes &&
                           fixed_bytes - plan.footprint.disk_index_bytes < available_bytes;
  const char* what = is_by_index                      ? "a smaller --kv-disk-size"
                     : fixed_bytes >= available_bytes ? "a smaller model"
                     : options.kv_bytes > 0           ? "a smaller --kv-size or a smaller model"
                     : options.memory_bytes > 0       ? "a smaller --memory or a smaller model"
                                                      : "a smaller model";
  throw Error(
      ErrorKind::kUnavailable,
      fmt::format("does not fit: {} are needed (weights {}, KV {}, scratch {}, process {}, "
                  "bookkeeping {}{}) and {}: take {}{}",
                  format_bytes(plan.most_bytes()), format_bytes(plan.footprint.weights_bytes),
                  format_bytes(plan.kv_bytes), format_bytes(plan.footprint.scratch_bytes),
                  format_bytes(plan.footprint.process_bytes),
                  format_bytes(plan.footprint.bookkeeping_bytes), draft_part(plan), availability(options, available_bytes),
                  what, options.memory_bound.empty() ? "" : ", or raise that limit"));
}

// needed: tokens, by --max-model-len or, where that is not given, the fewest that are served.
[[noreturn]] void refuse_length(const KvLayout& layout, const Footprint& footprint,
                                const Plan& plan, int needed, const PlanOptions& options) {
  // The process is not of quite the same size in the next run.
  constexpr std::int64_t kMarginBytes = std::int64_t{1} << 20;
  const std::int64_t num_blocks = layout.num_blocks_for(needed, footprint.max_batch_tokens);
  const std::string kv_size = "--kv-size " + option_bytes(num_blocks * plan.block_bytes);
  const std::string memory =
      "--memory " + option_bytes(bytes_with_blocks(layout, footprint, num_blocks) + kMarginBytes);
  const std::string wanted =
      fmt::format("{} {}", options.max_model_len > 0 ? "--max-model-len asks for" : "a server needs", needed);
  if (options.memory_bytes > 0)
    throw Error(ErrorKind::kUnavailable,
                fmt::format("--memory {}: weights {}, scratch {}, process {} and bookkeeping {}{} leave room for {} tokens, "
                            "and {}: give {}, or in its place {}",
                            format_bytes(options.memory_bytes), format_bytes(plan.footprint.weights_bytes),
                            format_bytes(plan.footprint.scratch_bytes), format_bytes(plan.footprint.process_bytes),
                            format_bytes(plan.footprint.bookkeeping_bytes), draft_part(plan), plan.max_model_len, wanted,
                            memory, kv_size));
  throw Error(ErrorKind::kUnavailable,
              fmt::format("{} of KV hold {} tokens at most, and {}: give {}{}",
                          format_bytes(options.kv_bytes > 0 ? options.kv_bytes : plan.kv_bytes), plan.max_model_len,
                          wanted, kv_size, (options.kv_bytes > 0 ? ", or in its place " : " or ") + memory));
}

}  // namespace

Plan make_plan(const KvLayout& layout, const Footprint& footprint, const PlanOptions& options,
               std::int64_t available_bytes) {
  Plan plan;
  plan.footprint = footprint;
  plan.block_bytes = layout.block_size_bytes();
  plan.kv_bytes_per_token = layout.bytes_per_token();
  plan.num_blocks =
      static_cast<int>(chosen_num_blocks(layout, footprint, options, available_bytes));
  plan.kv_bytes = plan.num_blocks * plan.block_bytes;
  const KvBookkeeping beside = beside_blocks(footprint, plan.num_blocks);
  plan.footprint.process_bytes += beside.fixed_bytes;
  plan.footprint.bookkeeping_bytes += beside.growth_bytes;
  plan.footprint.beside_blocks = nullptr;
  plan.draft_kv_bytes = draft_kv_bytes(footprint, plan.num_blocks);
  plan.footprint.draft_kv_bytes = nullptr;
  if (plan.grown_bytes() > available_bytes)
    refuse_size(plan, options, fixed_bytes_of(footprint), available_bytes);
  if (plan.measuring_bytes() > available_bytes)
    refuse_measuring(plan, availability(options, available_bytes));
  if (options.memory_bytes > 0 && plan.measuring_bytes() > options.memory_bytes)
    refuse_measuring(plan, fmt::format("--memory {}", format_bytes(options.memory_bytes)));

  const int asked = options.max_model_len > 0 ? options.max_model_len : footprint.context_length;
  plan.max_model_len = static_cast<int>(largest(asked, [&](std::int64_t length) {
    return layout.num_blocks_for(length, footprint.max_batch_tokens) <= plan.num_blocks;
  }));
  const int needed = options.max_model_len > 0 ? asked : std::min(asked, 2 * kBlockSize);
  if (plan.max_model_len < needed) refuse_length(layout, footprint, plan, needed, options);
  plan.max_concurrency =
      static_cast<double>(plan.num_blocks) /
      static_cast<double>(layout.num_blocks_for(plan.max_model_len, footprint.max_batch_tokens));
  plan.kv_capacity_tokens =
      static_cast<std::int64_t>(plan.max_concurrency * static_cast<double>(plan.max_model_len));
  return plan;
}

}  // namespace larder
