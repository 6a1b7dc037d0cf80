#include "kernels/ggml_blocks.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/packed_shape.h"

namespace larder {
namespace {

std::uint16_t load_half(const std::uint8_t* bytes) {
  return static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8);
}

void set_scales(GgmlBlock& block, const std::uint8_t* d, const std::uint8_t* m) {
  block.d_half = load_half(d);
  block.d = half_to_float(block.d_half);
  if (m == nullptr) return;
  block.has_min = true;
  block.m_half = load_half(m);
  block.m = half_to_float(block.m_half);
}

void one_level(GgmlBlock& block, int offset) {
  block.offset = offset;
  block.scale_code[0] = 1;
  block.min_code[0] = 1;
}

// Low halves of 16 bytes are values 0..15, high halves 16..31; high_bits adds bit 4.
void unpack_nibbles(const std::uint8_t* nibbles, std::uint32_t high_bits, std::uint8_t* code) {
  for (int i = 0; i < 16; ++i) {
    code[i] = static_cast<std::uint8_t>((nibbles[i] & 15) | ((high_bits >> i) & 1) << 4);
    code[i + 16] = static_cast<std::uint8_t>(nibbles[i] >> 4 | ((high_bits >> (i + 16)) & 1) << 4);
  }
}

std::uint32_t load_u32(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} | std::uint32_t{bytes[1]} << 8 | std::uint32_t{bytes[2]} << 16 |
         std::uint32_t{bytes[3]} << 24;
}

// d and the minimum's factor of a K-quant, which takes its minimum off.
void set_k_scales(GgmlBlock& block, const std::uint8_t* d, const std::uint8_t* m) {
  set_scales(block, d, m);
  block.m = -block.m;
}

