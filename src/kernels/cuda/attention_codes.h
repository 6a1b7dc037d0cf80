// Attention's sums over codes as they are stored (kv_type.h): queries and softmax weights in 16
// bits, exact integers over a group of dimensions or a tile of keys, scaled in FP32, as
// cpu/attention_codes.h has them. Included by attention's kernels alone.
#pragma once

#include "kernels/cuda/attention_float.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr float kLargestWord = 32767;
constexpr std::uint32_t kSignBits = 0x80808080;  // code ^ 128 is code - 128, signed
constexpr std::uint32_t kLowerBits = 0x0F0F0F0F;
// Sums stay within 31 bits: 128 * 32767 * kKeyTile < 2^30, and groups have fewer dimensions.
static_assert(kKeyTile <= 128 && kLargeHead <= 128);

template <int kMaxDim>
struct CodeShared : Shared<kMaxDim> {
  float query_scale[2][kTileRows];
  int query_start[2][kTileRows][kMostCodeGroups];  // what takes the codes' offset off a group's sum
  // Softmax weights times the scales of the values that a warp adds.
  alignas(16) std::int16_t weights[kThreads / 32][kTileRows][kKeyTile];

  // Queries in the order of the codes, instead of q. With room for the padding.
  LARDER_MEMBER std::int16_t* words(int which, int r) {
    return reinterpret_cast<std::int16_t*>(this->q[which][r]);
  }
};

// Numbers in 16 bits: value = scale * word.
struct WordScale {
  float scale, inverse;
  LARDER_MEMBER explicit WordScale(float peak) {
    const bool tiny = !(peak > 1e-30F);
    scale = tiny ? 0.0F : peak / kLargestWord;
    inverse = tiny ? 0.0F : kLargestWord / peak;
  }
  LARDER_MEMBER int word(float value) const { return nearest_int(value * inverse); }
};

// function(r) for the tile's rows and up to three more.
template <class Function>
LARDER_DEVICE void for_rows(const Tile& tile, const Function& function) {
  LARDER_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    if (r == kTileRows / 2 && tile.num_rows <= r) break;
    function(r);
  }
}

// Where the words of kInt4's narrow part begin.
LARDER_DEVICE int narrow_words(const CodeParts& parts) { return (parts.num_wide + 7) / 8 * 8; }

// Where the word of dimension d of the key basis lies: those of a quad together.
LARDER_DEVICE int place_of_word(const Work& work, int d) {
  const CodeParts& parts = work.parts;
  if (work.args.kv.types.k == KvType::kInt8)
    return d / 16 * 16 + d % 8 / 2 * 4 + d % 2 + d % 16 / 8 * 2;
  return d < parts.num_wide ? d : narrow_words(parts) + d - parts.num_wide;
}

// A warp sums what kInt4's codes of each group are too large by, from a row's words. Codes stand for
// halves: rounded to a 32767th of the largest query value.
LARDER_DEVICE void find_starts(const Work& work, const std::int16_t* words, int* starts) {
  const CodeParts& parts = work.parts;
  const int group = thread_index() % 32;
  if (group >= parts.num_key_groups) return;
  int sum = 0;
  for (int d = parts.key_begin[group]; d < parts.key_begin[group + 1]; ++d)
    sum += words[place_of_word(work, d)];
  if (group >= parts.num_wide_groups)
    starts[group] = -15 * sum / 2;
  else
    starts[group] = parts.is_large ? -63 * sum / 2 : 128 * sum - 255 * sum / 2;
}

