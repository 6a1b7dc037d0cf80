// Attention of every instruction set: against double precision, and bit against bit whatever the
// chunks, the batch, the threads, the order of the blocks and what stale slots hold.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/ops.h"
#include "kernels/test_util.h"

namespace larder {
namespace {

using test::random_values;

struct Shape {
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int window;
};

constexpr Shape kShapes[] = {{9, 3, 64, 0},  {4, 1, 256, 512}, {4, 4, 80, 0}, {8, 2, 128, 100},
                             {6, 2, 18, 37}, {3, 3, 96, 0},    {4, 1, 6, 1}};

// A sequence's keys and values in blocks, the queries of all of its tokens.
class Sequence {
 public:
  Sequence(const Shape& shape, int length, unsigned seed)
      : shape_(shape),
        length_(length),
        q(random_values(size(shape.num_heads), seed, 1.5F)),
        k_(random_values(size(shape.num_kv_heads), seed + 1, 1.5F)),
        v_(random_values(size(shape.num_kv_heads), seed + 2)) {}

  // Blocks in the order that `seed` shuffles; every slot that holds no token is full of garbage.
  void store(const KernelTable& table, unsigned seed) {
    const int blocks = (length_ + kBlockSize - 1) / kBlockSize;
    block_table.resize(static_cast<std::size_t>(blocks));
    std::vector<int> ids(static_cast<std::size_t>(blocks + 3));
    std::iota(ids.begin(), ids.end(), 0);
    std::mt19937 random(seed);
    std::shuffle(ids.begin(), ids.end(), random);
    for (std::size_t i = 0; i < block_table.size(); ++i)
      block_table[i] = static_cast<BlockId>(ids[i]);
    const std::int64_t layer_bytes =
        std::int64_t{shape_.num_kv_heads} * shape_.head_dim * kBlockSize * 2;
    memory_.assign(static_cast<std::size_t>((blocks + 3) * 2 * layer_bytes / 2), 0);
    for (auto& half : memory_) half = float_to_half(static_cast<float>(random() % 131008) - 65504);
    StoreKvArgs args;
    args.kv = view = {reinterpret_cast<std::byte*>(memory_.data()),
                      2 * layer_bytes,
                      0,
                      layer_bytes,
                      shape_.num_kv_heads,
                      shape_.head_dim};
    std::vector<std::int64_t> slots;
    for (int t = 0; t < length_; ++t) {
      slots.push_back(std::int64_t{to_index(block_table[static_cast<std::size_t>(t / 16)])} * 16 +
                      t % 16);
    }
    args.k = k_.data();
    args.v = v_.data();
    args.ldk = args.ldv = std::int64_t{shape_.num_kv_heads} * shape_.head_dim;
    args.slots = slots.data();
    table.store_kv(args, 0, length_);
  }

  AttentionArgs args(std::vector<float>& out) const {
    AttentionArgs args;
    args.kv = view;
    args.q = q.data();
    args.out = out.data();
    args.ldq = args.ldo = std::int64_t{shape_.num_heads} * shape_.head_dim;
    args.num_heads = shape_.num_heads;
    args.scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    args.window = shape_.window;
    if (!q_sinks.empty()) args.q_sinks = q_sinks.data();
    return args;
  }

  // Queries in chunks, one call each.
  std::vector<float> run(const KernelTable& table, ThreadPool& pool, int chunk) const {
    std::vector<float> out(q.size(), NAN);
    AttentionOp op(pool, chunk, shape_.num_heads, shape_.head_dim, length_);
    for (int begin = 0; begin < length_; begin += chunk) {
      const int end = std::min(begin + chunk, length_);
      const std::vector<BlockId> known = known_blocks(begin, end);
      const AttentionSequence sequence{begin, end - begin, end, known.data(), window, num_sinks};
      AttentionArgs call = args(out);
      call.sequences = &sequence;
      call.num_sequences = 1;
      op.run(table, call);
    }
    return out;
  }

  // The table as queries [begin, end) need it: no block that they do not see.
  std::vector<BlockId> known_blocks(int begin, int end) const {
    std::vector<BlockId> known(block_table.begin(), block_table.begin() + (end + 15) / kBlockSize);
    for (int block = 0; block < static_cast<int>(known.size()); ++block) {
      if ((block + 1) * kBlockSize > first_seen(begin) || block * kBlockSize < sinks()) continue;
      known[static_cast<std::size_t>(block)] = BlockId::kNone;
    }
    return known;
  }

