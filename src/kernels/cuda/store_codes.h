// Keys and values as codes and as E4M3 (kv_type.h), and the basis of keys: the bits of cpu/store_kv.cc and
// cpu/store_int4.h, whose sums are made in the same order. Included by store_kv.cu alone.
#pragma once

#include "kernels/cuda/codes.h"
#include "kernels/cuda/hadamard.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr int kCodeThreads = 128;
constexpr int kLanes = 16;  // of a CPU's vector: as many sums go side by side
constexpr int kMostTries = 9;
constexpr float kLargestHalf = 65504;
constexpr float kLargestBf16 = 0x1p60F;  // as on a CPU

// Of a scale in BF16. Below 1e-37 it would be infinite; what has such a scale is nothing beside any other.
LARDER_DEVICE float inverse_of(std::uint16_t scale) {
  const float value = bf16_value(scale);
  return value > 1e-37F ? 1.0F / value : 0.0F;
}

// NaN becomes 0 and what is beyond `largest` becomes that.
LARDER_DEVICE float finite(float value, float largest) {
  if (!(fabsf(value) >= 0)) value = 0;
  return fminf(fmaxf(value, -largest), largest);
}

// What the threads of a block share while they store one head of a token.
struct StoreShared {
  float given[kCudaMaxHeadDim];
  float values[kCudaMaxHeadDim + kLevelGroup];  // as they are stored, zeros behind them
  float errors[kMostCodeGroups][kMostTries];
  std::uint8_t tried[kMostCodeGroups][kMostTries];  // codes of scales
  float step[kMostCodeGroups];
  std::uint8_t codes[kCudaMaxHeadDim + kLevelGroup];
};

// Where a head's bytes go: its part of a block, and the token's place in it.
struct HeadSlot {
  std::uint8_t* to;
  int offset;
};

// Each warp finds the scale.
LARDER_DEVICE void store_fp8(const HeadSlot& slot, const float* values, int dim, bool is_key) {
  float largest = 0;
  for (int d = thread_index() % 32; d < dim; d += 32)
    largest = fmaxf(largest, fabsf(finite(values[d], kLargestBf16)));
  const std::uint16_t scale = bf16_bits(warp_max(largest) / kLargestE4m3);
  std::uint8_t* scales = is_key ? slot.to + dim * kBlockSize : slot.to;
  if (thread_index() == 0) reinterpret_cast<std::uint16_t*>(scales)[slot.offset] = scale;
  const float inverse = inverse_of(scale);
  std::uint8_t* to = is_key ? slot.to : slot.to + kFp8ScalesSizeBytes;
  for (int d = thread_index(); d < dim; d += kCodeThreads) {
    const float value = finite(values[d], kLargestBf16) * inverse;
    to[is_key ? d * kBlockSize + slot.offset : slot.offset * dim + d] =
        e4m3_bits(fminf(fmaxf(value, -kLargestE4m3), kLargestE4m3));
  }
}

// A warp per group: its scale, then its codes.
LARDER_DEVICE void store_int8(const HeadSlot& slot, const float* values, int dim,
                              std::int64_t scale_offset, bool is_key) {
  auto* scales = reinterpret_cast<std::uint16_t*>(slot.to + scale_offset);
  const int lane = thread_index() % 32;
  for (int group = thread_index() / 32; group * kCodeGroup < dim; group += kCodeThreads / 32) {
    const int begin = group * kCodeGroup;
    const int end = min_of(dim, begin + kCodeGroup);
    float largest = 0;
    for (int d = begin + lane; d < end; d += 32)
      largest = fmaxf(largest, fabsf(finite(values[d], kLargestBf16)));
    const std::uint16_t scale = bf16_bits(warp_max(largest) / 127.0F);
    if (lane == 0) scales[group * kBlockSize + slot.offset] = scale;
    const float inverse = inverse_of(scale);
    for (int d = begin + lane; d < (end + kCodeTile - 1) / kCodeTile * kCodeTile; d += 32) {
      const float value = d < end ? finite(values[d], kLargestBf16) * inverse : 0.0F;
      const int code = nearest_int(fminf(fmaxf(value, -127.0F), 127.0F)) + 128;
      const int i = d % kCodeTile;
      const int at = is_key ? code_offset(i, slot.offset) : code_offset(slot.offset, i);
      slot.to[d / kCodeTile * kCodeTileBytes + at] = static_cast<std::uint8_t>(code);
    }
  }
}