// A warp takes a query at a time. Scores are logarithms to base 2.
template <int kMaxDim>
LARDER_DEVICE void load_words(const Work& work, const Tile& tile, CodeShared<kMaxDim>& shared) {
  constexpr float kLog2E = 1.44269504088896341F;
  constexpr int kLaneDims = kMaxDim / 32;
  const float scale = work.args.scale * kLog2E;
  const int dim = work.parts.dim;
  const bool is_int8 = work.args.kv.types.k == KvType::kInt8;
  const int num_words = is_int8 ? (dim + kCodeTile - 1) / kCodeTile * kCodeTile
                                : work.parts.num_wide + work.parts.num_narrow;
  const int lane = thread_index() % 32;
  for (int i = thread_index() / 32; i < 2 * kTileRows; i += kThreads / 32) {
    const int r = i % kTileRows;
    const int which = i / kTileRows;
    const float* q = which == 0 ? work.args.q : work.args.q_sinks;
    if (q == nullptr) continue;
    float values[kLaneDims + 1] = {};  // the last ones are padding
    float largest = 0;
    LARDER_UNROLL
    for (int k = 0; k < kLaneDims; ++k) {
      const int d = k * 32 + lane;
      if (r >= tile.num_rows || d >= dim) continue;
      values[k] = q[tile.batch_row(r) * work.args.ldq + std::int64_t{tile.head(r)} * dim + d] * scale;
      largest = fmaxf(largest, fabsf(values[k]));
    }
    const WordScale word_scale(warp_max(largest));
    std::int16_t* words = shared.words(which, r);
    LARDER_UNROLL
    for (int k = 0; k <= kLaneDims; ++k) {
      const int d = k * 32 + lane;
      if (d < num_words)
        words[place_of_word(work, d)] = static_cast<std::int16_t>(word_scale.word(values[k]));
    }
    if (lane == 0) shared.query_scale[which][r] = word_scale.scale;
    if (is_int8) continue;
    sync_warp();
    find_starts(work, words, shared.query_start[which][r]);
  }
}

// The queries that the thread's key is multiplied with.
template <int kMaxDim>
struct KeyQueries {
  const std::int16_t* words[kTileRows];
  const int* starts[kTileRows];

  LARDER_MEMBER KeyQueries(const Work& work, const Tile& tile, int key,
                           CodeShared<kMaxDim>& shared) {
    LARDER_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      const int which = query_for(work, tile, r, key);
      words[r] = shared.words(which, r);
      starts[r] = shared.query_start[which][r];
    }
  }
};

template <int kQuads>
struct alignas(8 * kQuads) QuadWords {
  int word[2 * kQuads];
};

// Sums of a group of dimensions, and of all groups.
struct KeySums {
  int of_group[kTileRows];
  float total[kTileRows];

  // Four bytes of codes each, signed, with the words from `at` on.
  template <int kQuads, int kMaxDim>
  LARDER_MEMBER void add(const Tile& tile, const KeyQueries<kMaxDim>& queries, int at,
                         const int (&quads)[kQuads]) {
    for_rows(tile, [&](int r) {
      const auto words = *reinterpret_cast<const QuadWords<kQuads>*>(queries.words[r] + at);
      LARDER_UNROLL
      for (int i = 0; i < kQuads; ++i) {
        of_group[r] = dot2_lower(words.word[2 * i], quads[i], of_group[r]);
        of_group[r] = dot2_upper(words.word[2 * i + 1], quads[i], of_group[r]);
      }
    });
  }
  LARDER_MEMBER void end_group(float scale) {
    LARDER_UNROLL
    for (int r = 0; r < kTileRows; ++r)
      total[r] = fmaf(static_cast<float>(of_group[r]), scale, total[r]);
  }
};

// A thread's four bytes of a vector; `lane` is where its vectors begin.
LARDER_DEVICE std::uint32_t load_quad(const std::byte* lane, int offset_bytes) {
  return *reinterpret_cast<const std::uint32_t*>(lane + offset_bytes);
}

template <int kMaxDim>
LARDER_DEVICE void score_int8(const Work& work, const Tile& tile, const std::byte* head, int offset,
                              const KeyQueries<kMaxDim>& queries, KeySums& sums) {
  const auto* scales =
      reinterpret_cast<const std::uint16_t*>(head + work.parts.key_scale_offset) + offset;
  const std::byte* lane = head + offset * 4;
  const int dim = work.parts.dim;
  for (int begin = 0; begin < dim; begin += kCodeGroup, scales += kBlockSize) {
    LARDER_UNROLL
    for (int r = 0; r < kTileRows; ++r) sums.of_group[r] = 0;
    for (int d = begin; d < min_of(dim, begin + kCodeGroup); d += 16) {
      std::uint32_t codes[kCodeQuads];
      LARDER_UNROLL
      for (int i = 0; i < kCodeQuads; ++i)
        codes[i] = load_quad(lane, d * kBlockSize + i * kCodeVector) ^ kSignBits;
      sums.add<2>(tile, queries, d, {static_cast<int>(codes[0]), static_cast<int>(codes[1])});
      sums.add<2>(tile, queries, d + 8, {static_cast<int>(codes[2]), static_cast<int>(codes[3])});
    }
    sums.end_group(bf16_value(*scales));
  }
}