  // Token t, head h, in double precision, from what FP16 keeps of K and V.
  std::vector<double> reference(int t, int head) const {
    const int dim = shape_.head_dim;
    const int kv_head = head / (shape_.num_heads / shape_.num_kv_heads);
    const int first = first_seen(t);
    std::vector<int> keys;
    for (int key = 0; key <= t; ++key) {
      if (key < sinks() || key >= first) keys.push_back(key);
    }
    const auto stored = [&](const std::vector<float>& from, int token, int d) {
      const int at = (token * shape_.num_kv_heads + kv_head) * dim + d;
      return double{half_to_float(float_to_half(from[static_cast<std::size_t>(at)]))};
    };
    std::vector<double> weights;
    for (const int key : keys) {
      double score = 0;
      const std::vector<float>& from = key < sinks() && sinks() < first ? q_sinks : q;
      for (int d = 0; d < dim; ++d) {
        score += stored(k_, key, d) *
                 from[static_cast<std::size_t>((t * shape_.num_heads + head) * dim + d)];
      }
      weights.push_back(score / std::sqrt(dim));
    }
    const double largest = *std::max_element(weights.begin(), weights.end());
    double total = 0;
    std::vector<double> out(static_cast<std::size_t>(dim));
    for (double& weight : weights) total += weight = std::exp(weight - largest);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const double weight = weights[i] / total;
      for (int d = 0; d < dim; ++d)
        out[static_cast<std::size_t>(d)] += weight * stored(v_, keys[i], d);
    }
    return out;
  }

  std::vector<BlockId> block_table;
  PagedKvView view;
  int window = 0;  // the sequence's
  int num_sinks = 0;
  std::vector<float> q_sinks;

 private:
  int sinks() const { return shape_.window == 0 && window > 0 ? num_sinks : 0; }
  int first_seen(int t) const {
    int first = 0;
    for (const int size : {shape_.window, window}) {
      if (size > 0) first = std::max(first, t - size + 1);
    }
    return first;
  }
  std::size_t size(int heads) const {
    return static_cast<std::size_t>(length_ * heads * shape_.head_dim);
  }

  Shape shape_;
  int length_;

 public:
  std::vector<float> q;

