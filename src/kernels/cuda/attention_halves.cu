// Attention over keys of 16 bits.
#include "kernels/cuda/attention_kernel.h"

namespace larder::LARDER_CUDA_NAMESPACE {

void attention_of_halves(const AttentionArgs& args, std::byte* scratch) {
  const Work work = work_of(args, scratch);
  args.kv.types.k == KvType::kF16 ? launch_with_keys<FloatKeys<KvType::kF16>>(work, args.sharing)
                                  : launch_with_keys<FloatKeys<KvType::kBF16>>(work, args.sharing);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