// Codes in even steps, of kInt4's keys and of large heads' values.
struct EvenSteps {
  static constexpr int kTries = 6;
  float half_range;  // codes are [-half_range, half_range), plus half_range

  // The code of a scale to be tried: of the one whose steps just reach the largest value, the next
  // coarser one and four finer ones, which clip it. Half a warp calls it.
  LARDER_MEMBER int scale_code(const float* x, int size, int attempt) const {
    float largest = 0;
    for (int i = thread_index() % kLanes; i < size; i += kLanes)
      largest = fmaxf(largest, fabsf(x[i]));
    const int widest = scale8_code(warp_max<kLanes>(largest) / (half_range - 0.5F));
    return min_of(255, max_of(0, widest + 1 - attempt));
  }
  static LARDER_MEMBER float step(int scale_code) { return scale8_value(scale_code); }
  LARDER_MEMBER float place(float scaled) const {
    return floorf(fminf(fmaxf(scaled, -half_range), half_range - 1));
  }
  // In steps.
  LARDER_MEMBER float error(float value, float inverse) const {
    const float scaled = value * inverse;
    return scaled - place(scaled) - 0.5F;
  }
  LARDER_MEMBER int code(float value, float inverse) const {
    return static_cast<int>(place(value * inverse) + half_range);
  }
};

// Codes of kNormalLevels.
struct NormalLevels {
  static constexpr int kTries = kMostTries;
  int num_values;  // of the group; the zeros behind them count as errors, too

  // Around the values' deviation.
  LARDER_MEMBER int scale_code(const float* x, int size, int attempt) const {
    float squares = 0;
    for (int i = thread_index() % kLanes; i < size; i += kLanes) squares += x[i] * x[i];
    const float deviation = sqrtf(warp_sum<kLanes>(squares) / static_cast<float>(num_values));
    return scale8_code(deviation * (0.75F + 0.075F * static_cast<float>(attempt)));
  }
  static LARDER_MEMBER float step(int scale_code) {
    return scale8_value(scale_code) * kNormalLevelStep;
  }
  // The nearest level above zero.
  static LARDER_MEMBER int place(float magnitude) {
    int place = 0;
    LARDER_UNROLL
    for (int i = 0; i < 7; ++i) {
      const auto twice_middle = static_cast<int>(kTwiceMiddles >> 8 * i & 255);
      if (magnitude >= static_cast<float>(twice_middle) / 2) ++place;
    }
    return place;
  }
  LARDER_MEMBER float error(float value, float inverse) const {
    const float magnitude = fabsf(value) * inverse;
    const auto level = static_cast<int>(kUpperLevels >> 8 * place(magnitude) & 255);
    return magnitude - static_cast<float>(level);
  }
  LARDER_MEMBER int code(float value, float inverse) const {
    const int above = place(fabsf(value) * inverse);
    return value < 0 ? 7 - above : 8 + above;
  }
};

// Values [begin, begin + size) with one scale.
template <class Rule>
struct CodeGroup {
  int begin;
  int size;
  Rule rule;
};

