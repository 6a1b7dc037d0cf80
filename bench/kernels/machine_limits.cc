#include "machine_limits.h"

#include "kernels/cpu/group_dot.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

// Independent sums, enough to hide an instruction's latency.
constexpr int kSums = 12;

template <bool kFetch>
std::int64_t read(const std::byte* data, std::int64_t size_bytes) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(data);
  V16 largest = zero();  // cheaper than memory on every machine
  for (std::int64_t i = 0; i + 64 <= size_bytes; i += 64) {
    if constexpr (kFetch) fetch_stream(bytes + i);
    largest = max(load(reinterpret_cast<const float*>(bytes + i)), largest);
  }
  float lanes[16];
  store(lanes, largest);
  return lanes[0] > 0 ? 1 : 0;
}

// Quads before the sums may go to memory, as in the kernels; a loop would not be unrolled.
constexpr int kQuads = 16;

template <CodeRange kRange, int kLeft>
LARDER_INLINE void multiply_quads(const typename GroupDot<kRange>::Codes& w, uint8_t* bytes,
                                  I16* sum) {
  using Dot = GroupDot<kRange>;
  const auto x = Dot::quad(reinterpret_cast<const int8_t*>(opaque(bytes)));
  for (int i = 0; i < kTileRows * kTilePanels; ++i) sum[i] = Dot::dot(sum[i], w, x);
  if constexpr (kLeft > 1) multiply_quads<kRange, kLeft - 1>(w, bytes, sum);
}

// As many sums as a tile has: each needs its codes and activations in registers and the cache.
template <CodeRange kRange>
std::int64_t multiply_codes(int rounds) {
  using Dot = GroupDot<kRange>;
  alignas(64) uint8_t bytes[64];
  for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(i % 15);
  const auto w = Dot::prepare(load_bytes(bytes));
  I16 sum[kTileRows * kTilePanels];
  for (I16& s : sum) s = set1_int(0);
  for (int i = 0; i < rounds; i += kQuads) multiply_quads<kRange, kQuads>(w, bytes, sum);
  std::int64_t total = 0;
  for (const I16& s : sum) total += reduce_add_int(s);
  return int64_t{rounds} * kTileRows * kTilePanels * 128 + (total == 1 ? 1 : 0);
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

constexpr MachineLimits kLimits = {read<false>, read<true>, multiply_codes<CodeRange::kFourBits>,
                                   multiply_codes<CodeRange::kEightBitsCentred>, multiply_float};

}  // namespace larder::LARDER_ISA_NAMESPACE
