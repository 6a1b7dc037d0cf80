// What a device must be able to compute, as plain argument structs and a table of functions.
//
// Promise 1 lives here: a row of any result depends on that row's inputs alone. Every kernel sums
// in one fixed order whatever the number of rows, the range that it was asked for and the thread
// that runs it, and attention cuts the keys at fixed positions. The order may differ between
// instruction sets.
//
// A table is a CPU's or a device's with memory of its own (device.h), where every pointer below is
// into that memory, but for the argument structs and the PackedMatrix and QuantizedRows themselves.
//
// The sources under cpu/ are compiled once per instruction set, each in its own namespace. They
// include no header with inline functions of external linkage, since the linker could keep the copy
// that holds instructions that another machine has not got.
//
// Thread: each function computes the range that it is given; ops.h shares ranges out over a
// ThreadPool. Nothing here allocates or throws; sizes were checked where the model was loaded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "kernels/ggml_types.h"
#include "kernels/kv_type.h"

namespace larder {

enum class Isa { kGeneric, kAvx2, kAvx512, kAvx512Bf16, kAmx, kCuda };
// A CPU's, best last.
inline constexpr Isa kCpuIsas[] = {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16,
                                   Isa::kAmx};

// Whether its tables do what rounds_to_bf16 allows.
static constexpr bool multiplies_bf16(Isa isa) {
  return isa == Isa::kAvx512Bf16 || isa == Isa::kAmx;
}

// How weights lie in memory after repacking: panels of kPanelRows output rows side by side, so that
// one vector holds the same input column of 16 outputs, and a matrix is read once, front to back.
inline constexpr int kPanelRows = 16;
inline constexpr int kActivationGroup = 32;

// A quantised weight is scale * (code - offset) + minimum. A panel is a row of chunks, and a chunk
// holds, one array after another (packed_shape.h says where):
//   scales   [groups][16 outputs]; in two levels, scale = super scale * scale code (exact in FP32)
//   minima   the same, when has_min
//   supers   two levels: per 256 columns [16] f16 super scales, and when has_min [16] f16 super
//            minima, minimum = -super minimum * minimum code
//   codes    per group its quads of [16 outputs][4 columns]: 64 bytes, one a code. Below 8 bits, the
//            lower 4 first: byte i of 64 holds those of byte i of quad 2v below and of quad 2v + 1
//            above. Then the upper ones in 64 bytes: byte i holds those of byte i of quad q from its
//            bit q (5-bit codes) or 2q (6-bit codes) on.
// Without minima a code's offset is half its range; the codes of kMxFp4, kIq4 and kIq4K stand for numbers of a table, see
// packed_shape.h. A group is 32 columns; where "fine", 16.
// kF32, kF16: [num_cols][16]; kBF16: [num_cols / 2, rounded up][16][2].
enum class PackedFormat : std::uint8_t {
  kF32,
  kF16,
  kBF16,    // values
  kW4,      // 4-bit codes, f16 scale (Q4_0) and minimum (Q4_1)
  kW4K,     // 4-bit codes, 8-bit scale and minimum codes (Q4_K)
  kW4Fine,  // codes of 2 and 3 bits as 4, 8-bit signed scale code (Q3_K) and minimum code (Q2_K)
  kW5,      // 5-bit codes, f16 scale (Q5_0) and minimum (Q5_1)
  kW5K,     // 5-bit codes, 8-bit scale and minimum codes (Q5_K)
  kW6Fine,  // 6-bit codes, 8-bit signed scale code (Q6_K)
  kW8,      // 8-bit codes, f16 scale (Q8_0)
  kMxFp4,   // 4-bit numbers, 8-bit power of two as scale (MXFP4); on a CPU
  kIq4,     // 4-bit codes of 8-bit numbers, f16 scale (IQ4_NL); on a CPU
  kIq4K,    // the same, 8-bit signed scale code (IQ4_XS); on a CPU
};

// A view of one repacked weight matrix, [num_rows, num_cols] = [outputs, inputs].
struct PackedMatrix {
  PackedFormat format = PackedFormat::kF32;
  bool has_min = false;  // minima stand beside the scales, and codes have no offset
  int num_rows = 0;      // the last panel is filled up with zero rows
  int num_cols = 0;
  const std::byte* data = nullptr;
  std::int64_t panel_stride_bytes = 0;

