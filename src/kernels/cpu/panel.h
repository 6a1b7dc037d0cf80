// Reading one panel of a PackedMatrix: scales, minima, codes. See PackedFormat for the layout.
#pragma once

#include "kernels/cpu/simd.h"

namespace larder::LARDER_ISA_NAMESPACE {

// The arrays of one panel.
struct Panel {
  const uint8_t* codes;
  const std::byte* scales;
  const std::byte* mins;
  const uint16_t* supers;
};

LARDER_INLINE Panel panel_of(const PackedMatrix& w, int index) {
  const std::byte* data = w.data + index * w.panel_stride_bytes;
  return {reinterpret_cast<const uint8_t*>(data), data + w.scale_offset_bytes,
          data + w.min_offset_bytes,
          reinterpret_cast<const uint16_t*>(data + w.super_offset_bytes)};
}

// One class per PackedFormat of codes and has_min:
//   kGroup     columns per scale
//   kCodeBytes per 32 columns
//   kOffset    value = scale * (code - kOffset) [+ minimum]
//   scale(panel, g), minimum(panel, g): of the g-th group of kGroup columns
template <bool kMin>
struct FormatW4 {
  static constexpr int kGroup = 32;
  static constexpr int kCodeBytes = 256;
  static constexpr bool kHasMin = kMin;
  static constexpr int kOffset = kMin ? 0 : 8;
  LARDER_INLINE V16 scale(const Panel& p, int g) {
    return load_f16(reinterpret_cast<const uint16_t*>(p.scales) + g * 16);
  }
  LARDER_INLINE V16 minimum(const Panel& p, int g) {
    return load_f16(reinterpret_cast<const uint16_t*>(p.mins) + g * 16);
  }
};

struct FormatW4K {
  static constexpr int kGroup = 32;
  static constexpr int kCodeBytes = 256;
  static constexpr bool kHasMin = true;
  static constexpr int kOffset = 0;
  LARDER_INLINE V16 scale(const Panel& p, int g) {
    const V16 codes = load_i8(reinterpret_cast<const int8_t*>(p.scales) + g * 16);
    return mul(load_f16(p.supers + g / 8 * 32), codes);
  }
  LARDER_INLINE V16 minimum(const Panel& p, int g) {
    const V16 codes = load_u8(reinterpret_cast<const uint8_t*>(p.mins) + g * 16);
    return sub(zero(), mul(load_f16(p.supers + g / 8 * 32 + 16), codes));
  }
};

struct FormatW8 {
  static constexpr int kGroup = 32;
  static constexpr int kCodeBytes = 512;
  static constexpr bool kHasMin = false;
  static constexpr int kOffset = 128;
  LARDER_INLINE V16 scale(const Panel& p, int g) {
    return load_f16(reinterpret_cast<const uint16_t*>(p.scales) + g * 16);
  }
  LARDER_INLINE V16 minimum(const Panel&, int) { return zero(); }
};

struct FormatW8Min {
  static constexpr int kGroup = 32;
  static constexpr int kCodeBytes = 512;
  static constexpr bool kHasMin = true;
  static constexpr int kOffset = 0;
  LARDER_INLINE V16 scale(const Panel& p, int g) {
    return load(reinterpret_cast<const float*>(p.scales) + g * 16);
  }
  LARDER_INLINE V16 minimum(const Panel& p, int g) {
    return load(reinterpret_cast<const float*>(p.mins) + g * 16);
  }
};

template <bool kMin>
struct FormatW8Fine {
  static constexpr int kGroup = 16;
  static constexpr int kCodeBytes = 512;
  static constexpr bool kHasMin = kMin;
  static constexpr int kOffset = kMin ? 0 : 128;
  LARDER_INLINE V16 scale(const Panel& p, int g) {
    const V16 codes = load_i8(reinterpret_cast<const int8_t*>(p.scales) + g * 16);
    return mul(load_f16(p.supers + g / 16 * (kMin ? 32 : 16)), codes);
  }
  LARDER_INLINE V16 minimum(const Panel& p, int g) {
    const V16 codes = load_u8(reinterpret_cast<const uint8_t*>(p.mins) + g * 16);
    return sub(zero(), mul(load_f16(p.supers + g / 16 * 32 + 16), codes));
  }
};

// Two quads of codes, [2q] and [2q + 1], of the group of 32 columns that starts at `codes`.
template <class Format>
LARDER_INLINE void load_quads(const uint8_t* codes, int q, Bytes64& even, Bytes64& odd) {
  if constexpr (Format::kCodeBytes == 256) {
    const Bytes64 both = load_bytes(codes + q * 64);
    even = low_nibbles(both);
    odd = high_nibbles(both);
  } else {
    even = load_bytes(codes + q * 128);
    odd = load_bytes(codes + q * 128 + 64);
  }
}

// Calls function.template operator()<Format>() for the format of w, which holds codes.
template <class Function>
LARDER_INLINE void with_code_format(const PackedMatrix& w, const Function& function) {
  switch (w.format) {
    case PackedFormat::kW4:
      return w.has_min ? function.template operator()<FormatW4<true>>()
                       : function.template operator()<FormatW4<false>>();
    case PackedFormat::kW4K:
      return function.template operator()<FormatW4K>();
    case PackedFormat::kW8:
      return function.template operator()<FormatW8>();
    case PackedFormat::kW8Min:
      return function.template operator()<FormatW8Min>();
    case PackedFormat::kW8Fine:
      return w.has_min ? function.template operator()<FormatW8Fine<true>>()
                       : function.template operator()<FormatW8Fine<false>>();
    case PackedFormat::kF32:
    case PackedFormat::kF16:
    case PackedFormat::kBF16:
      return;
  }
}

// Columns of a panel that are turned into FP32 at a time.
inline constexpr int kUnpackCols = 32;

// values[c][lane] for the columns [begin, begin + kUnpackCols) of a panel of codes; exact.
template <class Format>
LARDER_INLINE void unpack_codes(const Panel& p, int begin, float* values) {
  const uint8_t* codes = p.codes + begin / 32 * Format::kCodeBytes;
  for (int q = 0; q < 4; ++q) {
    const int group = (begin + q * 8) / Format::kGroup;
    const V16 scale = Format::scale(p, group);
    const V16 minimum = Format::minimum(p, group);
    Bytes64 quads[2];
    load_quads<Format>(codes, q, quads[0], quads[1]);
    for (int c = 0; c < 8; ++c) {
      const V16 code = byte_of_quad(quads[c / 4], c % 4);
      V16 value = mul(scale, sub(code, set1(static_cast<float>(Format::kOffset))));
      if constexpr (Format::kHasMin) value = add(value, minimum);
      store(values + (q * 8 + c) * 16, value);
    }
  }
}

// As unpack_codes() for any format; columns from num_cols on are not written.
LARDER_INLINE void unpack_columns(const PackedMatrix& w, const Panel& p, int begin, float* values) {
  const int cols = min_of(kUnpackCols, w.num_cols - begin);
  const auto* halves = reinterpret_cast<const uint16_t*>(p.codes);
  switch (w.format) {
    case PackedFormat::kF32:
      for (int c = 0; c < cols; ++c) {
        store(values + c * 16, load(reinterpret_cast<const float*>(p.codes) + (begin + c) * 16));
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
      with_code_format(w, [&]<class Format>() { unpack_codes<Format>(p, begin, values); });
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
