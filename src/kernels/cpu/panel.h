// Reading one panel of a PackedMatrix: scales, minima, codes; and writing what it adds up to. See
// PackedFormat for the layout.
#pragma once

#include "kernels/cpu/group_dot.h"
#include "kernels/packed_shape.h"

namespace larder::LARDER_ISA_NAMESPACE {

LARDER_INLINE const std::byte* panel_of(const PackedMatrix& w, int index) {
  return w.data + index * w.panel_stride_bytes;
}

// The finished sums of one row of one panel.
LARDER_INLINE void write_sums(const MatmulArgs& args, int row, int panel, V16 total) {
  const int first = panel * kPanelRows;
  const int lanes = min_of(kPanelRows, args.w->num_rows - first);
  float* y = args.y + row * args.ldy + first;
  if (lanes == kPanelRows) {
    store(y, args.bias != nullptr ? add(total, load(args.bias + first)) : total);
    return;
  }
  if (args.bias != nullptr) total = add(total, load_partial(args.bias + first, lanes));
  store_partial(y, total, lanes);
}

static constexpr CodeRange code_range(PackedFormat format, bool has_min) {
  if (format == PackedFormat::kMxFp4) return CodeRange::kE2m1Levels;
  if (levels_of(format) != nullptr) return CodeRange::kEightBitsCentred;
  switch (packed_shape(format, has_min).code_bits) {
    case 4:
      return has_min ? CodeRange::kFourBits : CodeRange::kFourBitsCentred;
    case 5:
      return has_min ? CodeRange::kFiveBits : CodeRange::kFiveBitsCentred;
    case 6:
      return CodeRange::kSixBitsCentred;
    default:
      return CodeRange::kEightBitsCentred;
  }
}

// A format of codes: value = scale * (code - kOffset) [+ minimum], or their levels. g counts groups of kGroup
// columns.
template <PackedFormat kFormat, bool kMin>
struct CodeFormat {
  static constexpr PackedShape kShape = packed_shape(kFormat, kMin);
  static constexpr int kGroup = kShape.group_cols;
  static constexpr int kBits = kShape.code_bits;
  static constexpr bool kHasMin = kMin;
  static constexpr CodeRange kRange = code_range(kFormat, kMin);
  static constexpr int kOffset = code_offset(kRange);
  static constexpr int kGroupsPerChunk = kShape.chunk_cols / kGroup;
  static constexpr int kGroupBytes = kGroup * kPanelRows * kBits / 8;