 private:
  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<std::uint16_t> memory_;
};

TEST(Attention, MatchesDoublePrecision) {
  ThreadPool pool(2);
  for (const Shape& shape : kShapes) {
    const int length = 700;
    Sequence sequence(shape, length, 11);
    for (const KernelTable* table : test::tables()) {
      sequence.store(*table, 1);
      const auto out = sequence.run(*table, pool, length);
      for (const int t : {0, 1, 15, 16, 63, 64, 300, 511, 512, 575, 699}) {
        for (int head = 0; head < shape.num_heads; ++head) {
          const auto expected = sequence.reference(t, head);
          for (int d = 0; d < shape.head_dim; ++d) {
            ASSERT_NEAR(
                out[static_cast<std::size_t>((t * shape.num_heads + head) * shape.head_dim + d)],
                expected[static_cast<std::size_t>(d)], 5e-6)
                << table->name << " dim " << shape.head_dim << " token " << t << " head " << head;
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
    for (const KernelTable* table : test::tables()) {
      // Generic is slow: the shapes that differ most.
      if (table->isa == Isa::kGeneric && shape.head_dim > 80) continue;
      sequence.store(*table, 1);
      const auto whole = sequence.run(*table, one, length);
      for (const int chunk : {1, 7, 16, 100, 512}) {
        if (table->isa == Isa::kGeneric && chunk < 100) continue;
        sequence.store(*table, static_cast<unsigned>(chunk));
        ASSERT_TRUE(test::same_bits(sequence.run(*table, two, chunk), whole))
            << table->name << " dim " << shape.head_dim << " chunk " << chunk;
      }
      ASSERT_TRUE(test::same_bits(sequence.run(*table, two, length), whole));
      sequence.store(*table, 99);
      ASSERT_TRUE(test::same_bits(sequence.run(*table, one, 64), whole));
    }
  }
}

struct Streaming {
  int layer_window;
  int window;
  int num_sinks;
};
constexpr Streaming kStreaming[] = {{0, 100, 16},  {0, 37, 48},   {0, 600, 64}, {0, 512, 512},
                                    {300, 100, 16}, {100, 300, 16}, {0, 1, 128},  {0, 90, 0}};

Sequence streaming_sequence(const Streaming& streaming, int length) {
  Sequence sequence({4, 2, 24, streaming.layer_window}, length, 11);
  sequence.window = streaming.window;
  sequence.num_sinks = streaming.num_sinks;
  sequence.q_sinks = random_values(sequence.q.size(), 77, 1.5F);
  return sequence;
}

TEST(Attention, SequencesWithWindowAndSinksMatchDoublePrecision) {
  ThreadPool pool(2);
  const int length = 1300;
  for (const Streaming& streaming : kStreaming) {
    Sequence sequence = streaming_sequence(streaming, length);
    for (const KernelTable* table : test::tables()) {
      sequence.store(*table, 1);
      const auto out = sequence.run(*table, pool, length);
      for (const int t : {0, 15, 36, 63, 84, 85, 115, 116, 117, 300, 663, 664, 1023, 1024, 1299}) {
        for (int head = 0; head < 4; ++head) {
          const auto expected = sequence.reference(t, head);
          for (int d = 0; d < 24; ++d) {
            ASSERT_NEAR(out[static_cast<std::size_t>((t * 4 + head) * 24 + d)],
                        expected[static_cast<std::size_t>(d)], 5e-6)
                << table->name << " window " << streaming.window << " sinks "
                << streaming.num_sinks << " token " << t;
          }
        }
      }
    }
  }
}

// The blocks of unseen tokens are kNone in each call.
TEST(Attention, SequencesWithWindowAndSinksAreExact) {
  ThreadPool one(1);
  ThreadPool two(2);
  const int length = 1300;
  for (const Streaming& streaming : kStreaming) {
    Sequence sequence = streaming_sequence(streaming, length);
    for (const KernelTable* table : test::tables()) {
      sequence.store(*table, 1);
      const auto whole = sequence.run(*table, one, length);
      for (const int chunk : {1, 7, 100}) {
        ASSERT_TRUE(test::same_bits(sequence.run(*table, two, chunk), whole))
            << table->name << " window " << streaming.window << " chunk " << chunk;
      }
    }
  }
}

// What a token costs does not grow with its position.
TEST(Attention, SplitsAreBoundedByWindowAndSinks) {
  AttentionArgs args;
  AttentionSequence sequence{0, 1, 100000, nullptr, 1024, 64};
  args.sequences = &sequence;
  args.num_sequences = 1;
  SplitRange splits = attention_splits(args, {0, 0, 0, 1, -1});
  EXPECT_EQ(num_splits(splits), 4);
  EXPECT_EQ(split_at(splits, 0), 0);
  EXPECT_EQ(split_at(splits, 1), (100000 - 1024) / kKeySplit);
  EXPECT_EQ(split_at(splits, 3), 99999 / kKeySplit);
  sequence.num_sinks = 0;
  splits = attention_splits(args, {0, 0, 0, 1, -1});
  EXPECT_EQ(num_splits(splits), 3);
  EXPECT_EQ(split_at(splits, 0), (100000 - 1024) / kKeySplit);
}

// Several sequences in a batch, prefill beside decode, each as if alone.
TEST(Attention, NeighboursInABatchDoNotChangeABit) {
  ThreadPool pool(2);
  const Shape shape = kShapes[0];
  const int dim = shape.num_heads * shape.head_dim;
  for (const KernelTable* table : test::tables()) {
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
      q.insert(q.end(), sequence.q.begin() + piece.begin * dim,
               sequence.q.begin() + piece.end * dim);
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
    EXPECT_TRUE(test::same_bits(out, expected)) << table->name;
  }
}

// The table's split and merge, which a batch of one long sequence takes, whatever the pool decides.
TEST(Attention, SplitsMergedApartHaveTheSameBits) {
  const Shape shape = kShapes[3];
  for (const int window : {0, 700}) {
    for (const KernelTable* table : test::tables()) {
      Shape windowed = shape;
      windowed.window = window;
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