  int num_panels() const { return (num_rows + kPanelRows - 1) / kPanelRows; }
};

// Activations in 8 bits: value = scale[row, g] * q[row, c] for each group g of 32 columns.
struct QuantizedRows {
  std::int8_t* q = nullptr;     // [num_rows, num_cols]
  float* scale = nullptr;       // [num_rows, num_cols / 32]
  std::int32_t* sum = nullptr;  // [num_rows, num_cols / 16], sum of q over each 16 columns
  int num_cols = 0;
};

// y[r, n] = sum over c of x[r, c] * w[n, c] (+ bias[n]).
// With xq the sums over a group are exact integers; with x they are FP32 in order of c. Both forms
// take any number of rows and give each row the same bits.
struct MatmulArgs {
  const PackedMatrix* w = nullptr;
  const float* x = nullptr;           // [num_rows, ldx], used when xq is null
  const QuantizedRows* xq = nullptr;  // only for kW* formats
  // kBF16, kW8 where KernelTable::rounds_w8, and on a device kF16: x may be rounded to BF16 first, and kW8's weights
  // with it, which a set does that multiplies BF16.
  bool rounds_to_bf16 = false;
  const float* bias = nullptr;        // [w->num_rows] or null
  float* y = nullptr;                 // [num_rows, ldy]
  int num_rows = 0;
  std::int64_t ldx = 0;
  std::int64_t ldy = 0;
  // Or null: room of a device's for these rows' activations, device_product_bytes(), the same for products that
  // are called together.
  std::byte* device_scratch = nullptr;
  // Or null: packed_rows_size_bytes() of room, where matmul() of ops.h has x packed once for all of its tasks.
  std::byte* row_room = nullptr;
  // Or null: x as KernelTable::pack_rows() left it. Kernels that would pack it themselves take it from there.
  const std::byte* packed_rows = nullptr;
  // Or null: y's run_maxima(), row by row. Kernels leave it alone; matmul() of ops.h fills it on a CPU.
  float* maxima = nullptr;  // [num_rows, runs of w->num_rows]
};

// Of rows rounded to BF16, in whole tiles.
static constexpr std::int64_t packed_rows_size_bytes(std::int64_t num_rows, std::int64_t num_cols) {
  return (num_rows + 15) / 16 * 16 * ((num_cols + 31) / 32 * 32) * 2;
}

// One layer's keys and values inside the blocks of its group; kv_type.h says how they lie.
struct PagedKvView {
  std::byte* base = nullptr;
  std::int64_t block_stride_bytes = 0;
  std::int64_t k_offset_bytes = 0;  // of this layer within a block
  std::int64_t v_offset_bytes = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  KvTypes types;
  // A head's values are its keys: kept once, where the keys lie, in their order. kF16 and kBF16 on a CPU.
  bool values_are_keys = false;
  // For keys as codes; null = ones, and in order. A key's dimensions are taken times key_balance[head, dimension],
  // and kInt4's place i gets dimension key_order[head, i]. [num_kv_heads, head_dim] both.
  const float* key_balance = nullptr;
  const std::int16_t* key_order = nullptr;
};

// Queries and keys to their positions, in place: the norm of each head, if any, then its first rope_dim dimensions
// are turned in pairs by cos and sin. interleaved: pairs are (2i, 2i + 1), else (i, i + rope_dim / 2).
struct RopeArgs {
  int rope_dim = 0;
  bool interleaved = false;
  const float* cos = nullptr;  // [num_rows, rope_dim / 2]
  const float* sin = nullptr;
  float* k = nullptr;             // StoreKvArgs::k, or null: they are stored as they are
  const float* k_norm = nullptr;  // [head_dim] or null
  float* q = nullptr;             // [num_rows, ldq], heads side by side
  std::int64_t ldq = 0;
  int num_heads = 0;  // of q; 0 = no queries are wanted
  const float* q_norm = nullptr;
  float epsilon = 0;  // of the norms
  // Or null: the queries at other positions, laid out as q.
  float* q_sinks = nullptr;
  const float* cos_sinks = nullptr;
  const float* sin_sinks = nullptr;
};

// Writes K and V of rows [row_begin, row_end) to their slots; values past the type's range are
// clamped. Rows may be written by several threads, also into one block.
struct StoreKvArgs {
  PagedKvView kv;
  const float* k = nullptr;  // [num_rows, ldk], heads side by side
  const float* v = nullptr;
  std::int64_t ldk = 0;
  std::int64_t ldv = 0;
  const std::int64_t* slots = nullptr;  // [num_rows], block_id * kBlockSize + offset
  RopeArgs rope = {};                   // before that: a device does both at once
};

// Tokens of one sequence in a batch. Its keys [0, context_len) lie in block_table; its queries are
// the last num_tokens of them, rows [first_row, first_row + num_tokens) of q. Entries of the block
// table that none of its queries sees are never read and may be kNone.
struct AttentionSequence {
  int first_row = 0;
  int num_tokens = 0;
  int context_len = 0;
  const BlockId* block_table = nullptr;  // block of position p: block_table[p / kBlockSize]
  // StreamingLLM (Xiao et al. 2024): a query at p sees keys in (p - window, p] and the sinks,
  // keys [0, num_sinks); 0 = all before it. Layers with a window of their own have no sinks, and
  // the narrower window counts. num_sinks: a multiple of kBlockSize, at most kKeySplit.
  int window = 0;
  int num_sinks = 0;
  // On a device, set by share_keys(): the sequence's place in the grid, over how many blocks each of
  // its tiles shares out its keys, and where their partials lie.
  int first_piece = 0;
  int num_splits = 1;
  int first_partial = 0;
  // And how many entries its copy of the block table leaves out behind the sinks', none of them seen.
  int skipped_blocks = 0;
  // As many of its first keys are read once for several sequences. On a CPU they are CommonKeys of the call, and
  // common_state is this sequence's. On a device they are whole splits, of which a tile takes the rows of as many
  // sequences as it holds, its members: one of them has the tile's pieces among its own, the pieces of the others
  // begin at first_split.
  int num_common = 0;
  int common_state = 0;
  int first_split = 0;
  int num_members = 0;   // of the tile that it has; 0 = none
  int first_member = 0;  // member m is sequences[sequences[first_member + m].listed]
  int listed = 0;        // belongs to a list over all sequences, not to this one
};

// Sequences of one query each that have their first keys in the same blocks: those are read once for
// all of them (Juravsky et al. 2024, "Hydragen"), and each goes on alone from where that ends.
struct CommonKeys {
  int num_keys = 0;  // a multiple of kCommonKeyStep; each of the queries sees them all
  const std::int32_t* sequences = nullptr;  // [num_sequences], places in AttentionArgs::sequences
  int num_sequences = 0;
};
inline constexpr int kCommonKeyStep = 64;

// How a device's attention shares out a batch: a piece is a block's work for one KV head, a tile of
// rows with all its keys or those of one split.
struct KeySharing {
  int num_pieces = 0;
  int num_merged_rows = 0;  // rows from here on have no partials
  int most_tiles = 0;       // of a sequence
};
// Rows of one sequence and KV head in a tile.
inline constexpr int kDeviceTileRows = 16;

// Keys per partial softmax. Partials start from nothing at multiples of this position and are
// merged in order, so a long context can be shared out over threads without changing a bit.
inline constexpr int kKeySplit = 512;

struct AttentionArgs {
  PagedKvView kv;
  // [num_rows, ldq], heads side by side, positions applied, in the key basis (to_key_basis())
  const float* q = nullptr;
  std::int64_t ldq = 0;
  float* out = nullptr;  // [num_rows, ldo]
  std::int64_t ldo = 0;
  int num_heads = 0;
  float scale = 1;      // on q . k
  float score_cap = 0;  // then a score s becomes score_cap * tanh(s / score_cap); 0 = it stays
  int window = 0;       // a query at p sees keys in (p - window, p]; 0 = all
  const AttentionSequence* sequences = nullptr;
  int num_sequences = 0;
  // [num_rows, ldq] or null: the queries at positions nearer to the sinks. A query takes it for the
  // sinks once keys between them and its window are out of its sight, that is from position
  // window + num_sinks on.
  const float* q_sinks = nullptr;
  // FP16 and BF16 keys and values, queries and softmax weights may be rounded to BF16 before they are
  // multiplied, see MatmulArgs.
  bool rounds_to_bf16 = false;
  // Or null: a learned score of each query head that joins its softmax, with no value to it (Agarwal et al. 2025,
  // gpt-oss). Behind the last key, once for a row. [num_heads]; on a CPU
  const float* sink_scores = nullptr;
  KeySharing sharing = {};  // for attention_batch(), whose host cannot read the sequences
  const CommonKeys* common = nullptr;  // [num_common]; on a CPU
  int num_common = 0;
};

// What the queries of a sequence see in this layer; 0 = no window, no sinks.
static constexpr int seen_window(const AttentionArgs& args, const AttentionSequence& sequence) {
  if (args.window == 0 || sequence.window == 0) return args.window + sequence.window;
  return args.window < sequence.window ? args.window : sequence.window;
}
static constexpr int seen_sinks(const AttentionArgs& args, const AttentionSequence& sequence) {
  return args.window == 0 && sequence.window > 0 ? sequence.num_sinks : 0;
}

// A piece of attention: queries [query_begin, query_end) of one sequence (counted within its
// num_tokens), all query heads of one KV head: (query_end - query_begin) * num_heads / num_kv_heads
// rows.
struct AttentionTask {
  int sequence = 0;
  int kv_head = 0;
  int query_begin = 0;
  int query_end = 0;
  // The partial softmax of keys [kKeySplit * split, + kKeySplit) alone, left in the scratch; -1:
  // all of the keys, written to out.
  int split = -1;
  // Or null: attention_state_size_bytes() that attention_common() left of the sequence's common keys,
  // which are not read again. With split -1 alone; is written.
  std::byte* state = nullptr;
};

// A piece of attention over common keys: sequences [begin, end) of them, all query heads of one KV head.
struct CommonTask {
  int common = 0;  // place in AttentionArgs::common
  int kv_head = 0;
  int begin = 0;
  int end = 0;
  std::byte* states = nullptr;  // that of the first sequence
  std::int64_t stride_bytes = 0;  // to the next one's
};

// The splits that the task's queries see: [begin, end), and split 0 before them where it holds
// sinks.
struct SplitRange {
  int begin = 0;
  int end = 0;
  bool sinks = false;  // begin > 0 then
};
static constexpr int num_splits(const SplitRange& splits) {
  return splits.end - splits.begin + (splits.sinks ? 1 : 0);
}
static constexpr int split_at(const SplitRange& splits, int index) {
  if (!splits.sinks) return splits.begin + index;
  return index == 0 ? 0 : splits.begin + index - 1;
}
SplitRange attention_splits(const AttentionArgs& args, const AttentionTask& task);

// Rows of one attention task at most, so that its scratch stays in the second-level cache. Whole tiles of
// six for most numbers of query heads per KV head.
inline constexpr int kMaxAttentionRows = 96;

// Bytes of a partial softmax: per row [head_dim rounded up to 16] weighted sums, its maximum, its
// sum.
static constexpr std::int64_t attention_partial_size_bytes(int num_rows, int head_dim) {
  return (std::int64_t{num_rows} * ((head_dim + 15) / 16 * 16 + 2) * 4 + 63) / 64 * 64;
}
// A sequence's sums between its common keys and its own, of one KV head: the splits that are complete, as one,
// and the one that is not.
static constexpr std::int64_t attention_state_size_bytes(int num_rows, int head_dim) {
  return 2 * attention_partial_size_bytes(num_rows, head_dim);
}
// On a device: of one row, all heads.
static constexpr std::int64_t device_partial_size_bytes(int num_heads, int head_dim) {
  return std::int64_t{num_heads} * (head_dim + 2) * 4;
}
// On a device: the activations of a product, as BF16.
static constexpr std::int64_t device_product_bytes(int num_rows, int num_cols) {
  return std::int64_t{num_rows} * ((num_cols + 63) / 64 * 64) * 2;
}
// Scratch of one attention call: two partials at its start, then per row the scaled query and that
// for the sinks (FP32, pairs of 16 bits, their scale, what their sums start from), 64 scores and a
// factor; behind them the values of 64 keys that are values, too.
static constexpr int attention_words(int head_dim) { return (head_dim + 15) / 16 * 8 + 8; }
static constexpr std::int64_t attention_scratch_size_bytes(int num_rows, int head_dim) {
  const int query = (head_dim + 15) / 16 * 16 + attention_words(head_dim) + 1 +
                    3 * kv_num_groups(head_dim);
  return 2 * attention_partial_size_bytes(num_rows, head_dim) +
         (std::int64_t{num_rows} * (2 * query + 64 + 1) * 4 + 63) / 64 * 64 +
         std::int64_t{64} * ((head_dim + 15) / 16 * 16) * 2;
}

// Logits are looked at in runs of so many, the last one perhaps shorter.
inline constexpr int kLogitRun = 256;
constexpr int num_logit_runs(std::int64_t num_logits) {
  return static_cast<int>((num_logits + kLogitRun - 1) / kLogitRun);
}

// The weight of a logit up to best: e^((logit - best) * scale), 0 where that is below least.
struct WeightArgs {
  float best = 0;
  float scale = 1;
  float least = 0;
};

// One draw of a token from a row of logits, each of which weighs e^((logit - best) * scale): of the top_k best
// (0 = all), and of these the fewest best that make up top_p of the weight, those that weigh at least min_p of
// what the best does. The larger logit is the better one, of equal ones the lower token; NaN weighs nothing.
// In order of tokens, the first one up to which more than `uniform` of what is kept lies.
struct TokenDraw {
  double uniform = 0;     // [0, 1)
  std::int32_t row = 0;
  std::int32_t top_k = 0;
  float scale = 1;        // above 0: 1 / temperature
  float top_p = 1;        // (0, 1]
  float min_p = 0;        // [0, 1]
};
struct DrawArgs {
  const float* logits = nullptr;  // [num_rows, num_logits]
  const TokenId* best = nullptr;  // [num_rows], their first_of_best()
  std::int64_t num_logits = 0;    // at most 2^23
  const TokenDraw* draws = nullptr;  // [num_draws]
  int num_draws = 0;
  TokenId* tokens = nullptr;  // [num_draws]
};

// Rows of the embedding, times scale.
struct EmbedArgs {
  const PackedMatrix* w = nullptr;
  const TokenId* tokens = nullptr;  // [num_rows]
  float scale = 1;
  float* out = nullptr;  // [num_rows, w->num_cols]
};

// Cosine and sine of position * frequency, times magnitude, in double precision: at position
// 100,000 a float's angle would be off by a hundredth.
struct RotationArgs {
  const std::int32_t* positions = nullptr;  // [num_rows]
  const double* frequencies = nullptr;      // [num_pairs]
  int num_pairs = 0;
  double magnitude = 1;
  float* cos = nullptr;  // [num_rows, num_pairs]
  float* sin = nullptr;
};

// Row by row: x += added, if any, or the norm of added by added_weight, if any; then out = the norm of x by weight,
// which is x / (root mean square of x) * weight, or x itself where there is no weight. Each step rounds as it would alone.
struct RmsNormArgs {
  float* x = nullptr;                   // [num_rows, num_cols], as added and out
  const float* added = nullptr;         // or null
  const float* added_weight = nullptr;  // [num_cols] or null
  const float* weight = nullptr;        // [num_cols] or null
  float epsilon = 0;
  float* out = nullptr;  // may be added or, where nothing is added, x
  int num_cols = 0;
};

struct KernelTable {
  Isa isa;
  const char* name;

