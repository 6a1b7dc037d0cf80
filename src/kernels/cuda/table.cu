#include "kernels/cuda/functions.h"

namespace larder::LARDER_CUDA_NAMESPACE {

const KernelTable kTable = {
    .isa = Isa::kCuda,
    .name = "cuda",
    .rms_norm = rms_norm,
    .quantize_rows = quantize_rows,
    .quantization_rests = quantization_rests,
    .embed = embed,
    .rotations = rotations,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .soft_cap = soft_cap,
    .add = add_values,
    .add_bias = add_bias,
    .gather_rows = gather_rows,
    .store_kv = store_kv,
    .to_key_basis = to_key_basis,
    .matmul = matmul,
    .attention = nullptr,
    .merge_attention = nullptr,
    .attention_batch = attention_batch,
    .matmul_group = matmul_group,
    .first_of_best = first_of_best,
    .draw_tokens = draw_tokens,
};

#if defined(__CUDACC__)
namespace {
LARDER_KERNEL any_kernel() {}
}  // namespace

int loading_error() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, any_kernel);
}
#endif

}  // namespace larder::LARDER_CUDA_NAMESPACE
