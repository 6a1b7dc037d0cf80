// Attention over keys in codes.
#include "kernels/cuda/attention_kernel.h"

namespace larder::LARDER_CUDA_NAMESPACE {

void attention_of_codes(const AttentionArgs& args, std::byte* scratch) {
  const Work work = work_of(args, scratch);
  args.kv.types.k == KvType::kInt8 ? launch_with_keys<CodeKeys<KvType::kInt8>>(work, args.sharing)
                                   : launch_with_keys<CodeKeys<KvType::kInt4>>(work, args.sharing);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
