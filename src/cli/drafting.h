// --draft-model: a small model in memory beside the large one, which guesses for it (docs/speculation.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "engine/draft_model.h"
#include "kernels/kernels.h"
#include "kv/kv_layout.h"
#include "kv/kv_storage.h"
#include "model/files/model_files.h"
#include "model/forward/transformer.h"
#include "model/forward/weights.h"
#include "model/model_config.h"
#include "plan/plan.h"

namespace larder {

struct ModelFile;
struct RuntimeOptions;

// What of it is planned; nothing is taken yet.
struct PlannedDraft {
  std::string path;
  std::unique_ptr<const ModelFiles> files;
  ModelConfig config;
  std::unique_ptr<KvLayout> layout;  // FP16, whatever the large model's blocks are
  TransformerLimits limits;  // its max_context_len is limits_beside()'s, once the large model's is known
  std::int64_t weights_bytes = 0;
};

// Throws Error{kNotFound}, and Error{kInvalidArgument} that says what is wrong with the file, or where its vocabulary
// differs from the large model's.
std::unique_ptr<PlannedDraft> read_draft_model(const RuntimeOptions& options, const ModelFile& target);

// Its limits beside a large model that has those.
TransformerLimits limits_beside(const PlannedDraft& draft, const TransformerLimits& target_limits);

// What it takes beside a large model of these limits; draft and layouts must outlive footprint's functions.
void add_draft_footprint(const PlannedDraft& draft, const KvLayout& target, const TransformerLimits& target_limits,
                         const ThreadPool& pool, Footprint& footprint);

// In memory. Thread: as its Transformer's.
class LoadedDraft {
 public:
  // References must outlive it.
  LoadedDraft(PlannedDraft& planned, std::int64_t kv_bytes, const KernelTable& kernels, ThreadPool& pool);
  const DraftModelParts& parts() const { return parts_; }

 private:
  Weights weights_;
  KvStorage storage_;
  Transformer transformer_;
  const DraftModelParts parts_;
};

}  // namespace larder
