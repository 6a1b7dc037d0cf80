// How keys and values are stored, and where a value lies in its block.
//
// A token's bytes depend on that token alone: a block holds, for each KV head, the values of its 16
// tokens and their scales, so blocks are copied and sent as they are.
//
// kF16, kBF16: K as [head_dim][16 tokens], V as [16 tokens][head_dim], the order in which attention
// reads them.
//
// kFp8: a byte per value in the same order, E4M3 (Micikevicius et al. 2022): a sign, 4 bits of
// exponent with a bias of 7, 3 bits of fraction; no byte is a NaN. value = scale * number, one scale
// (bfloat16) per token, [16 tokens]: behind a head's keys, before its values, where each is met when
// it is wanted.
//
// Keys of types with codes are stored in a basis of their own, into which
// KernelTable::to_key_basis brings queries.
//
// Codes lie in vectors of 64 bytes, [16 lanes][4]: K's lanes are tokens and a quad holds four
// dimensions, V's lanes are dimensions and a quad holds four tokens, so that both are sums over
// quads of the same form. Behind a head's codes lie its scales, [groups][16 tokens].
//
// kInt8: K's dimensions are scaled so that queries and keys spread alike (PagedKvView::key_balance),
// then K is turned by a Hadamard transform of the head, in blocks of powers of two (QuaRot,
// Ashkboos et al. 2024): no dimension stands out then, which would take the others' precision.
// value = scale * (code - 128), one scale (bfloat16: it has FP32's range, and codes are chosen for
// the rounded scale) per token and kCodeGroup dimensions. Vectors come in fours, for 16 dimensions
// by 16 tokens. What is summed over is at quad (i % 8) / 2, byte i % 2 + 2 * (i / 8): the even
// bytes of a quad, as 16-bit words, are items i and i + 8, and so are the odd ones.
//
// kInt4: scales are one byte each, 2^-17 to 2^14 in steps of an eighth (kScale8Bias).
// K's dimensions are scaled and put in order of their importance. The first kv_num_wide() have
// codes of 8 bits, value = scale * (code - 127.5), 4 in a quad in order. The others are turned by a
// Hadamard transform in blocks of powers of two and have codes of 4 bits, value = scale * (code -
// 7.5); a vector holds two quads, in the lower and the upper bits. The parts are cut into
// kv_num_groups() and kv_num_narrow_groups() groups of whole vectors, and the wide groups' scales
// come first.
// V is turned by a Hadamard transform of the head, and its codes of 4 bits stand for kNormalLevels
// times a scale per kLevelGroup dimensions. Vectors come in fours, for 32 dimensions by 16 tokens:
// the lower bits for the first 16 dimensions, in kInt8's order, the upper bits for the others.
// Large heads (whole kLargeHead dimensions, for which each part has a scale) have up to 7/16 of K's
// dimensions in the wide part, turned, too, and in 6 bits: vectors come in threes, for 16
// dimensions, two as the narrow part's and one with bits 2i and 2i + 1 of each byte above the codes
// of quad i. What that spares makes V's codes 5 bits, value = scale * (code - 15.5): for each
// kLargeHead dimensions four times four vectors as above, and then four with the fifth bits, bit i
// for the dimensions from 16 i on.
// (The wide part is after Atom's outlier channels, Zhao et al. 2024; the levels are Lloyd's and
// Max's.)
#pragma once

#include <cstdint>

#include "base/types.h"

namespace larder {

enum class KvType : std::uint8_t { kF16, kBF16, kInt8, kInt4, kFp8 };

struct KvTypes {
  KvType k = KvType::kF16;
  KvType v = KvType::kF16;

