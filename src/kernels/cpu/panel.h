// Reading one panel of a PackedMatrix: scales, minima, codes. See PackedFormat for the layout.
#pragma once

#include "kernels/cpu/group_dot.h"
#include "kernels/packed_shape.h"

namespace larder::LARDER_ISA_NAMESPACE {

LARDER_INLINE const std::byte* panel_of(const PackedMatrix& w, int index) {
  return w.data + index * w.panel_stride_bytes;
}

static constexpr CodeRange code_range(PackedFormat format, bool has_min) {
  switch (format) {
    case PackedFormat::kW4:
      return has_min ? CodeRange::kFourBits : CodeRange::kFourBitsCentred;
    case PackedFormat::kW4K:
      return CodeRange::kFourBits;
    case PackedFormat::kW8Fine:  // with minima, codes of 2 bits
      return has_min ? CodeRange::kFourBits : CodeRange::kSixBits;
    default:
      return has_min ? CodeRange::kFiveBitsPlain : CodeRange::kEightBits;
  }
}

// A format of codes: value = scale * (code - kOffset) [+ minimum]. g counts groups of kGroup
// columns.
template <PackedFormat kFormat, bool kMin, CodeRange kCodes = code_range(kFormat, kMin)>
struct CodeFormat {
  static constexpr PackedShape kShape = packed_shape(kFormat, kMin);
  static constexpr int kGroup = kShape.group_cols;
  static constexpr int kBits = kShape.code_bits;
  static constexpr bool kHasMin = kMin;
  static constexpr CodeRange kRange = kCodes;
  static constexpr int kOffset = code_offset(kRange);
  static constexpr int kGroupsPerChunk = kShape.chunk_cols / kGroup;
  static constexpr int kGroupBytes = kGroup * kPanelRows * kBits / 8;

  LARDER_INLINE const uint8_t* chunk(const std::byte* panel, int g) {
    return reinterpret_cast<const uint8_t*>(panel) +
           int64_t{g / kGroupsPerChunk} * kShape.chunk_bytes;
  }
  LARDER_INLINE const uint8_t* codes(const std::byte* panel, int g) {
    return chunk(panel, g) + g % kGroupsPerChunk * kGroupBytes;
  }
  LARDER_INLINE V16 scale(const std::byte* panel, int g) {
    const uint8_t* base = chunk(panel, g);
    const uint8_t* at =
        base + kShape.scale_offset + g % kGroupsPerChunk * kPanelRows * kShape.scale_bytes;
    if constexpr (kShape.two_level) {
      return mul(load_f16(reinterpret_cast<const uint16_t*>(base + kShape.super_offset)),
                 load_i8(reinterpret_cast<const int8_t*>(at)));
    } else if constexpr (kShape.scale_bytes == 4) {
      return load(reinterpret_cast<const float*>(at));
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
    } else if constexpr (kShape.scale_bytes == 4) {
      return load(reinterpret_cast<const float*>(at));
    } else {
      return load_f16(reinterpret_cast<const uint16_t*>(at));
    }
  }
  // Quads 2 * pair and 2 * pair + 1 of the group whose codes() these are.
  LARDER_INLINE void load_quads(const uint8_t* codes, int pair, Bytes64& even, Bytes64& odd) {
    if constexpr (kBits == 4) {
      const Bytes64 both = load_bytes(codes + pair * 64);
      even = low_nibbles(both);
      odd = high_nibbles(both);
    } else {
      even = load_bytes(codes + pair * 128);
      odd = load_bytes(codes + pair * 128 + 64);
    }
  }
};

// Calls function.template operator()<Format>() for the format of w, which holds codes.
template <class Function>
LARDER_INLINE void with_code_format(const PackedMatrix& w, const Function& function) {
  using enum PackedFormat;
  using enum CodeRange;
  switch (w.format) {
    case kW4:
      return w.has_min ? function.template operator()<CodeFormat<kW4, true>>()
                       : function.template operator()<CodeFormat<kW4, false>>();
    case kW4K:
      return function.template operator()<CodeFormat<kW4K, true>>();
    case kW8:
      return w.five_bits ? function.template operator()<CodeFormat<kW8, false, kFiveBits>>()
                         : function.template operator()<CodeFormat<kW8, false>>();
    case kW8Min:
      return function.template operator()<CodeFormat<kW8Min, true>>();
    case kW8Fine:
      return w.has_min ? function.template operator()<CodeFormat<kW8Fine, true>>()
                       : function.template operator()<CodeFormat<kW8Fine, false>>();
    case kF32:
    case kF16:
    case kBF16:
      return;
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
    for (int pair = 0; pair < Format::kGroup / 8; ++pair) {
      Bytes64 quads[2];
      Format::load_quads(codes, pair, quads[0], quads[1]);
      for (int c = 0; c < 8; ++c) {
        const V16 code = byte_of_quad(quads[c / 4], c % 4);
        V16 value = mul(scale, sub(code, set1(static_cast<float>(Format::kOffset))));
        if constexpr (Format::kHasMin) value = add(value, minimum);
        store(values, value);
        values += kPanelRows;
      }
    }
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
      with_code_format(w, [&]<class Format>() { unpack_codes<Format>(panel, begin, values); });
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