  LARDER_INLINE const uint8_t* chunk(const std::byte* panel, int g) {
    return reinterpret_cast<const uint8_t*>(panel) +
           int64_t{g / kGroupsPerChunk} * kShape.chunk_bytes;
  }
  LARDER_INLINE const uint8_t* codes(const std::byte* panel, int g) {
    return chunk(panel, g) + kShape.code_offset + g % kGroupsPerChunk * kGroupBytes;
  }
  LARDER_INLINE V16 scale(const std::byte* panel, int g) {
    const uint8_t* base = chunk(panel, g);
    const uint8_t* at =
        base + kShape.scale_offset + g % kGroupsPerChunk * kPanelRows * kShape.scale_bytes;
    if constexpr (kShape.two_level) {
      return mul(load_f16(reinterpret_cast<const uint16_t*>(base + kShape.super_offset)),
                 load_i8(reinterpret_cast<const int8_t*>(at)));
    } else if constexpr (kFormat == PackedFormat::kMxFp4) {
      return load_powers(at);
    } else {
      return load_f16(reinterpret_cast<const uint16_t*>(at));
    }
  }
  LARDER_INLINE V16 minimum(const std::byte* panel, int g) {
    const uint8_t* base = chunk(panel, g);
    const uint8_t* at =
        base + kShape.min_offset + g % kGroupsPerChunk * kPanelRows * kShape.scale_bytes;
    if constexpr (!kMin) {
      return zero();
    } else if constexpr (kShape.two_level) {
      const auto* super = reinterpret_cast<const uint16_t*>(base + kShape.super_offset);
      return sub(zero(), mul(load_f16(super + kPanelRows), load_u8(at)));
    } else {
      return load_f16(reinterpret_cast<const uint16_t*>(at));
    }
  }
  // Quads 2 * kPair and 2 * kPair + 1 of the group whose codes() these are.
  template <int kPair>
  LARDER_INLINE void load_quads(const uint8_t* codes, Bytes64& even, Bytes64& odd) {
    if constexpr (kBits == 8) {
      even = load_bytes(codes + kPair * 128);
      odd = load_bytes(codes + kPair * 128 + 64);
    } else {
      const Bytes64 both = load_bytes(codes + kPair * 64);
      even = low_nibbles(both);
      odd = high_nibbles(both);
    }
    if constexpr (levels_of(kFormat) != nullptr) {
      even = look_up(levels_of(kFormat), even);
      odd = look_up(levels_of(kFormat), odd);
    }
    if constexpr (kBits == 5 || kBits == 6) {
      constexpr int kUpper = kBits - 4;
      const Bytes64 upper = load_bytes(codes + kGroup / 8 * 64);
      even = put_upper<kUpper, 2 * kPair * kUpper>(even, upper);
      odd = put_upper<kUpper, (2 * kPair + 1) * kUpper>(odd, upper);
    }
  }
};

// Calls function.template operator()<pair>() for the pairs of quads of a group, unrolled.
template <class Format, int kPair = 0, class Function>
LARDER_INLINE void for_each_pair(const Function& function) {
  if constexpr (kPair < Format::kGroup / 8) {
    function.template operator()<kPair>();
    for_each_pair<Format, kPair + 1>(function);
  }
}

// Columns of a panel that are turned into FP32 at a time.
inline constexpr int kUnpackCols = 32;

// values[c][lane] for the columns [begin, begin + kUnpackCols) of a panel of codes; exact.
template <class Format>
LARDER_INLINE void unpack_codes(const std::byte* panel, int begin, float* values) {
  for (int g = begin / Format::kGroup; g * Format::kGroup < begin + kUnpackCols; ++g) {
    const uint8_t* codes = Format::codes(panel, g);
    const V16 scale = Format::scale(panel, g);
    const V16 minimum = Format::minimum(panel, g);
    for_each_pair<Format>([&]<int kPair>() LARDER_INLINE_LAMBDA {
      Bytes64 quads[2];
      Format::template load_quads<kPair>(codes, quads[0], quads[1]);
      for (int c = 0; c < 8; ++c) {
        const V16 code = byte_of_quad(quads[c / 4], c % 4);
        V16 value = mul(scale, sub(code, set1(static_cast<float>(Format::kOffset))));
        if constexpr (Format::kHasMin) value = add(value, minimum);
        store(values, value);
        values += kPanelRows;
      }
    });
  }
}

// As unpack_codes() for any format; columns from num_cols on are not written.
LARDER_INLINE void unpack_columns(const PackedMatrix& w, const std::byte* panel, int begin,
                                  float* values) {
  const int cols = min_of(kUnpackCols, w.num_cols - begin);
  const auto* halves = reinterpret_cast<const uint16_t*>(panel);
  switch (w.format) {
    case PackedFormat::kF32:
      for (int c = 0; c < cols; ++c) {
        store(values + c * 16, load(reinterpret_cast<const float*>(panel) + (begin + c) * 16));
      }
      return;
    case PackedFormat::kF16:
      for (int c = 0; c < cols; ++c) store(values + c * 16, load_f16(halves + (begin + c) * 16));
      return;
    case PackedFormat::kBF16:
      for (int c = 0; c < cols; c += 2) {
        V16 even;
        V16 odd;
        load_bf16_pairs(halves + (begin + c) * 16, even, odd);
        store(values + c * 16, even);
        store(values + (c + 1) * 16, odd);
      }
      return;
    default:
      with_code_format<CodeFormat>(w, [&]<class Format>() { unpack_codes<Format>(panel, begin, values); });
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
