// Attention where keys or values are codes.
#include "kernels/cuda/attention_codes.h"

#include "kernels/cuda/attention_kernel.h"

namespace larder::LARDER_CUDA_NAMESPACE {

void attention_codes(const AttentionArgs& args, std::byte* scratch) {
  launch_attention<CodeTypes>(args, scratch);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
