#include "cli/drafting.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cli/pull.h"
#include "cli/runtime.h"
#include "engine/sampler.h"
#include "kv/cache/kv_cache.h"
#include "model/forward/kernel_needs.h"
#include "model/vocabulary.h"
#include "tokenizer/same_vocabulary.h"

namespace larder {
namespace {

constexpr double kShareOfRequests = 0.25;

std::int64_t blocks_of_request(const KvLayout& layout, const TransformerLimits& limits) {
  return layout.num_blocks_for(limits.max_context_len, limits.max_batch_tokens);
}

// Blocks of a draft's KV, for a quarter of the requests that the large model's num_blocks hold, and one at least: guesses
// pay where few decode.
int num_draft_blocks(std::int64_t num_of_one, std::int64_t num_of_target, int num_blocks) {
  const double num_requests = static_cast<double>(num_blocks) / static_cast<double>(num_of_target);
  const double num = static_cast<double>(num_of_one) * std::max(1.0, kShareOfRequests * num_requests);
  return static_cast<int>(std::min(std::ceil(num), static_cast<double>(std::max<std::int64_t>(num_blocks, num_of_one))));
}

}  // namespace

std::unique_ptr<PlannedDraft> read_draft_model(const RuntimeOptions& options, const ModelFile& target) {
  auto draft = std::make_unique<PlannedDraft>();
  try {
    draft->path = find_model(options.draft_model);
    draft->files = std::make_unique<const ModelFiles>(draft->path);
    const GgufFile& gguf = draft->files->gguf();
    draft->config = read_model_config(gguf, options.max_model_len);
    draft->weights_bytes = static_cast<std::int64_t>(weights_size_bytes(draft->config, gguf));
    draft->layout = std::make_unique<KvLayout>(kv_layer_shapes(draft->config), KvTypes{});
    const std::string difference = vocabulary_difference(*target.tokenizer, Tokenizer(read_vocabulary(gguf)));
    if (!difference.empty())
      throw_invalid("another vocabulary than that of {}: {}; take a model of the same family", target.path, difference);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("--draft-model {}: {}", options.draft_model, error.what()));
  }
  draft->files->drop_pages();
  ::malloc_trim(0);  // of its vocabulary: a plan counts what is resident
  draft->limits.max_batch_tokens = draft->limits.max_chunk_tokens = DraftModel::kMaxBatchTokens;
  draft->limits.max_logit_rows = draft->limits.max_sequences = DraftModel::kMaxLogitRows;
  draft->limits.activations = activations_of(options);
  draft->limits.packs_rows =
      takes_packed_rows(select_kernels(), draft->config, draft->files->gguf(), draft->limits);
  return draft;
}

TransformerLimits limits_beside(const PlannedDraft& draft, const TransformerLimits& target_limits) {
  TransformerLimits limits = draft.limits;
  limits.max_context_len = std::min(draft.config.context_len, target_limits.max_context_len);
  return limits;
}

void add_draft_footprint(const PlannedDraft& draft, const KvLayout& target, const TransformerLimits& target_limits,
                         const ThreadPool& pool, Footprint& footprint) {
  const TransformerLimits limits = limits_beside(draft, target_limits);
  footprint.draft_bytes =
      draft.weights_bytes + static_cast<std::int64_t>(transformer_scratch_size_bytes(draft.config, limits, pool));
  const auto blocks_of = [num_of_one = blocks_of_request(*draft.layout, limits),
                          num_of_target = blocks_of_request(target, target_limits)](int num_blocks) {
    return num_draft_blocks(num_of_one, num_of_target, num_blocks);
  };
  footprint.draft_kv_bytes = [blocks_of, &draft](int num_blocks) {
    return blocks_of(num_blocks) * draft.layout->block_size_bytes();
  };
  footprint.beside_blocks = [blocks_of, &draft, own = footprint.beside_blocks](int num_blocks) {
    KvBookkeeping sum = own(num_blocks);
    const KvBookkeeping of_draft = KvCache::bookkeeping(*draft.layout, DraftModel::cache_config(blocks_of(num_blocks)), 0);
    sum.fixed_bytes += of_draft.fixed_bytes;
    sum.growth_bytes += of_draft.growth_bytes;
    return sum;
  };
}

LoadedDraft::LoadedDraft(PlannedDraft& planned, std::int64_t kv_bytes, const KernelTable& kernels, ThreadPool& pool)
    : weights_(planned.config, planned.files->gguf(), pool, drop_as_packed(*planned.files)),
      storage_(*planned.layout, static_cast<int>(kv_bytes / planned.layout->block_size_bytes())),
      transformer_(planned.config, weights_, *planned.layout, kernels, pool, planned.limits),
      parts_{transformer_, storage_, *planned.layout} {
  planned.files.reset();
}

}  // namespace larder
