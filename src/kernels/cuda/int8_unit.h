// A unit of a product with 8-bit activations, by a warp: 32 columns of 32 outputs by 8 rows.
//
// Tensor cores give the sums over a group's columns, exact integers in whatever order. A lane has
// of its outputs the columns 8 member to 8 member + 7: 16 bytes of codes below 8 bits, twice as
// many of 8 bits.
#pragma once

#include "kernels/cuda/warp_tile.h"

namespace larder::LARDER_CUDA_NAMESPACE {

template <class Format>
inline constexpr int kUnitGroups = kUnitCols / Format::kGroup;
// 16 bytes each, of a unit and panel.
template <class Format>
inline constexpr int kUnitPieces = kUnitGroups<Format>* Format::kGroupBytes / 16;

// A lane's codes as they lie in memory.
template <class Format>
struct LaneWords {
  Words4 first;
  Words4 second;  // 4-bit codes have none

  // place(i): where piece i of the unit's lies.
  template <class Place>
  LARDER_MEMBER void load(const Words4* pieces, MmaLane lane, const Place& place) {
    const int pair = lane.member % Format::kPairs;
    const int at = lane.member / Format::kPairs * (Format::kGroupBytes / 16) + lane.group % 4;
    first = pieces[place(at + Format::first_row(pair) * 4)];
    if constexpr (Format::kBits != 4) second = pieces[place(at + Format::second_row(pair) * 4)];
  }

  // As operands: of outputs 2 i and 2 i + 1 the even quad, then of both the odd one.
  LARDER_MEMBER void unpack(MmaLane lane, std::uint32_t (&operands)[2][4]) const {
    LARDER_UNROLL
    for (int i = 0; i < kLaneOutputs; ++i) {
      std::uint32_t quads[2];
      const int other = Format::kBits == 4 ? 0 : second.word[i];
      Format::unpack(static_cast<std::uint32_t>(first.word[i]), static_cast<std::uint32_t>(other),
                     lane.member % Format::kPairs, quads);
      operands[i / 2][i % 2] = quads[0];
      operands[i / 2][2 + i % 2] = quads[1];
    }
  }
};

// Of the outputs whose sums a lane takes further: its four, or one of them where there is but one
// row, which then stands in all eight: each of the four lanes that have it takes an output.
template <int kRows>
inline constexpr int kTakenOutputs = kRows == 1 ? 1 : kLaneOutputs;

template <class Format, int kOutputs>
struct UnitScales {
  float scale[kUnitGroups<Format>][kOutputs];
  float minimum[kUnitGroups<Format>][kOutputs];
};

// The same columns of a row.
struct alignas(8) LaneColumns {
  std::uint32_t low;
  std::uint32_t high;
};
LARDER_DEVICE LaneColumns lane_columns(const std::int8_t* unit, MmaLane lane) {
  return reinterpret_cast<const LaneColumns*>(unit)[lane.member];
}
LARDER_DEVICE const std::int8_t* row_unit(const QuantizedRows& x, int row, int unit) {
  return x.q + std::int64_t{row} * x.num_cols + std::int64_t{unit} * kUnitCols;
}

// An integer i below 2^22 added to these bits of 1.5 * 2^23 makes those of 1.5 * 2^23 + i: a sum
// that starts there is a float without a conversion.
inline constexpr int kExactZero = 0x4B400000;
LARDER_DEVICE float exact_value(int bits) {
  return as_float(static_cast<std::uint32_t>(bits)) - 12582912.0F;
}

// What a row's unit brings beside its codes.
template <class Format>
struct alignas(kUnitGroups<Format> == 1 ? 8 : 16) RowUnit {
  float scale;
  // Per group: with minima the sum of the row's columns, else what takes the codes' offset off; as
  // exact_value() has it.
  int extra[kUnitGroups<Format>];

  LARDER_MEMBER void load(const QuantizedRows& x, int row, int unit) {
    const std::int64_t at = std::int64_t{row} * (x.num_cols / kUnitCols) + unit;
    scale = x.scale[at];
    Several<std::int32_t, 2> halves;
    load_several(halves, x.sum, 2 * at);
    LARDER_UNROLL
    for (int i = 0; i < kUnitGroups<Format>; ++i) {
      const int sum =
          kUnitGroups<Format> == 2 ? halves.value[i] : halves.value[0] + halves.value[1];
      extra[i] = kExactZero + (Format::kHasMin ? sum : -Format::kOffset * sum);
    }
  }
  LARDER_MEMBER int start(int i) const { return Format::kHasMin ? kExactZero : extra[i]; }
  LARDER_MEMBER float sum(int i) const { return exact_value(extra[i]); }
};

// sums[output][row] += a unit's products.
template <class Format, int kRows>
LARDER_DEVICE void add_unit(const std::uint32_t (&codes)[2][4],
                            const UnitScales<Format, kTakenOutputs<kRows>>& scales, LaneColumns x,
                            const RowUnit<Format> (&rows)[kRows], MmaLane lane,
                            float (&sums)[kTakenOutputs<kRows>][kRows]) {
  constexpr int kGroups = kUnitGroups<Format>;
  int dots[kGroups][2][4];
  LARDER_UNROLL
  for (int i = 0; i < kGroups; ++i) {
    // Two groups of 16 columns: the other one's lanes bring nothing.
    const std::uint32_t mask = kGroups == 1 || lane.member / 2 == i ? ~0U : 0;
    LARDER_UNROLL
    for (int half = 0; half < 2; ++half) {
      LARDER_UNROLL
      for (int j = 0; j < 4; ++j) dots[i][half][j] = rows[j % kRows].start(i);
      mma_int8(dots[i][half], codes[half], x.low & mask, x.high & mask);
    }
  }
  LARDER_UNROLL
  for (int output = 0; output < kTakenOutputs<kRows>; ++output) {
    LARDER_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float term = 0;
      LARDER_UNROLL
      for (int i = 0; i < kGroups; ++i) {
        int bits;
        if constexpr (kRows == 1) {
          const int (&half)[4] = dots[i][0], (&other)[4] = dots[i][1];
          const bool odd = lane.member % 2 == 1;
          bits = lane.member < 2 ? (odd ? half[2] : half[0]) : (odd ? other[2] : other[0]);
        } else {
          bits = dots[i][output / 2][output % 2 * 2 + r];
        }
        term = fmaf(scales.scale[i][output], exact_value(bits), term);
        if constexpr (Format::kHasMin)
          term = fmaf(scales.minimum[i][output], rows[r].sum(i), term);
      }
      sums[output][r] = fmaf(term, rows[r].scale, sums[output][r]);
    }
  }
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
