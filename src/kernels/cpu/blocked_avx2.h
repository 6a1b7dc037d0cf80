// Products of many rows on AVX2. A piece of a panel is unpacked once, into the first-level cache,
// and four rows at a time go by it; what a group of columns needs of its rows is worked out once
// for all panels. The integers are exact and the FP32 sums take int8_rows.h's order, so the bits
// are those of a row alone.
//
// Codes that are centred by an offset are multiplied as they are, below 64 and so in 16 bits, which
// wrap: the offset's part is added at the end, and what they come to fits again. Codes of 8 bits
// are multiplied as words, which takes as many instructions as their signs would.
#pragma once

#include "kernels/cpu/int8_rows.h"

namespace larder::LARDER_ISA_NAMESPACE {

inline constexpr int kBlockedRows = 4;    // of a tile
inline constexpr int kBlockedCols = 256;  // of a piece of a panel
inline constexpr int kMaxBlockRows = 128;
// Fewer rows do not pay for unpacking, and a tile that lacks one is cheaper than three rows apart.
template <class Format>
inline constexpr int kMinBlockedRows = Format::kRange == CodeRange::kEightBitsCentred ? 16 : 8;
inline constexpr int kMinLastRows = kBlockedRows - 1;
// Of what a block of rows brings, at most; that is read front to back, so that it need not fit in
// the second-level cache.
inline constexpr int kBlockBytes = 640 * 1024;

// How a format's codes are multiplied.
enum class BlockedCodes {
  kPlain,     // 0 to 15, no offset
  kOffset,    // 0 to 15, less 8
  kWrapped,   // 0 to 63, less 32, 0 to 31, less 16, or 0 to 24, less 12: the sum of a group fits in 16 bits
  kRestored,  // 0 to 31, no offset: as if less 16, which is put back afterwards
  kWords,     // 0 to 255, less 128: as 16-bit words
};
static constexpr BlockedCodes blocked_codes(CodeRange range) {
  switch (range) {
    case CodeRange::kFourBits:
      return BlockedCodes::kPlain;
    case CodeRange::kFourBitsCentred:
      return BlockedCodes::kOffset;
    case CodeRange::kFiveBitsCentred:
    case CodeRange::kSixBitsCentred:
    case CodeRange::kE2m1Levels:
      return BlockedCodes::kWrapped;
    case CodeRange::kFiveBits:
      return BlockedCodes::kRestored;
    default:
      return BlockedCodes::kWords;
  }
}

template <class Format>
inline constexpr bool kWords = blocked_codes(Format::kRange) == BlockedCodes::kWords;

// Of kWords the columns 0 and 2 of all quads, then 1 and 3.
template <class Format>
struct RowCodes {
  static constexpr int kDwords = Format::kGroup / (kWords<Format> ? 2 : 4);
  int32_t dword[kDwords];
};

// A value for each of four rows, of formats that need it.
template <class T, bool kNeeded>
struct PerRow {
  T of[kBlockedRows];
};
template <class T>
struct PerRow<T, false> {};

// What four rows bring to a group of columns.
template <class Format>
struct RowGroup {
  static constexpr BlockedCodes kCodes = blocked_codes(Format::kRange);
  static constexpr bool kStarts = kCodes != BlockedCodes::kPlain && kCodes != BlockedCodes::kWords;
  RowCodes<Format> q[kBlockedRows];
  PerRow<float, true> scale;
  // kOffset: -8 * sum of q; kWrapped and kRestored: two words, see start_words().
  [[no_unique_address]] PerRow<int32_t, kStarts> start;
  [[no_unique_address]] PerRow<float, Format::kHasMin> minimum;  // scale * sum of q
};

// A piece of one panel. Of kWords, each group's words are in the order of RowCodes.
template <class Format>
struct Piece {
  static constexpr int kGroups = kBlockedCols / Format::kGroup;
  Bytes64 codes[kGroups][RowCodes<Format>::kDwords];
  V16 scale[kGroups];
  V16 minimum[Format::kHasMin ? kGroups : 1];
};

// Rows in the order in which they are read: [piece][tile][group of the piece].
template <class Format>
struct RowBlock {
  static constexpr int kGroups = kBlockBytes / sizeof(RowGroup<Format>);
  alignas(64) RowGroup<Format> groups[kGroups];
  V16 totals[kMaxBlockRows];
};

// Of both, on the stack.
template <class Format>
inline constexpr int64_t kBlockedStackBytes = sizeof(RowBlock<Format>) + sizeof(Piece<Format>);

// What a sum in 16 bits takes off the codes as they are multiplied.
static constexpr int wrapped_offset(CodeRange range) {
  return range == CodeRange::kFiveBits ? 16 : code_offset(range);
}

// The codes of quad i of a group as they are multiplied.
template <class Format>
LARDER_INLINE void put_quad(Bytes64 codes, int i, Bytes64* to) {
  if constexpr (kWords<Format>) {
    const __m256i offset = _mm256_set1_epi16(Format::kOffset);
    const Bytes64 even = word_bits<0, 8>(codes);
    const Bytes64 odd = word_bits<8, 8>(codes);
    to[i] = {_mm256_sub_epi16(even.a, offset), _mm256_sub_epi16(even.b, offset)};
    to[i + Format::kGroup / 4] = {_mm256_sub_epi16(odd.a, offset), _mm256_sub_epi16(odd.b, offset)};
  } else {
    to[i] = codes;
  }
}

template <class Format>
LARDER_INLINE void unpack_piece(const std::byte* panel, int first_group, int groups,
                                Piece<Format>& piece) {
  for (int i = 0; i < groups; ++i) {
    const int g = first_group + i;
    const uint8_t* codes = Format::codes(panel, g);
    for_each_pair<Format>([&]<int kPair>() LARDER_INLINE_LAMBDA {
      Bytes64 quads[2];
      Format::template load_quads<kPair>(codes, quads[0], quads[1]);
      put_quad<Format>(quads[0], 2 * kPair, piece.codes[i]);
      put_quad<Format>(quads[1], 2 * kPair + 1, piece.codes[i]);
    });
    piece.scale[i] = Format::scale(panel, g);
    if constexpr (Format::kHasMin) piece.minimum[i] = Format::minimum(panel, g);
  }
}

// Of each quad of a group its first two q and its last two are summed as words, as the products
// are, and each sum is taken -offset times.
template <int kGroup>
LARDER_INLINE int32_t start_words(const int8_t* q, int offset) {
  const __m128i ones = _mm_set1_epi8(1);
  __m128i sums = _mm_maddubs_epi16(ones, _mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  if constexpr (kGroup == 32) {
    const __m128i upper = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + 16));
    sums = _mm_add_epi16(sums, _mm_maddubs_epi16(ones, upper));
  }
  sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0x4E));
  sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0xB1));
  return _mm_cvtsi128_si32(_mm_mullo_epi16(sums, _mm_set1_epi16(static_cast<int16_t>(-offset))));
}