  bool operator==(const KvTypes&) const = default;
};

inline constexpr int kMaxCodeDim = 1024;  // the largest head_dim of types with codes
inline constexpr int kCodeGroup = 64;     // dimensions with one scale
inline constexpr int kLevelGroup = 32;    // the same, of values as kInt4
inline constexpr int kLargeHead = 128;    // see above
inline constexpr int kCodeTile = 16;      // lanes of a vector of codes
inline constexpr int kCodeVector = 64;    // bytes
inline constexpr int kCodeQuads = 4;      // vectors for 16 items to be summed over

// The best 16 levels for values of a normal distribution with variance 1, in 8 bits: level =
// kNormalLevels[code] * kNormalLevelStep.
inline constexpr std::int8_t kNormalLevels[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                                  6,    18,  31,  44,  58,  75,  96,  127};
inline constexpr float kNormalLevelStep = 2.732590F / 127;

static constexpr bool has_codes(KvType type) {
  return type == KvType::kInt8 || type == KvType::kInt4;
}
// Two bytes a value, without scales.
static constexpr bool is_half(KvType type) {
  return type == KvType::kF16 || type == KvType::kBF16;
}
static constexpr int kv_num_groups(int head_dim) {
  return (head_dim + kCodeGroup - 1) / kCodeGroup;
}
static constexpr bool kv_is_large(int head_dim) { return head_dim % kLargeHead == 0; }
// kInt4's keys: whole quads, in large heads whole threes of vectors, and room for the others in
// whole vectors of two quads.
static constexpr int kv_wide_unit(int head_dim) { return kv_is_large(head_dim) ? 16 : 4; }
static constexpr int kv_num_wide(int head_dim) {
  const int most = kv_is_large(head_dim) ? 7 * head_dim / 16 : 3 * head_dim / 8;
  return most / kv_wide_unit(head_dim) * kv_wide_unit(head_dim);
}
static constexpr int kv_num_narrow(int head_dim) {
  return (head_dim - kv_num_wide(head_dim) + 7) / 8 * 8;
}

// Small heads have few dimensions to average over: two scales for their narrow part.
static constexpr int kv_num_wide_groups(int head_dim) {
  return kv_is_large(head_dim) ? head_dim / kLargeHead : kv_num_groups(head_dim);
}
static constexpr int kv_num_narrow_groups(int head_dim) {
  return kv_num_wide_groups(head_dim) * (head_dim < kLargeHead ? 2 : 1);
}
// Dimension of the wide part where its group g begins.
static constexpr int kv_wide_begin(int head_dim, int g) {
  const int unit = kv_wide_unit(head_dim);
  return kv_num_wide(head_dim) / unit * g / kv_num_wide_groups(head_dim) * unit;
}
// Of a token.
static constexpr int kv_wide_size_bytes(int head_dim) {
  const int num_wide = kv_num_wide(head_dim);
  return kv_is_large(head_dim) ? num_wide / 4 * 3 : num_wide;
}
// kInt4's values.
static constexpr int kv_value_bits(int head_dim) { return kv_is_large(head_dim) ? 5 : 4; }
static constexpr int kv_value_group(int head_dim) {
  return kv_is_large(head_dim) ? kLargeHead : kLevelGroup;
}
static constexpr int kv_padded_values(int head_dim) { return (head_dim + 31) / 32 * 32; }

// Bytes of one head's keys in a block.
static constexpr std::int64_t kv_key_size_bytes(KvType type, int head_dim) {
  const int num_groups = kv_num_groups(head_dim);
  switch (type) {
    case KvType::kInt8:
      return std::int64_t{kBlockSize} * ((head_dim + 15) / 16 * 16 + 2 * num_groups);
    case KvType::kInt4:
      return std::int64_t{kBlockSize} *
             (kv_wide_size_bytes(head_dim) + kv_num_narrow(head_dim) / 2 +
              kv_num_wide_groups(head_dim) + kv_num_narrow_groups(head_dim));
    case KvType::kFp8:
      return std::int64_t{kBlockSize} * (head_dim + 2);
    default:
      return std::int64_t{kBlockSize} * head_dim * 2;
  }
}
// Bytes of one head's values in a block.
static constexpr std::int64_t kv_value_size_bytes(KvType type, int head_dim) {
  if (type != KvType::kInt4) return kv_key_size_bytes(type, head_dim);
  const int group = kv_value_group(head_dim);
  return std::int64_t{kBlockSize} * (kv_padded_values(head_dim) * kv_value_bits(head_dim) / 8 +
                                     (head_dim + group - 1) / group);
}

// kFp8.
inline constexpr float kLargestE4m3 = 448;
inline constexpr int kFp8ScalesSizeBytes = 2 * kBlockSize;  // of a head in a block
// A byte's bits as those of an FP16 number stand for the value divided by this: exponents have
// different biases, and subnormals are subnormals.
inline constexpr float kE4m3InHalf = 256;

// Of item i of the 16 that are summed over, in `lane` of four vectors.
static constexpr int kv_code_offset(int i, int lane) {
  return i % 8 / 2 * kCodeVector + lane * 4 + i % 2 + i / 8 * 2;
}

// The exponent and the first three fraction bits of a scale's FP32, less these bits.
inline constexpr std::int32_t kScale8Bias = (127 - 17) << 3;
inline constexpr int kScale8Shift = 20;

}  // namespace larder