// Of shared.values, which are written when the threads of a block call it: for every group_of(g) the
// scale with the least squared error of those tried, its code to scales[g * kBlockSize], and
// shared.codes, which may be read when it returns.
template <class Groups>
LARDER_DEVICE void choose_codes(int num_groups, const Groups& group_of, std::uint8_t* scales,
                                StoreShared& shared) {
  using Rule = decltype(group_of(0).rule);
  constexpr int kHalfWarps = kCodeThreads / kLanes;
  const int half_warp = thread_index() / kLanes;
  const int lane = thread_index() % kLanes;
  const int num_tasks = num_groups * Rule::kTries;
  // Both halves of a warp go on while one has a task: its last one again.
  for (int next = half_warp; next / 2 * 2 < num_tasks; next += kHalfWarps) {
    const int task = min_of(next, num_tasks - 1);
    const int g = task / Rule::kTries;
    const int attempt = task % Rule::kTries;
    const auto group = group_of(g);
    const float* x = shared.values + group.begin;
    const int scale_code = group.rule.scale_code(x, group.size, attempt);
    const float step = Rule::step(scale_code);
    const float inverse = 1.0F / step;
    float sum = 0;
    for (int i = lane; i < group.size; i += kLanes) {
      const float error = group.rule.error(x[i], inverse);
      sum += error * error;
    }
    sum = warp_sum<kLanes>(sum);
    if (lane != 0 || next != task) continue;
    shared.errors[g][attempt] = sum * step * step;
    shared.tried[g][attempt] = static_cast<std::uint8_t>(scale_code);
  }
  sync_block();
  if (thread_index() < num_groups) {
    const int g = thread_index();
    int best = 0;
    for (int i = 1; i < Rule::kTries; ++i)
      best = shared.errors[g][i] < shared.errors[g][best] ? i : best;
    scales[g * kBlockSize] = shared.tried[g][best];
    shared.step[g] = Rule::step(shared.tried[g][best]);
  }
  sync_block();
  for (int g = half_warp; g < num_groups; g += kHalfWarps) {
    const auto group = group_of(g);
    const float inverse = 1.0F / shared.step[g];
    for (int i = group.begin + lane; i < group.begin + group.size; i += kLanes)
      shared.codes[i] = static_cast<std::uint8_t>(group.rule.code(shared.values[i], inverse));
  }
  sync_block();
}

// From `from` to shared.values: dimensions times their balance or, of a query, divided by it. kInt8's are all
// turned; of kInt4's, place i gets dimension key_order[i], then the narrow part is turned, and the wide one of large heads.
LARDER_DEVICE void into_key_basis(const PagedKvView& kv, const CodeParts& parts, int head,
                                  bool is_query, const float* from, StoreShared& shared) {
  const int dim = parts.dim;
  const std::int64_t first = std::int64_t{head} * dim;
  float* balanced = kv.types.k == KvType::kInt8 ? shared.values : shared.given;
  for (int d = thread_index(); d < dim; d += kCodeThreads) {
    const float value = is_query ? from[d] : finite(from[d], kLargestHalf);
    const float balance = kv.key_balance != nullptr ? kv.key_balance[first + d] : 1.0F;
    balanced[d] = is_query ? value / balance : value * balance;
  }
  if (kv.types.k == KvType::kInt8) return hadamard_rows(shared.values, 1, 0, dim);
  sync_block();
  for (int i = thread_index(); i < dim; i += kCodeThreads)
    shared.values[i] = shared.given[kv.key_order != nullptr ? kv.key_order[first + i] : i];
  if (parts.is_large) hadamard_rows(shared.values, 1, 0, parts.num_wide);
  hadamard_rows(shared.values + parts.num_wide, 1, 0, dim - parts.num_wide);
}

// Of two quads in a vector: dimensions j and 4 + j of eight.
LARDER_DEVICE std::uint8_t two_codes(const std::uint8_t* codes, int j) {
  return static_cast<std::uint8_t>((codes[j] & 15) | (codes[4 + j] & 15) << 4);
}