template <class Format>
LARDER_INLINE void put_row(const int8_t* q, RowCodes<Format>& to) {
  if constexpr (kWords<Format>) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
    auto* words = reinterpret_cast<__m256i*>(to.dword);
    _mm256_storeu_si256(words, _mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8));
    _mm256_storeu_si256(words + 1, _mm256_srai_epi16(all, 8));
  } else {
    memcpy(to.dword, q, Format::kGroup);
  }
}

// rows: how many there are; the last one stands in for those that a tile lacks.
template <class Format>
LARDER_INLINE void fill_group(const Activations& x, int g, int rows, RowGroup<Format>& group) {
  constexpr BlockedCodes kCodes = blocked_codes(Format::kRange);
  for (int i = 0; i < kBlockedRows; ++i) {
    const int r = min_of(i, rows - 1);
    const int8_t* q = x.q + int64_t{r} * x.num_cols + int64_t{g} * Format::kGroup;
    put_row<Format>(q, group.q[i]);
    prefetch(q + int64_t{kBlockedRows} * x.num_cols);
    const float scale = q_scale<Format::kGroup>(x, r, g);
    const int32_t sum = q_sum<Format::kGroup>(x, r, g);
    group.scale.of[i] = scale;
    if constexpr (kCodes == BlockedCodes::kWrapped || kCodes == BlockedCodes::kRestored) {
      group.start.of[i] = start_words<Format::kGroup>(q, wrapped_offset(Format::kRange));
    } else if constexpr (kCodes == BlockedCodes::kOffset) {
      group.start.of[i] = -Format::kOffset * sum;
    }
    if constexpr (Format::kHasMin) group.minimum.of[i] = scale * static_cast<float>(sum);
  }
}