void unpack_q2_k(const std::uint8_t* bytes, GgmlBlock& block) {
  const std::uint8_t* scales = bytes;
  const std::uint8_t* q = bytes + 16;
  set_k_scales(block, bytes + 80, bytes + 82);
  for (int group = 0; group < 16; ++group) {
    block.scale_code[group] = static_cast<std::int8_t>(scales[group] & 15);
    block.min_code[group] = scales[group] >> 4;
  }
  for (int i = 0; i < 256; ++i) {
    block.code[i] = (q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
  }
}

void unpack_q3_k(const std::uint8_t* bytes, GgmlBlock& block) {
  const std::uint8_t* high = bytes;
  const std::uint8_t* q = bytes + 32;
  const std::uint8_t* scales = bytes + 96;
  set_scales(block, bytes + 108, nullptr);
  block.offset = 4;
  for (int group = 0; group < 16; ++group) {
    const int low = (scales[group % 8] >> (group / 8 * 4)) & 15;
    const int upper = (scales[8 + group % 4] >> (group / 4 * 2)) & 3;
    block.scale_code[group] = static_cast<std::int8_t>((low | upper << 4) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int low = (q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
    const int bit = (high[i % 32] >> (i / 32)) & 1;
    block.code[i] = static_cast<std::uint8_t>(low | bit << 2);
  }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes, the upper two bits of the last four apart.
void unpack_k_scales(const std::uint8_t* packed, GgmlBlock& block) {
  for (int j = 0; j < 4; ++j) {
    block.scale_code[j] = static_cast<std::int8_t>(packed[j] & 63);
    block.min_code[j] = packed[j + 4] & 63;
    block.scale_code[j + 4] = static_cast<std::int8_t>((packed[j + 8] & 15) | packed[j] >> 6 << 4);
    block.min_code[j + 4] = static_cast<std::uint8_t>(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
  }
}

// Values 64 p to 64 p + 31 are low halves, the next 32 the high halves of the same bytes. As loops
// over bytes that lie together, which become vectors: a start packs hundreds of millions.
void unpack_q4_k(const std::uint8_t* bytes, GgmlBlock& block) {
  set_k_scales(block, bytes, bytes + 2);
  unpack_k_scales(bytes + 4, block);
  const std::uint8_t* q = bytes + 16;
  for (int pair = 0; pair < 4; ++pair) {
    std::uint8_t* code = block.code + 64 * pair;
    for (int i = 0; i < 32; ++i) {
      const std::uint8_t both = q[32 * pair + i];
      code[i] = both & 15;
      code[i + 32] = both >> 4;
    }
  }
}

void unpack_q5_k(const std::uint8_t* bytes, GgmlBlock& block) {
  set_k_scales(block, bytes, bytes + 2);
  unpack_k_scales(bytes + 4, block);
  const std::uint8_t* high = bytes + 16;
  const std::uint8_t* q = bytes + 48;
  for (int pair = 0; pair < 4; ++pair) {
    std::uint8_t* code = block.code + 64 * pair;
    for (int i = 0; i < 32; ++i) {
      const std::uint8_t both = q[32 * pair + i];
      const int bits = high[i] >> (2 * pair);
      code[i] = static_cast<std::uint8_t>((both & 15) | (bits & 1) << 4);
      code[i + 32] = static_cast<std::uint8_t>(both >> 4 | (bits >> 1 & 1) << 4);
    }
  }
}

void unpack_q6_k(const std::uint8_t* bytes, GgmlBlock& block) {
  const std::uint8_t* low = bytes;
  const std::uint8_t* high = bytes + 128;
  std::memcpy(block.scale_code, bytes + 192, 16);
  set_scales(block, bytes + 208, nullptr);
  block.offset = 32;
  for (int half = 0; half < 2; ++half) {
    std::uint8_t* code = block.code + 128 * half;
    for (int i = 0; i < 32; ++i) {
      const std::uint8_t first = low[64 * half + i];
      const std::uint8_t second = low[64 * half + 32 + i];
      const int bits = high[32 * half + i];
      code[i] = static_cast<std::uint8_t>((first & 15) | (bits & 3) << 4);
      code[i + 32] = static_cast<std::uint8_t>((second & 15) | (bits >> 2 & 3) << 4);
      code[i + 64] = static_cast<std::uint8_t>(first >> 4 | (bits >> 4 & 3) << 4);
      code[i + 96] = static_cast<std::uint8_t>(second >> 4 | (bits >> 6 & 3) << 4);
    }
  }
}

// A scale, and numbers of a table.
void unpack_iq4_nl(const std::uint8_t* bytes, GgmlBlock& block) {
  one_level(block, kIq4Offset);
  block.levels = kIq4Levels;
  set_scales(block, bytes, nullptr);
  unpack_nibbles(bytes + 2, 0, block.code);
}

// Eight groups of them, whose scales have 6 bits, the upper two apart.
void unpack_iq4_xs(const std::uint8_t* bytes, GgmlBlock& block) {
  const std::uint8_t* lower = bytes + 4;
  const int upper = bytes[2] | bytes[3] << 8;
  set_scales(block, bytes, nullptr);
  block.offset = kIq4Offset;
  block.levels = kIq4Levels;
  for (int group = 0; group < 8; ++group) {
    const int low = (lower[group / 2] >> (group % 2 * 4)) & 15;
    block.scale_code[group] = static_cast<std::int8_t>((low | (upper >> (2 * group) & 3) << 4) - 32);
    unpack_nibbles(bytes + 8 + 16 * group, 0, block.code + 32 * group);
  }
}

// Open Compute Project, Microscaling Formats 1.0: a power of two (E8M0), then numbers of 4 bits (E2M1). Levels are
// twice as large, so that half the power is their scale.
void unpack_mxfp4(const std::uint8_t* bytes, GgmlBlock& block) {
  one_level(block, kE2m1Offset);
  block.levels = kE2m1Levels;
  block.exponent = bytes[0];
  block.d = bytes[0] == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, bytes[0] - 128);
  unpack_nibbles(bytes + 1, 0, block.code);
}

}  // namespace

void unpack_block(GgmlType type, const std::byte* data, GgmlBlock& block) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data);
  block.m = 0;
  block.m_half = 0;
  block.has_min = false;
  block.offset = 0;
  block.group_size = 32;
  block.levels = nullptr;
  switch (type) {
    case GgmlType::kQ4_0:
      one_level(block, 8);
      set_scales(block, bytes, nullptr);
      return unpack_nibbles(bytes + 2, 0, block.code);
    case GgmlType::kQ4_1:
      one_level(block, 0);
      set_scales(block, bytes, bytes + 2);
      return unpack_nibbles(bytes + 4, 0, block.code);
    case GgmlType::kQ5_0:
      one_level(block, 16);
      set_scales(block, bytes, nullptr);
      return unpack_nibbles(bytes + 6, load_u32(bytes + 2), block.code);
    case GgmlType::kQ5_1:
      one_level(block, 0);
      set_scales(block, bytes, bytes + 2);
      return unpack_nibbles(bytes + 8, load_u32(bytes + 4), block.code);
    case GgmlType::kQ8_0:
      one_level(block, 128);
      set_scales(block, bytes, nullptr);
      for (int i = 0; i < 32; ++i) block.code[i] = bytes[2 + i] ^ 0x80;
      return;
    case GgmlType::kQ2_K:
      block.group_size = 16;
      return unpack_q2_k(bytes, block);
    case GgmlType::kQ3_K:
      block.group_size = 16;
      return unpack_q3_k(bytes, block);
    case GgmlType::kQ4_K:
      return unpack_q4_k(bytes, block);
    case GgmlType::kQ5_K:
      return unpack_q5_k(bytes, block);
    case GgmlType::kQ6_K:
      block.group_size = 16;
      return unpack_q6_k(bytes, block);
    case GgmlType::kIQ4_NL:
      return unpack_iq4_nl(bytes, block);
    case GgmlType::kIQ4_XS:
      return unpack_iq4_xs(bytes, block);
    case GgmlType::kMXFP4:
      return unpack_mxfp4(bytes, block);
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
      break;
  }
  CHECK(false, static_cast<std::uint32_t>(type));
}

float group_scale(const GgmlBlock& block, int group) {
  return block.d * static_cast<float>(block.scale_code[group]);
}

float group_minimum(const GgmlBlock& block, int group) {
  return block.m * static_cast<float>(block.min_code[group]);
}

}  // namespace larder
