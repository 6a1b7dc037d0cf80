// Upper limits of one thread, measured: what kernels are compared with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace larder {

struct MachineLimits {
  // Reads [data, data + size_bytes), 64-byte aligned, and returns something that depends on it.
  std::int64_t (*read)(const std::byte* data, std::int64_t size_bytes);
  // 8-bit multiplications and additions in registers, as many as it returns.
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

}  // namespace larder
