// Attention of every instruction set: against double precision, and bit against bit whatever the
// chunks, the batch, the threads, the order of the blocks and what stale slots hold.
#include "kernels/attention_test_support.h"

#include <cmath>

namespace larder {
namespace {

constexpr KvTypes kF16 = {KvType::kF16, KvType::kF16};
constexpr KvTypes kBF16 = {KvType::kBF16, KvType::kBF16};
constexpr KvTypes kFp8 = {KvType::kFp8, KvType::kFp8};
constexpr KvTypes kInt8 = {KvType::kInt8, KvType::kInt8};
constexpr KvTypes kInt4 = {KvType::kInt4, KvType::kInt4};

constexpr Shape kShapes[] = {
    {9, 3, 64, 0, kF16},
    {4, 1, 256, 512, kF16},
    {4, 4, 80, 0, kF16},
    {8, 2, 128, 100, kF16},
    {6, 2, 18, 37, kF16},
    {3, 3, 96, 0, kF16},
    {4, 1, 6, 1, kF16},
    {9, 3, 64, 0, kBF16},
    {6, 2, 18, 37, kBF16},
    {9, 3, 64, 0, kFp8},
    {4, 1, 256, 512, kFp8},
    {4, 4, 80, 0, kFp8},
    {6, 2, 18, 37, kFp8},
    {4, 1, 6, 1, kFp8},
    {9, 3, 64, 0, kInt8},
    {4, 1, 256, 512, kInt8},
    {4, 4, 80, 0, kInt8},
    {6, 2, 18, 37, kInt8},
    {4, 1, 6, 1, kInt8},
    {9, 3, 64, 0, kInt4},
    {4, 1, 256, 512, kInt4},
    {4, 4, 80, 0, kInt4},
    {6, 2, 18, 37, kInt4},
    {4, 1, 6, 1, kInt4},
    {7, 1, 128, 0, kInt4},
    {4, 2, 40, 0, {KvType::kInt8, KvType::kInt4}},
    {4, 2, 40, 0, {KvType::kInt4, KvType::kF16}},
    {4, 2, 40, 0, {KvType::kBF16, KvType::kInt8}},
    {4, 2, 40, 0, {KvType::kFp8, KvType::kInt4}},
    {4, 2, 40, 0, {KvType::kInt8, KvType::kFp8}},
    {3, 1, 576, 0, kF16, true},
    {5, 1, 192, 0, kBF16, true},
    {6, 2, 18, 37, kF16, true},
    {4, 1, 40, 0, kBF16, true},
    {8, 1, 64, 128, kF16, false, true},
    {8, 2, 64, 0, kBF16, false, true},
    {6, 2, 18, 0, kFp8, false, true},
    {8, 1, 64, 128, kInt8, false, true},
    {8, 2, 64, 0, kInt4, false, true},
    {9, 3, 64, 0, kF16, false, false, 2},
    {6, 2, 18, 37, kF16, false, false, 0.5F},
    {8, 4, 256, 512, kBF16, false, false, 50},
    {9, 3, 64, 0, kFp8, false, false, 2},
    {6, 2, 18, 37, kInt8, false, false, 0.5F},
    {7, 1, 128, 100, kInt4, false, false, 2},
    {4, 2, 40, 0, {KvType::kBF16, KvType::kInt4}, false, false, 2},
    {6, 2, 18, 37, kF16, true, true, 2},
};
constexpr Shape kUnbounded[] = {{9, 3, 64, 0, kF16},           {9, 3, 64, 0, kBF16},
                                {9, 3, 64, 0, kFp8},           {9, 3, 64, 0, kInt8},
                                {9, 3, 64, 0, kInt4},          {9, 3, 64, 0, kF16, false, false, 2},
                                {9, 3, 64, 0, kInt8, false, false, 2}};

TEST(Attention, MatchesDoublePrecision) {
  ThreadPool pool(2);
  for (const Shape& shape : kShapes) {
    const int length = 700;
    Sequence sequence(shape, length, 11);
    if (shape.head_dim % 64 == 0) sequence.use_random_basis(7);
    for (const KernelTable* table : test::tables_of_attention()) {
      sequence.store(*table, 1);
      const auto out = sequence.run(*table, pool, length);
      // Keys spread one and a half times as wide as values do otherwise. Where weights are rounded to BF16 the largest one,
      // 1, stays what it is, and mostly makes up the sum; a cap has others come close to it, which do not.
      const bool is_wider = shape.values_are_keys || (shape.score_cap > 0 && multiplies_bf16(table->isa));
      const double tolerance = attention_tolerance(shape.types, *table) * (is_wider ? 1.5 : 1);
      for (const int t : {0, 1, 15, 16, 63, 64, 300, 511, 512, 575, 699}) {
        for (int head = 0; head < shape.num_heads; ++head) {
          const auto expected = sequence.reference(t, head, multiplies_bf16(table->isa));
          for (int d = 0; d < shape.head_dim; ++d) {
            ASSERT_NEAR(
                out[static_cast<std::size_t>((t * shape.num_heads + head) * shape.head_dim + d)],
                expected[static_cast<std::size_t>(d)], tolerance)
                << table->name << ' ' << shape << " token " << t << " head " << head;
          }
        }
      }
    }
  }
}

TEST(Attention, ChunksThreadsAndBlocksDoNotChangeABit) {
  ThreadPool one(1);
  ThreadPool two(2);
  for (const Shape& shape : kShapes) {
    const int length = 1050;
    Sequence sequence(shape, length, 11);
    if (shape.head_dim % 64 == 0) sequence.use_random_basis(7);
    for (const KernelTable* table : test::tables_of_attention()) {
      // Of the slow ones the shapes that differ most.
      if (test::is_slow(*table) && shape.head_dim > 80) continue;
      sequence.store(*table, 1);
      const auto whole = sequence.run(*table, one, length);
      for (const int chunk : {1, 7, 16, 100, 512}) {
        if (test::is_slow(*table) && chunk < 100) continue;
        if (chunk == 1 && shape.head_dim != 64) continue;  // a thousand forks for each
        sequence.store(*table, static_cast<unsigned>(chunk));
        ASSERT_TRUE(test::same_bits(sequence.run(*table, two, chunk), whole))
            << table->name << ' ' << shape << " chunk " << chunk;
      }
      ASSERT_TRUE(test::same_bits(sequence.run(*table, two, length), whole));
      sequence.store(*table, 99);
      ASSERT_TRUE(test::same_bits(sequence.run(*table, one, 64), whole));
    }
  }
}

// What is beyond all sense, as an infinite scale of scores makes it, depends on no company either.
TEST(Attention, ScoresWithoutBoundDependOnTheirRowAlone) {
  ThreadPool pool(2);
  for (const Shape& shape : kUnbounded) {
    const int length = 600;
    Sequence sequence(shape, length, 11);
    for (std::size_t i = 0; i < sequence.q.size(); ++i) {
      const float extremes[] = {3e38F, -3e38F, INFINITY, NAN};
      if (i % 7 == 0) sequence.q[i] = extremes[i / 7 % 4];
    }
    for (const KernelTable* table : test::tables_of_attention()) {
      if (test::is_slow(*table)) continue;
      sequence.store(*table, 1);
      const auto whole = sequence.run(*table, pool, length);
      for (const float value : whole) ASSERT_TRUE(std::isfinite(value)) << table->name << ' ' << shape;
      for (const int chunk : {1, 7, 100})
        ASSERT_TRUE(test::same_bits(sequence.run(*table, pool, chunk), whole))
            << table->name << ' ' << shape << " chunk " << chunk;
    }
  }
}

void expect_neighbours_do_not_matter(const Shape& shape, const KernelTable* table) {
  ThreadPool pool(2);
  const int dim = shape.num_heads * shape.head_dim;
  Sequence sequence(shape, 600, 11);
  sequence.store(*table, 5);
  const auto whole = sequence.run(*table, pool, 600);
  // Rows: tokens 0..99 as one sequence, token 599, token 17, tokens 300..331.
  struct Piece {
    int begin, end;
  };
  const Piece pieces[] = {{0, 100}, {599, 600}, {17, 18}, {300, 332}};
  std::vector<AttentionSequence> sequences;
  std::vector<float> q;
  std::vector<float> expected;
  for (const Piece& piece : pieces) {
    sequences.push_back({.first_row = static_cast<int>(q.size()) / dim,
                         .num_tokens = piece.end - piece.begin,
                         .context_len = piece.end,
                         .block_table = sequence.block_table.data()});
    q.insert(q.end(), sequence.q_basis().begin() + piece.begin * dim,
             sequence.q_basis().begin() + piece.end * dim);
    expected.insert(expected.end(), whole.begin() + piece.begin * dim,
                    whole.begin() + piece.end * dim);
  }
  std::vector<float> out(q.size(), NAN);
  AttentionArgs args = sequence.args(out);
  args.q = q.data();
  args.sequences = sequences.data();
  args.num_sequences = static_cast<int>(sequences.size());
  AttentionOp op(pool, 200, shape.num_heads, shape.head_dim, 600);
  op.run(*table, args);
  EXPECT_TRUE(test::same_bits(out, expected)) << table->name << ' ' << shape;
}

// Several sequences in a batch, prefill beside decode, each as if alone.
TEST(Attention, NeighboursInABatchDoNotChangeABit) {
  for (const KvTypes types : {kF16, kBF16, kFp8, kInt8, kInt4}) {
    for (const KernelTable* table : test::tables_of_attention()) {
      expect_neighbours_do_not_matter({9, 3, 64, 0, types}, table);
      expect_neighbours_do_not_matter({8, 1, 18, 40, types, false, true}, table);
      expect_neighbours_do_not_matter({6, 2, 18, 40, types, false, false, 2}, table);
    }
  }
}

// The table's split and merge, which a batch of one long sequence takes, whatever the pool decides.
TEST(Attention, SplitsMergedApartHaveTheSameBits) {
  const Shape shape = {8, 2, 128, 0};
  for (const auto& [window, types] : {std::pair{0, kF16}, {700, kF16}, {700, kFp8}, {700, kInt8}, {0, kInt4}}) {
    for (const KernelTable* table : test::tables_of_attention()) {
      Shape windowed = shape;
      windowed.window = window;
      windowed.types = types;
      windowed.has_sink_scores = window == 0;
      windowed.score_cap = window == 0 ? 0 : 2;
      Sequence sequence(windowed, 2100, 3);
      sequence.store(*table, 5);
      std::vector<float> direct(sequence.q.size()), merged(sequence.q.size());
      const AttentionSequence tokens{2090, 10, 2100, sequence.block_table.data(), 0, 0};
      AttentionArgs args = sequence.args(direct);
      args.sequences = &tokens;
      args.num_sequences = 1;
      const int rows = 10 * shape.num_heads / shape.num_kv_heads;
      AlignedBuffer scratch(static_cast<std::size_t>(attention_scratch_size_bytes(rows, 128)));
      const std::int64_t stride = attention_partial_size_bytes(rows, 128);
      AlignedBuffer partials(static_cast<std::size_t>(5 * stride));
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        AttentionTask task{0, head, 0, 10, -1};
        args.out = direct.data();
        table->attention(args, task, scratch.data());
        args.out = merged.data();
        const SplitRange splits = attention_splits(args, task);
        EXPECT_EQ(splits.begin, window == 0 ? 0 : 2);
        EXPECT_EQ(splits.end, 5);
        for (int index = 0; index < num_splits(splits); ++index) {
          task.split = split_at(splits, index);
          table->attention(args, task, scratch.data());
          std::memcpy(partials.data() + index * stride, scratch.data(),
                      static_cast<std::size_t>(stride));
        }
        table->merge_attention(args, task, partials.data(), stride);
      }
      EXPECT_TRUE(test::same_bits(direct, merged)) << table->name;
    }
  }
}

}  // namespace
}  // namespace larder