// The wide part's dimensions [begin, end) of kInt4.
template <int kMaxDim>
LARDER_DEVICE void score_wide(const Work& work, const Tile& tile, const std::byte* lane, int begin,
                              int end, const KeyQueries<kMaxDim>& queries, KeySums& sums) {
  if (!work.parts.is_large) {
    for (int d = begin; d < end; d += 4) {
      const std::uint32_t codes = load_quad(lane, d / 4 * kCodeVector) ^ kSignBits;
      sums.add<1>(tile, queries, d, {static_cast<int>(codes)});
    }
    return;
  }
  for (int d = begin; d < end; d += 16) {
    const int at = d / 16 * 3 * kCodeVector;
    const std::uint32_t upper = load_quad(lane, at + 2 * kCodeVector);
    LARDER_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t lower = load_quad(lane, at + i * kCodeVector);
      const std::uint32_t even = (lower & kLowerBits) | (upper >> 4 * i & 0x03030303U) << 4;
      const std::uint32_t odd =
          (lower >> 4 & kLowerBits) | (upper >> (4 * i + 2) & 0x03030303U) << 4;
      sums.add<2>(tile, queries, d + 8 * i, {static_cast<int>(even), static_cast<int>(odd)});
    }
  }
}

template <int kMaxDim>
LARDER_DEVICE void score_int4(const Work& work, const Tile& tile, const std::byte* head, int offset,
                              const KeyQueries<kMaxDim>& queries, KeySums& sums) {
  const CodeParts& parts = work.parts;
  const auto* scales =
      reinterpret_cast<const std::uint8_t*>(head + parts.key_scale_offset) + offset;
  const std::byte* lane = head + offset * 4;
  const std::byte* narrow = lane + parts.wide_bytes;
  for (int group = 0; group < parts.num_key_groups; ++group, scales += kBlockSize) {
    LARDER_UNROLL
    for (int r = 0; r < kTileRows; ++r) sums.of_group[r] = queries.starts[r][group];
    const int begin = parts.key_begin[group];
    const int end = parts.key_begin[group + 1];
    if (group < parts.num_wide_groups) score_wide(work, tile, lane, begin, end, queries, sums);
    for (int d = max_of(begin, parts.num_wide) - parts.num_wide; d < end - parts.num_wide; d += 8) {
      const std::uint32_t both = load_quad(narrow, d / 8 * kCodeVector);
      sums.add<2>(tile, queries, narrow_words(parts) + d,
                  {static_cast<int>(both & kLowerBits), static_cast<int>(both >> 4 & kLowerBits)});
    }
    sums.end_group(scale8_value(*scales));
  }
}

// The thread's key with all rows.
template <int kMaxDim>
LARDER_DEVICE void score_codes(const Work& work, const Tile& tile, int key, int end,
                               CodeShared<kMaxDim>& shared) {
  float scores[kTileRows] = {};
  const int block_begin = key / kBlockSize * kBlockSize;
  if (key < end && tile.sees(block_begin, block_begin + kBlockSize)) {
    const KeyQueries<kMaxDim> queries(work, tile, key, shared);
    const std::byte* head = keys_at(work, tile, key);
    KeySums sums = {};
    if (work.args.kv.types.k == KvType::kInt8)
      score_int8(work, tile, head, key % kBlockSize, queries, sums);
    else
      score_int4(work, tile, head, key % kBlockSize, queries, sums);
    LARDER_UNROLL
    for (int r = 0; r < kTileRows; ++r)
      scores[r] = sums.total[r] * shared.query_scale[query_for(work, tile, r, key)][r];
  }
  write_scores(tile, key, scores, shared);
}