  // Row operations on [row_begin, row_end).
  void (*rms_norm)(const RmsNormArgs& args, int row_begin, int row_end);
  void (*quantize_rows)(const float* x, std::int64_t ldx, const QuantizedRows& out, int row_begin,
                        int row_end);
  // What 8 bits leave over of x [num_rows, q.num_cols]: rests = x - q.
  void (*quantization_rests)(const float* x, const QuantizedRows& q, float* rests, int row_begin,
                             int row_end);
  void (*embed)(const EmbedArgs& args, int row_begin, int row_end);
  void (*rotations)(const RotationArgs& args, int row_begin, int row_end);
  // out = silu(gate) * up; out may be gate.
  void (*silu_mul)(const float* gate, const float* up, float* out, std::int64_t num_values);
  // out = gelu_tanh(gate) * up; out may be gate.
  void (*gelu_mul)(const float* gate, const float* up, float* out, std::int64_t num_values);
  // out = g sigmoid(1.702 g) * (u + 1), g = gate up to 7, u = up in [-7, 7] (gpt-oss); out may be gate. Null on a device.
  void (*clamped_swiglu)(const float* gate, const float* up, float* out, std::int64_t num_values) = nullptr;
  // x = cap * tanh(x / cap)
  void (*soft_cap)(float* x, std::int64_t num_values, float cap);
  // x += y
  void (*add)(float* x, const float* y, std::int64_t num_values);
  // Every row of x [num_rows, num_cols] += bias
  void (*add_bias)(float* x, const float* bias, int num_cols, int row_begin, int row_end);
  // Row rows[i] of values [.., num_cols] to row i; rows ascend.
  void (*gather_rows)(float* values, int num_cols, const std::int32_t* rows, int num_rows);
  void (*store_kv)(const StoreKvArgs& args, int row_begin, int row_end);
  // Queries [num_rows, ldq] to where attention multiplies them with keys as they are stored; does
  // nothing unless keys are codes.
  void (*to_key_basis)(const PagedKvView& kv, int num_heads, float* q, std::int64_t ldq,
                       int row_begin, int row_end);