// Rows [row_begin, row_end), each read front to back.
template <class Format>
LARDER_INLINE void fill_block(const QuantizedRows& x, int row_begin, int row_end, int tiles,
                              RowGroup<Format>* to) {
  constexpr int kPieceGroups = Piece<Format>::kGroups;
  const int num_groups = x.num_cols / Format::kGroup;
  for (int tile = 0; tile < tiles; ++tile) {
    const int row = row_begin + tile * kBlockedRows;
    const Activations rows = rows_from(x, row);
    for (int piece = 0; piece < num_groups; piece += kPieceGroups) {
      const int groups = min_of(kPieceGroups, num_groups - piece);
      RowGroup<Format>* at = to + piece * tiles + tile * groups;
      for (int g = 0; g < groups; ++g) {
        fill_group<Format>(rows, piece + g, row_end - row, at[g]);
      }
    }
  }
}

// A group's first products, and those that are added to them: in 16 bits, or of kWords in 32. In
// assembly as in group_dot_avx2.h.
LARDER_INLINE I16 first_bytes(const Bytes64& w, const int32_t* x) {
  I16 sum;
  __asm__(
      "vpbroadcastd %[x], %[b]\n\t"
      "vpmaddubsw %[b], %[wa], %[a]\n\t"
      "vpmaddubsw %[b], %[wb], %[b]"
      : [a] "=&x"(sum.a), [b] "=&x"(sum.b)
      : [wa] "x"(w.a), [wb] "x"(w.b), [x] "m"(*x));
  return sum;
}
LARDER_INLINE I16 first_words(const Bytes64& w, const int32_t* x) {
  I16 sum;
  __asm__(
      "vpbroadcastd %[x], %[b]\n\t"
      "vpmaddwd %[b], %[wa], %[a]\n\t"
      "vpmaddwd %[b], %[wb], %[b]"
      : [a] "=&x"(sum.a), [b] "=&x"(sum.b)
      : [wa] "x"(w.a), [wb] "x"(w.b), [x] "m"(*x));
  return sum;
}

template <class Format, int kDword>
LARDER_INLINE void multiply_dword(const Bytes64* codes, const RowGroup<Format>& rows, I16* sums) {
  const Bytes64 w = codes[kDword];
  for (int r = 0; r < kBlockedRows; ++r) {
    const int32_t* x = rows.q[r].dword + kDword;
    if constexpr (kWords<Format>) {
      sums[r] = kDword == 0 ? first_words(w, x) : dot_words(sums[r], w, x);
    } else {
      sums[r] = kDword == 0 ? first_bytes(w, x)
                            : GroupDot<CodeRange::kFourBits>::dot(sums[r], w, {x});
    }
  }
}

// The integers of one group; a loop would not be unrolled.
template <class Format, int kDword = 0>
LARDER_INLINE void multiply_group(const Bytes64* codes, const RowGroup<Format>& rows, I16* sums) {
  multiply_dword<Format, kDword>(codes, rows, sums);
  if constexpr (kDword + 1 < RowCodes<Format>::kDwords) {
    multiply_group<Format, kDword + 1>(codes, rows, sums);
  }
}

// Row r's integers in 32 bits from those of multiply_group().
template <class Format>
LARDER_INLINE I16 group_sum(I16 sum, const RowGroup<Format>& rows, int r) {
  constexpr BlockedCodes kCodes = blocked_codes(Format::kRange);
  if constexpr (kCodes == BlockedCodes::kWords) {
    return sum;
  } else if constexpr (kCodes == BlockedCodes::kPlain) {
    return widen_pairs(sum);
  } else {
    const __m256i start = _mm256_set1_epi32(rows.start.of[r]);
    if constexpr (kCodes == BlockedCodes::kOffset) {
      const I16 wide = widen_pairs(sum);
      return {_mm256_add_epi32(wide.a, start), _mm256_add_epi32(wide.b, start)};
    }
    const I16 wide =
        widen_pairs({_mm256_add_epi16(sum.a, start), _mm256_add_epi16(sum.b, start)});
    if constexpr (kCodes == BlockedCodes::kWrapped) return wide;
    const __m256i taken = _mm256_madd_epi16(start, _mm256_set1_epi16(1));
    return {_mm256_sub_epi32(wide.a, taken), _mm256_sub_epi32(wide.b, taken)};
  }
}

