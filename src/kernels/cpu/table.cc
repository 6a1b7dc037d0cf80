#include "kernels/cpu/functions.h"
#include "kernels/cpu/tables.h"

namespace larder::LARDER_ISA_NAMESPACE {

#if defined(LARDER_ISA_GENERIC)
static constexpr Isa kIsa = Isa::kGeneric;
static constexpr const char* kName = "generic";
#elif defined(LARDER_ISA_AVX2)
static constexpr Isa kIsa = Isa::kAvx2;
static constexpr const char* kName = "avx2";
#else
static constexpr Isa kIsa = Isa::kAvx512;
static constexpr const char* kName = "avx512";
#endif

constexpr KernelTable kTable = {
    .isa = kIsa,
    .name = kName,
    .rms_norm = rms_norm,
    .quantize_rows = quantize_rows,
    .quantization_rests = quantization_rests,
    .embed = embed,
    .rotations = rotations,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .clamped_swiglu = clamped_swiglu,
    .soft_cap = soft_cap,
    .add = add_values,
    .add_bias = add_bias,
    .gather_rows = gather_rows,
    .store_kv = store_kv,
    .to_key_basis = to_key_basis,
    .matmul = matmul,
    .matmul_stack_bytes = matmul_stack_bytes,
    .attention = attention,
    .merge_attention = merge_attention,
    .attention_common = attention_common,
    .attention_stack_bytes = attention_stack_bytes,
    .run_maxima = run_maxima,
    .run_weights = run_weights,
    .weights = weights,
};

}  // namespace larder::LARDER_ISA_NAMESPACE
