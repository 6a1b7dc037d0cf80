// Upper limits of one thread, measured: what kernels are compared with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace larder {

struct MachineLimits {
  // Reads [data, data + size_bytes), 64-byte aligned, and returns something that depends on it.
  std::int64_t (*read)(const std::byte* data, std::int64_t size_bytes);
  // The same behind prefetches, as the products read.
  std::int64_t (*fetch)(const std::byte* data, std::int64_t size_bytes);
  // Multiplications of 8-bit activations by codes of 4 and of 8 bits, and additions, in registers;
  // as many as they return.
  std::int64_t (*multiply_int4)(int rounds);
  std::int64_t (*multiply_int8)(int rounds);
  // The same with FP32.
  std::int64_t (*multiply_float)(int rounds);
};

namespace isa_generic {
extern const MachineLimits kLimits;
}
namespace isa_avx2 {
extern const MachineLimits kLimits;
}
namespace isa_avx512 {
extern const MachineLimits kLimits;
}
// Of BF16, as multiply_float().
namespace isa_avx512_bf16 {
std::int64_t multiply_bf16(int rounds);
}
namespace isa_amx {
std::int64_t multiply_bf16(int rounds);
}

// Those of the instruction set that the kernels use.
inline const MachineLimits& machine_limits() {
  switch (select_kernels().isa) {
    case Isa::kGeneric:
      return isa_generic::kLimits;
    case Isa::kAvx2:
      return isa_avx2::kLimits;
    default:
      return isa_avx512::kLimits;
  }
}

// FP32's where the set multiplies no BF16.
inline std::int64_t multiply_bf16(int rounds) {
  const Isa isa = select_kernels().isa;
  if (isa == Isa::kAmx) return isa_amx::multiply_bf16(rounds);
  return multiplies_bf16(isa) ? isa_avx512_bf16::multiply_bf16(rounds) : machine_limits().multiply_float(rounds);
}

}  // namespace larder