// How values are stored: kInt8, kInt4, and kInt4 of large heads.
enum class ValueForm { kBytes, kLevels, kFiveBits };

// Of a key's value, in the group of dimensions that begins at `first`; 0 where no row sees it.
template <ValueForm kForm>
LARDER_DEVICE float value_scale(const Work& work, const Tile& tile, int key, int end, int first) {
  const int block_begin = key / kBlockSize * kBlockSize;
  if (key >= end || !tile.sees(block_begin, block_begin + kBlockSize)) return 0;
  const std::byte* scales = values_at(work, tile, key) + work.parts.value_scale_offset;
  const int offset = key % kBlockSize;
  if constexpr (kForm == ValueForm::kBytes) {
    const auto* words = reinterpret_cast<const std::uint16_t*>(scales);
    return bf16_value(words[first / kCodeGroup * kBlockSize + offset]);
  } else {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(scales);
    const int group = first / (kForm == ValueForm::kLevels ? kLevelGroup : kLargeHead);
    return scale8_value(bytes[group * kBlockSize + offset]);
  }
}

// The rows' softmax weights times the scales of the warp's dimensions, from `first` on, in 16 bits:
// to the warp's shared.weights. sums: what takes the codes' offset off.
template <ValueForm kForm, int kMaxDim>
LARDER_DEVICE void weigh_values(const Work& work, const Tile& tile, int begin, int end, int first,
                                CodeShared<kMaxDim>& shared, int (&sums)[kTileRows],
                                float (&scales)[kTileRows]) {
  constexpr int kLaneKeys = kKeyTile / 32;
  const int lane = thread_index() % 32;
  float of_key[kLaneKeys];
  LARDER_UNROLL
  for (int k = 0; k < kLaneKeys; ++k)
    of_key[k] = value_scale<kForm>(work, tile, begin + k * 32 + lane, end, first);
  for_rows(tile, [&](int r) {
    float weights[kLaneKeys];
    float largest = 0;
    LARDER_UNROLL
    for (int k = 0; k < kLaneKeys; ++k) {
      weights[k] = shared.scores[r][k * 32 + lane] * of_key[k];
      largest = fmaxf(largest, weights[k]);
    }
    const WordScale word_scale(warp_max(largest));
    int sum = 0;
    LARDER_UNROLL
    for (int k = 0; k < kLaneKeys; ++k) {
      const int word = word_scale.word(weights[k]);
      shared.weights[thread_index() / 32][r][k * 32 + lane] = static_cast<std::int16_t>(word);
      sum += word;
    }
    sums[r] = kForm == ValueForm::kFiveBits ? -31 * warp_sum(sum) / 2 : 0;
    scales[r] = kForm == ValueForm::kLevels ? word_scale.scale * kNormalLevelStep : word_scale.scale;
  });
}

// Dimension d of a block's 16 values, signed: quad i has tokens 2i, 2i + 1, 2i + 8 and 2i + 9.
template <ValueForm kForm>
LARDER_DEVICE void load_values(const std::byte* head, int d, int (&codes)[kCodeQuads]) {
  constexpr bool kHasFifth = kForm == ValueForm::kFiveBits;
  const int tile = kForm == ValueForm::kBytes ? d / 16 : d / 32 + (kHasFifth ? d / kLargeHead : 0);
  const std::byte* lane = head + d % 16 * 4;
  LARDER_UNROLL
  for (int i = 0; i < kCodeQuads; ++i) {
    std::uint32_t quad = load_quad(lane, tile * kCodeTileBytes + i * kCodeVector);
    if constexpr (kForm == ValueForm::kBytes) {
      quad ^= kSignBits;
    } else {
      quad = quad >> d % 32 / 16 * 4 & kLowerBits;
      if constexpr (kForm == ValueForm::kLevels) quad = levels_of(quad);
    }
    if constexpr (kHasFifth) {
      const int fifths = d / kLargeHead * 5 + 4;
      const std::uint32_t bits = load_quad(lane, fifths * kCodeTileBytes + i * kCodeVector);
      quad |= (bits >> d % kLargeHead / 16 & 0x01010101U) << 4;
    }
    codes[i] = static_cast<int>(quad);
  }
}

