// Attention over keys of one byte that are floats.
#include "kernels/cuda/attention_kernel.h"

namespace larder::LARDER_CUDA_NAMESPACE {

void attention_of_fp8(const AttentionArgs& args, std::byte* scratch) {
  launch_with_keys<FloatKeys<KvType::kFp8>>(work_of(args, scratch), args.sharing);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