// Groups [0, num_groups) of a piece for four rows.
template <class Format>
void blocked_tile(const Piece<Format>& piece, int num_groups, const RowGroup<Format>* groups,
                  V16* totals) {
  for (int g = 0; g < num_groups; ++g) {
    const RowGroup<Format>& rows = groups[g];
    I16 sums[kBlockedRows];
    multiply_group<Format>(piece.codes[g], rows, sums);
    // In memory between the groups: GCC would keep them there in any case, and store them twice.
    V16* total_of = opaque(totals);
    for (int r = 0; r < kBlockedRows; ++r) {
      const I16 sum = group_sum<Format>(sums[r], rows, r);
      V16 total = fma(to_float(sum), mul(piece.scale[g], set1(rows.scale.of[r])), total_of[r]);
      if constexpr (Format::kHasMin) total = fma(piece.minimum[g], set1(rows.minimum.of[r]), total);
      total_of[r] = total;
    }
  }
}

// A part of what the next panel has in place of a piece, into the second-level cache. All at once
// would be more than a core can have under way, and it would wait for them as for loads.
template <class Format>
LARDER_INLINE void fetch_part(const MatmulArgs& args, int panel, int first_group, int groups,
                              int part, int parts) {
  const uint8_t* next =
      Format::chunk(panel_of(*args.w, panel), first_group) + args.w->panel_stride_bytes;
  const int lines = groups / Format::kGroupsPerChunk * Format::kShape.chunk_bytes / 64;
  for (int i = lines * part / parts; i < lines * (part + 1) / parts; ++i) prefetch_l2(next + 64 * i);
}

// How many rows blocked_rows() takes at a time: a multiple of a tile's, 0 if columns are too many.
template <class Format>
LARDER_INLINE int block_rows(int num_cols) {
  const int tiles = RowBlock<Format>::kGroups / (num_cols / Format::kGroup);
  return min_of(tiles * kBlockedRows, kMaxBlockRows);
}

// What write_sums() will write of a tile: each row lies in a page of its own.
LARDER_INLINE void prefetch_sums(const MatmulArgs& args, int row, int row_end, int panel) {
  for (int r = row; r < min_of(row + kBlockedRows, row_end); ++r) {
    prefetch_to_write(args.y + r * args.ldy + panel * kPanelRows);
  }
}

// Rows [row_begin, row_end), at most block_rows(), of panels [panel_begin, panel_end).
template <class Format>
void blocked_rows(const MatmulArgs& args, int row_begin, int row_end, int panel_begin,
                  int panel_end) {
  constexpr int kPieceGroups = Piece<Format>::kGroups;
  const int num_groups = args.xq->num_cols / Format::kGroup;
  const int tiles = (row_end - row_begin + kBlockedRows - 1) / kBlockedRows;
  RowBlock<Format> block;
  fill_block<Format>(*args.xq, row_begin, row_end, tiles, block.groups);
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    memset(block.totals, 0, static_cast<size_t>(tiles * kBlockedRows) * sizeof(V16));
    const RowGroup<Format>* groups = block.groups;
    for (int g = 0; g < num_groups; g += kPieceGroups) {
      const int piece_groups = min_of(kPieceGroups, num_groups - g);
      Piece<Format> piece;
      unpack_piece<Format>(panel_of(*args.w, panel), g, piece_groups, piece);
      const bool last = g + kPieceGroups >= num_groups;
      for (int tile = 0; tile < tiles; ++tile, groups += piece_groups) {
        fetch_part<Format>(args, panel, g, piece_groups, tile, tiles);
        if (last) prefetch_sums(args, row_begin + tile * kBlockedRows, row_end, panel);
        blocked_tile<Format>(piece, piece_groups, groups, block.totals + tile * kBlockedRows);
      }
    }
    for (int row = row_begin; row < row_end; ++row) {
      write_sums(args, row, panel, block.totals[row - row_begin]);
    }
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