// A thread per byte.
LARDER_DEVICE void store_key_bytes(const CodeParts& parts, const std::uint8_t* codes,
                                   const HeadSlot& slot) {
  std::uint8_t* lane = slot.to + slot.offset * 4;
  if (parts.is_large) {
    for (int i = thread_index(); i < parts.num_wide / 4 * 3; i += kCodeThreads) {
      const int j = i % 4;
      const int vector = i / 4 % 3;
      const std::uint8_t* sixteen = codes + i / 12 * 16;
      int bits = 0;
      for (int quad = 0; quad < 4; ++quad) bits |= sixteen[4 * quad + j] >> 4 << 2 * quad;
      lane[i / 4 * kCodeVector + j] = vector < 2 ? two_codes(sixteen + 8 * vector, j)
                                                 : static_cast<std::uint8_t>(bits);
    }
  } else {
    for (int i = thread_index(); i < parts.num_wide; i += kCodeThreads)
      lane[i / 4 * kCodeVector + i % 4] = codes[i];
  }
  for (int i = thread_index(); i < parts.num_narrow / 2; i += kCodeThreads)
    lane[parts.wide_bytes + i / 4 * kCodeVector + i % 4] =
        two_codes(codes + parts.num_wide + i / 4 * 8, i % 4);
}

LARDER_DEVICE void store_key_int4(const PagedKvView& kv, const CodeParts& parts, int head,
                                  const float* from, const HeadSlot& slot, StoreShared& shared) {
  into_key_basis(kv, parts, head, false, from, shared);
  if (thread_index() < 8) shared.values[parts.dim + thread_index()] = 0;
  sync_block();
  const auto group_of = [&parts](int g) {
    const float wide_range = parts.is_large ? 32 : 128;
    return CodeGroup<EvenSteps>{parts.key_begin[g], parts.key_begin[g + 1] - parts.key_begin[g],
                                {g < parts.num_wide_groups ? wide_range : 8.0F}};
  };
  choose_codes(parts.num_key_groups, group_of, slot.to + parts.key_scale_offset + slot.offset,
               shared);
  store_key_bytes(parts, shared.codes, slot);
}

// A thread per byte.
LARDER_DEVICE void store_value_bytes(const CodeParts& parts, const std::uint8_t* codes,
                                     const HeadSlot& slot) {
  for (int i = thread_index(); i < parts.padded_values / 2; i += kCodeThreads) {
    const int tile = i / 16;  // of 32 dimensions
    const int lane = i % 16;
    const std::uint8_t* from = codes + tile * 32;
    const int place = parts.is_large ? tile + tile / 4 : tile;
    slot.to[place * kCodeTileBytes + code_offset(slot.offset, lane)] =
        static_cast<std::uint8_t>((from[lane] & 15) | (from[16 + lane] & 15) << 4);
  }
  if (!parts.is_large) return;
  for (int i = thread_index(); i < parts.dim / 8; i += kCodeThreads) {
    const int unit = i / 16;  // of kLargeHead dimensions
    const int lane = i % 16;
    int bits = 0;
    for (int j = 0; j < 8; ++j) bits |= codes[unit * kLargeHead + 16 * j + lane] >> 4 << j;
    slot.to[(5 * unit + 4) * kCodeTileBytes + code_offset(slot.offset, lane)] =
        static_cast<std::uint8_t>(bits);
  }
}

LARDER_DEVICE void store_value_int4(const CodeParts& parts, const float* from,
                                    const HeadSlot& slot, StoreShared& shared) {
  const int dim = parts.dim;
  for (int d = thread_index(); d < parts.padded_values; d += kCodeThreads)
    shared.values[d] = d < dim ? finite(from[d], kLargestHalf) : 0.0F;
  hadamard_rows(shared.values, 1, 0, dim);
  std::uint8_t* scales = slot.to + parts.value_scale_offset + slot.offset;
  if (parts.is_large) {
    const auto group_of = [](int g) {
      return CodeGroup<EvenSteps>{g * kLargeHead, kLargeHead, {16}};
    };
    choose_codes(dim / kLargeHead, group_of, scales, shared);
  } else {
    const auto group_of = [dim](int g) {
      const int begin = g * kLevelGroup;
      return CodeGroup<NormalLevels>{begin, kLevelGroup, {min_of(kLevelGroup, dim - begin)}};
    };
    choose_codes(parts.padded_values / kLevelGroup, group_of, scales, shared);
  }
  store_value_bytes(parts, shared.codes, slot);
}

}  // namespace
}  // namespace larder::LARDER_CUDA_NAMESPACE