// Adds the tile's values, weighted, to the thread's dimensions; a warp has 32 at a time.
template <ValueForm kForm, int kMaxDim>
LARDER_DEVICE void add_codes(const Work& work, const Tile& tile, int begin, int end,
                             CodeShared<kMaxDim>& shared,
                             float (&sums)[kTileRows][kMaxDim / kThreads]) {
  const int warp = thread_index() / 32;
  const int dim = work.parts.dim;
  LARDER_UNROLL
  for (int j = 0; j < kMaxDim / kThreads; ++j) {
    const int first = j * kThreads + warp * 32;
    if (first >= dim) break;  // the whole warp
    const int d = j * kThreads + thread_index();
    int codes_sums[kTileRows];
    float scales[kTileRows];
    weigh_values<kForm>(work, tile, begin, end, first, shared, codes_sums, scales);
    sync_warp();
    for (int block = begin; block < min_of(begin + kKeyTile, end); block += kBlockSize) {
      if (d >= dim || !tile.sees(block, block + kBlockSize)) continue;
      int codes[kCodeQuads];
      load_values<kForm>(values_at(work, tile, block), d, codes);
      for_rows(tile, [&](int r) {
        const std::int16_t* weights = &shared.weights[warp][r][block - begin];
        const Words4 lower = *reinterpret_cast<const Words4*>(weights);
        const Words4 upper = *reinterpret_cast<const Words4*>(weights + 8);
        LARDER_UNROLL
        for (int i = 0; i < kCodeQuads; ++i) {
          codes_sums[r] = dot2_lower(lower.word[i], codes[i], codes_sums[r]);
          codes_sums[r] = dot2_upper(upper.word[i], codes[i], codes_sums[r]);
        }
      });
    }
    for_rows(tile, [&](int r) {
      sums[r][j] = fmaf(static_cast<float>(codes_sums[r]), scales[r], sums[r][j] * shared.factor[r]);
    });
    sync_warp();  // before the weights are other ones
  }
}

// For attention_kernel(): any types, which all threads ask for.
struct CodeTypes {
  static constexpr bool kHaveCodes = true;
  template <int kMaxDim>
  using SharedOf = CodeShared<kMaxDim>;

  template <int kMaxDim>
  static LARDER_MEMBER void load(const Work& work, const Tile& tile, CodeShared<kMaxDim>& shared) {
    const KvType type = work.args.kv.types.k;
    if (type == KvType::kF16 || type == KvType::kBF16) return load_queries(work, tile, shared);
    load_words(work, tile, shared);
  }
  template <int kMaxDim>
  static LARDER_MEMBER void score(const Work& work, const Tile& tile, int key, int end,
                                  CodeShared<kMaxDim>& shared) {
    switch (work.args.kv.types.k) {
      case KvType::kF16:
        return score_key<KvType::kF16>(work, tile, key, end, shared);
      case KvType::kBF16:
        return score_key<KvType::kBF16>(work, tile, key, end, shared);
      default:
        return score_codes(work, tile, key, end, shared);
    }
  }
  template <int kMaxDim>
  static LARDER_MEMBER void add(const Work& work, const Tile& tile, int begin, int end,
                                CodeShared<kMaxDim>& shared,
                                float (&sums)[kTileRows][kMaxDim / kThreads]) {
    switch (work.args.kv.types.v) {
      case KvType::kF16:
        return add_values<KvType::kF16>(work, tile, begin, end, shared, sums);
      case KvType::kBF16:
        return add_values<KvType::kBF16>(work, tile, begin, end, shared, sums);
      case KvType::kInt8:
        return add_codes<ValueForm::kBytes>(work, tile, begin, end, shared, sums);
      case KvType::kInt4:
        return work.parts.is_large
                   ? add_codes<ValueForm::kFiveBits>(work, tile, begin, end, shared, sums)
                   : add_codes<ValueForm::kLevels>(work, tile, begin, end, shared, sums);
    }
  }
};

}  // namespace
}  // namespace larder::LARDER_CUDA_NAMESPACE