  // kW8 had rather x, and rounds_to_bf16, than xq.
  bool rounds_w8 = false;
  // Output panels [panel_begin, panel_end) of every row.
  void (*matmul)(const MatmulArgs& args, int panel_begin, int panel_end);
  // Tiles of rows that matmul() had rather find packed, 0 if it takes the rows as they are; and packs those of
  // [tile_begin, tile_end). Null where no product has them packed.
  int (*num_row_tiles)(const MatmulArgs& args) = nullptr;
  void (*pack_rows)(const MatmulArgs& args, std::byte* to, int tile_begin, int tile_end) = nullptr;
  // Of a thread's stack, what matmul() puts rows of such a product in order on, whatever they hold; w without its
  // data. A compiler that probes stacks has all of it touched. Null on a device.
  std::int64_t (*matmul_stack_bytes)(const MatmulArgs& args) = nullptr;

  // scratch: attention_scratch_size_bytes() for the task's rows, 64-byte aligned.
  void (*attention)(const AttentionArgs& args, const AttentionTask& task, std::byte* scratch);
  // Merges the partials of the task's queries, `stride_bytes` apart, for every split that a query
  // sees (attention_splits(), in its order), into the first, and writes out. Same bits as
  // attention() with split -1.
  void (*merge_attention)(const AttentionArgs& args, const AttentionTask& task, std::byte* partials,
                          std::int64_t stride_bytes);
  // Into the task's states. Same bits as attention() without a state, after it has gone on from there.
  void (*attention_common)(const AttentionArgs& args, const CommonTask& task, std::byte* scratch) = nullptr;
  // As matmul_stack_bytes(), of these two. Null on a device.
  std::int64_t (*attention_stack_bytes)(const AttentionArgs& args) = nullptr;
  // Instead of those three, on a device: the whole batch, shared out as share_keys() did for a scratch
  // of this size. Null on a CPU.
  void (*attention_batch)(const AttentionArgs& args, std::byte* scratch) = nullptr;

