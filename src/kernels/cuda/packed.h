// Reading one output of a PackedMatrix on the device. See PackedFormat for the layout.
#pragma once

#include "kernels/cuda/platform.h"
#include "kernels/packed_shape.h"

namespace larder::LARDER_CUDA_NAMESPACE {

// A format of codes: value = scale * (code - kOffset) [+ minimum]. lane: the output within its
// panel; g counts groups of kGroup columns.
template <PackedFormat kFormat, bool kMin>
struct CodeFormat {
  static constexpr PackedShape kShape = packed_shape(kFormat, kMin);
  static constexpr int kGroup = kShape.group_cols;
  static constexpr int kQuads = kGroup / 4;
  static constexpr int kBits = kShape.code_bits;
  static constexpr bool kHasMin = kMin;
  // As the codes come from load_pair(): those of 8 bits are signed already.
  static constexpr int kOffset = kMin || kBits == 8 ? 0 : 1 << (kBits - 1);
  static constexpr int kGroupsPerChunk = kShape.chunk_cols / kGroup;
  static constexpr int kGroupBytes = kGroup * kPanelRows * kBits / 8;

  static LARDER_MEMBER const std::uint8_t* chunk(const std::byte* panel, int g) {
    return reinterpret_cast<const std::uint8_t*>(panel) +
           std::int64_t{g / kGroupsPerChunk} * kShape.chunk_bytes;
  }
  static LARDER_MEMBER const std::uint32_t* codes(const std::byte* panel, int g, int lane) {
    return reinterpret_cast<const std::uint32_t*>(chunk(panel, g) + kShape.code_offset +
                                                  g % kGroupsPerChunk * kGroupBytes) +
           lane;
  }
  // Quads 2 * pair and 2 * pair + 1 of the group whose codes() these are: four codes each, bytes.
  static LARDER_MEMBER void load_pair(const std::uint32_t* codes, int pair, std::uint32_t* quads) {
    if constexpr (kBits == 8) {
      quads[0] = codes[pair * 32] ^ 0x80808080U;
      quads[1] = codes[pair * 32 + 16] ^ 0x80808080U;
    } else {
      const std::uint32_t both = codes[pair * 16];
      quads[0] = both & 0x0F0F0F0FU;
      quads[1] = both >> 4 & 0x0F0F0F0FU;
      if constexpr (kBits > 4) {
        constexpr int kUpper = kBits - 4;
        constexpr std::uint32_t kMask = 0x01010101U * ((1U << kUpper) - 1);
        const std::uint32_t upper = codes[kGroup / 8 * 16] >> (2 * pair * kUpper);
        quads[0] |= (upper & kMask) << 4;
        quads[1] |= (upper >> kUpper & kMask) << 4;
      }
    }
  }
  static LARDER_MEMBER float scale(const std::byte* panel, int g, int lane) {
    const std::uint8_t* base = chunk(panel, g);
    const std::uint8_t* at = base + kShape.scale_offset +
                             (g % kGroupsPerChunk * kPanelRows + lane) * kShape.scale_bytes;
    if constexpr (kShape.two_level) {
      const auto* super = reinterpret_cast<const std::uint16_t*>(base + kShape.super_offset);
      return half_value(super[lane]) * static_cast<float>(static_cast<std::int8_t>(*at));
    } else {
      return half_value(*reinterpret_cast<const std::uint16_t*>(at));
    }
  }
  static LARDER_MEMBER float minimum(const std::byte* panel, int g, int lane) {
    if constexpr (!kMin) {
      return 0;
    } else {
      const std::uint8_t* base = chunk(panel, g);
      const std::uint8_t* at = base + kShape.min_offset +
                               (g % kGroupsPerChunk * kPanelRows + lane) * kShape.scale_bytes;
      if constexpr (kShape.two_level) {
        const auto* super = reinterpret_cast<const std::uint16_t*>(base + kShape.super_offset);
        // From 0, so that no zero is negative.
        return 0.0F - half_value(super[kPanelRows + lane]) * static_cast<float>(*at);
      } else {
        return half_value(*reinterpret_cast<const std::uint16_t*>(at));
      }
    }
  }
};

// A format of values.
template <PackedFormat kFormat>
struct ValueFormat {
  static constexpr PackedFormat kValue = kFormat;

  static LARDER_MEMBER float value(const std::byte* panel, int col, int lane) {
    if constexpr (kFormat == PackedFormat::kF32) {
      return reinterpret_cast<const float*>(panel)[std::int64_t{col} * kPanelRows + lane];
    } else {
      const auto* halves = reinterpret_cast<const std::uint16_t*>(panel);
      if constexpr (kFormat == PackedFormat::kF16)
        return half_value(halves[std::int64_t{col} * kPanelRows + lane]);
      else
        return bf16_value(halves[std::int64_t{col / 2} * 2 * kPanelRows + lane * 2 + col % 2]);
    }
  }
};

// Calls function.template operator()<Format>() for the format of w.
template <class Function>
void with_format(const PackedMatrix& w, const Function& function) {
  if (with_code_format<CodeFormat>(w, function)) return;
  if (w.format == PackedFormat::kF32) {
    function.template operator()<ValueFormat<PackedFormat::kF32>>();
  } else if (w.format == PackedFormat::kF16) {
    function.template operator()<ValueFormat<PackedFormat::kF16>>();
  } else {
    function.template operator()<ValueFormat<PackedFormat::kBF16>>();
  }
}

LARDER_DEVICE int byte_of(std::uint32_t word, int i) {
  return static_cast<std::int8_t>(word >> (8 * i));
}

// Value of a code, exact but for the minimum's sum.
template <class Format>
LARDER_DEVICE float code_value(int code, float scale, float minimum) {
  const float value = scale * static_cast<float>(code - Format::kOffset);
  if constexpr (Format::kHasMin) return value + minimum;
  return value;
}

// One value of a row.
template <class Format>
LARDER_DEVICE float weight_at(const std::byte* panel, int col, int lane) {
  if constexpr (requires { Format::kValue; }) {
    return Format::value(panel, col, lane);
  } else {
    const int g = col / Format::kGroup;
    const int quad = col % Format::kGroup / 4;
    std::uint32_t quads[2];
    Format::load_pair(Format::codes(panel, g, lane), quad / 2, quads);
    return code_value<Format>(byte_of(quad % 2 == 0 ? quads[0] : quads[1], col % 4),
                              Format::scale(panel, g, lane), Format::minimum(panel, g, lane));
  }
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
