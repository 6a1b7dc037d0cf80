#include "machine_limits.h"

#include "kernels/cpu/simd.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

// Independent sums, enough to hide an instruction's latency.
constexpr int kSums = 12;

std::int64_t read(const std::byte* data, std::int64_t size_bytes) {
  I16 sum = set1_int(0);
  const Bytes64 ones = broadcast4(reinterpret_cast<const int8_t*>("\1\1\1\1"));
  for (std::int64_t i = 0; i + 64 <= size_bytes; i += 64) {
    sum = dot_u8(sum, load_bytes(reinterpret_cast<const uint8_t*>(data) + i), ones);
  }
  return reduce_add_int(sum);
}

std::int64_t multiply_int8(int rounds) {
  alignas(64) uint8_t bytes[64];
  for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(i % 15);
  const Bytes64 w = load_bytes(bytes);
  const Bytes64 a = broadcast4(reinterpret_cast<const int8_t*>(bytes));
  I16 sum[kSums];
  for (I16& s : sum) s = set1_int(0);
  for (int i = 0; i < rounds; ++i) {
    for (I16& s : sum) s = dot_u8(s, w, a);
  }
  std::int64_t total = 0;
  for (const I16& s : sum) total += reduce_add_int(s);
  return int64_t{rounds} * kSums * 128 + (total == 1 ? 1 : 0);
}

std::int64_t multiply_float(int rounds) {
  const V16 w = set1(0.5F);
  const V16 a = set1(static_cast<float>(rounds & 1));
  V16 sum[kSums];
  for (V16& s : sum) s = zero();
  for (int i = 0; i < rounds; ++i) {
    for (V16& s : sum) s = fma(s, w, a);
  }
  float total = 0;
  for (const V16& s : sum) total += reduce_add(s);
  return int64_t{rounds} * kSums * 32 + (total == -1.0F ? 1 : 0);
}

}  // namespace

constexpr MachineLimits kLimits = {read, multiply_int8, multiply_float};

}  // namespace larder::LARDER_ISA_NAMESPACE