  // On a device: a few products of one input in as few launches as their formats allow. Null on a CPU.
  void (*matmul_group)(const MatmulArgs* products, int count) = nullptr;

  // What greedy sampling takes, for a device's logits [num_rows, num_logits]: the first of each row's
  // largest, NaN aside, 0 where none is above -infinity. Null on a CPU.
  void (*first_of_best)(const float* logits, int num_rows, std::int64_t num_logits,
                        TokenId* best) = nullptr;
  // On a device: every draw by itself, with bits that depend on its row and its TokenDraw alone. The best where
  // that is infinite or top_k is 1; 0 where no logit is above -infinity. Null on a CPU, whose Sampler draws.
  void (*draw_tokens)(const DrawArgs& args) = nullptr;

  // The last three are the sampler's, which runs on the CPU: null on a device.
  // The largest logit of each run, -infinity where all are NaN.
  void (*run_maxima)(const float* logits, std::int64_t num_logits, float* maxima) = nullptr;
  // The weights of each run, summed. A logit that is NaN weighs nothing.
  void (*run_weights)(const float* logits, std::int64_t num_logits, const WeightArgs& args,
                      float* sums) = nullptr;
  // Each weight.
  void (*weights)(const float* logits, std::int64_t num_logits, const WeightArgs& args,
                  float* weights) = nullptr;

  // A device launches every call for itself, in order: one call for all rows, all panels, all
  // sequences costs least. Pointers are then into its memory.
  bool is_device() const { return attention_batch != nullptr; }
};

// The best set that this machine runs, or the one that LARDER_ISA names (generic, avx2, avx512,
// avx512_bf16, amx). Throws Error{kInvalidArgument} when the name is unknown or the machine has not got it.
const KernelTable& select_kernels();
const KernelTable& best_kernels();
// nullptr when this machine cannot run it, and for kCuda: see kernels/device.h.
const KernelTable* kernels_for(Isa isa);

}  // namespace larder
