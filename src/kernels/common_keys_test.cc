#include "kernels/common_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

#include "kernels/attention_test_support.h"

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr CommonKeyRule kAny = {.max_states = 64, .min_saved_steps = 1};

// Sequences of one query whose block tables are written by hand.
class CommonKeys : public ::testing::Test {
 protected:
  // Behind the first num_shared tokens of another one.
  int add(int context_len, int other = -1, int num_shared = 0) {
    std::vector<BlockId> table;
    for (int i = 0; i * kBlockSize < context_len; ++i)
      table.push_back(i * kBlockSize < num_shared ? tables_[static_cast<std::size_t>(other)][static_cast<std::size_t>(i)]
                                                  : BlockId{next_block_++});
    tables_.push_back(table);
    sequences_.push_back({.first_row = static_cast<int>(sequences_.size()), .num_tokens = 1, .context_len = context_len});
    return static_cast<int>(sequences_.size()) - 1;
  }
  // (keys, sequences) of each.
  std::vector<std::pair<int, std::vector<int>>> find(const CommonKeyRule& rule = kAny) {
    for (std::size_t i = 0; i < tables_.size(); ++i) sequences_[i].block_table = tables_[i].data();
    std::vector<std::pair<int, std::vector<int>>> found;
    int num_states = 0;
    for (const larder::CommonKeys& common : finder_.find(sequences_, rule)) {
      found.push_back({common.num_keys, {common.sequences, common.sequences + common.num_sequences}});
      for (const int at : found.back().second) {
        EXPECT_EQ(sequences_[static_cast<std::size_t>(at)].num_common, common.num_keys);
        EXPECT_EQ(sequences_[static_cast<std::size_t>(at)].common_state, num_states++);
      }
    }
    return found;
  }

  std::vector<AttentionSequence> sequences_;

 private:
  std::vector<std::vector<BlockId>> tables_;
  int next_block_ = 7;
  CommonKeyFinder finder_;
};

TEST_F(CommonKeys, AreWholeStepsOfTheSameBlocks) {
  add(500);
  add(700, 0, 240);
  add(600);
  EXPECT_THAT(find(), ElementsAre(Pair(192, ElementsAre(0, 1))));
  EXPECT_EQ(sequences_[2].num_common, 0);
}

TEST_F(CommonKeys, EndWithTheShortest) {
  add(640);
  add(641, 0, 640);
  add(300, 0, 300);
  add(63, 0, 63);  // has no whole step
  // Two that go on together save more.
  EXPECT_THAT(find(), ElementsAre(Pair(640, ElementsAre(0, 1))));
  add(310, 0, 300);
  add(320, 0, 300);
  EXPECT_THAT(find(), ElementsAre(Pair(256, UnorderedElementsAre(0, 1, 2, 4, 5))));
}

TEST_F(CommonKeys, AreOfThePrefixThatSavesMost) {
  add(1000);
  for (int i = 1; i < 4; ++i) add(1000, 0, 128);
  for (int i = 4; i < 8; ++i) add(1000, 3, 512);
  for (int i = 8; i < 10; ++i) add(1000, 1, 512);
  // 9 x 2 steps, or 4 x 8 and 2 x 8.
  EXPECT_THAT(find(), UnorderedElementsAre(Pair(512, ElementsAre(1, 8, 9)),
                                                      Pair(512, ElementsAre(3, 4, 5, 6, 7))));
}

TEST_F(CommonKeys, AreOfSingleQueriesThatSeeThemAll) {
  add(1000);
  for (int i = 1; i < 6; ++i) add(1000, 0, 512);
  sequences_[1].num_tokens = 2;
  sequences_[2].window = 999;
  sequences_[3].window = 1000;
  EXPECT_THAT(find(), ElementsAre(Pair(512, ElementsAre(0, 3, 4, 5))));
  EXPECT_THAT(find({.window = 999, .max_states = 64, .min_saved_steps = 1}), ElementsAre());
  EXPECT_THAT(find({.window = 1000, .max_states = 64, .min_saved_steps = 1}),
              ElementsAre(Pair(512, ElementsAre(0, 3, 4, 5))));
}

TEST_F(CommonKeys, PayAndHaveRoom) {
  add(1000);
  for (int i = 1; i < 6; ++i) add(1000, 0, 512);
  EXPECT_THAT(find({.max_states = 64, .min_saved_steps = 40}).size(), 1);
  EXPECT_THAT(find({.max_states = 64, .min_saved_steps = 41}).size(), 0);
  EXPECT_THAT(find({.max_states = 4, .min_saved_steps = 1}), ElementsAre(Pair(512, ElementsAre(0, 1, 2, 3))));
  EXPECT_THAT(find({.max_states = 1, .min_saved_steps = 1}), ElementsAre());
  EXPECT_THAT(find({.max_states = 0, .min_saved_steps = 1}), ElementsAre());
}

// Decoding queries of tokens behind the same blocks, beside a chunk of another: bit for bit what each gives alone.
void expect_common_keys_do_not_matter(const Shape& shape, const KernelTable* table) {
  ThreadPool pool(2);
  const int length = 1300;
  const int dim = shape.num_heads * shape.head_dim;
  Sequence sequence(shape, length, 11);
  if (shape.head_dim % 64 == 0) sequence.use_random_basis(7);
  sequence.store(*table, 5);
  const auto whole = sequence.run(*table, pool, length);
  CommonKeyFinder finder;
  // The last keys in common: of a split that has begun, of the first one, a split's end, a query's own.
  for (const std::vector<int>& contexts : {std::vector<int>{1290, 1300, 1250, 1240, 1299}, {500, 490, 470}, {1100, 1030}, {512, 513}}) {
    std::vector<AttentionSequence> sequences = {{.first_row = 0, .num_tokens = 9, .context_len = 900}};
    std::vector<float> q(sequence.q_basis().begin() + 891 * dim, sequence.q_basis().begin() + 900 * dim);
    std::vector<float> expected(whole.begin() + 891 * dim, whole.begin() + 900 * dim);
    for (const int context_len : contexts) {
      const std::ptrdiff_t at = std::ptrdiff_t{context_len - 1} * dim;
      sequences.push_back({.first_row = static_cast<int>(q.size()) / dim, .num_tokens = 1, .context_len = context_len});
      q.insert(q.end(), sequence.q_basis().begin() + at, sequence.q_basis().begin() + at + dim);
      expected.insert(expected.end(), whole.begin() + at, whole.begin() + at + dim);
    }
    for (AttentionSequence& each : sequences) each.block_table = sequence.block_table.data();
    std::vector<float> out(q.size(), NAN);
    AttentionArgs args = sequence.args(out);
    args.q = q.data();
    args.sequences = sequences.data();
    args.num_sequences = static_cast<int>(sequences.size());
    const auto common = finder.find(sequences, {.window = shape.window, .max_states = 64, .min_saved_steps = 1});
    ASSERT_EQ(common.size(), 1u);
    ASSERT_EQ(common[0].num_sequences, static_cast<int>(contexts.size()));
    args.common = common.data();
    args.num_common = 1;
    AttentionOp op(pool, 20, shape.num_heads, shape.head_dim, length);
    op.run(*table, args);
    EXPECT_TRUE(test::same_bits(out, expected)) << table->name << ' ' << shape << " contexts from " << contexts[0];
  }
}

TEST(CommonKeysOfAttention, DoNotChangeABit) {
  for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
    const KvTypes types = {type, type};
    for (const KernelTable* table : test::tables_of_attention()) {
      if (table->attention_common == nullptr) continue;
      expect_common_keys_do_not_matter({9, 3, 64, 0, types}, table);
      expect_common_keys_do_not_matter({8, 2, 18, 0, types, false, true}, table);
      expect_common_keys_do_not_matter({6, 3, 18, 0, types, false, false, 2}, table);
      if (table->isa == Isa::kGeneric) continue;  // is slow
      for (const Shape& shape : {Shape{4, 1, 256, 1300, types}, {4, 4, 80, 0, types}, {6, 2, 18, 0, types}})
        expect_common_keys_do_not_matter(shape, table);
    }
  }
}

// What the server's batches take: worth it or not, and never where threads would have nothing to do.
TEST(CommonKeysOfAttention, AreTakenWhereTheyPay) {
  const auto num_found = [](int num_sequences, int num_shared, int num_threads, int num_kv_heads = 3) {
    ThreadPool pool(num_threads);
    const AttentionOp op(pool, 64, 3 * num_kv_heads, 64, 8192);
    std::vector<BlockId> table(512);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = BlockId{static_cast<std::int32_t>(i)};
    std::vector<std::vector<BlockId>> tables(static_cast<std::size_t>(num_sequences), table);
    std::vector<AttentionSequence> sequences;
    for (auto& own : tables) {
      const auto at = static_cast<std::size_t>(num_shared / kBlockSize);
      own[at] = BlockId{1000 + static_cast<std::int32_t>(sequences.size())};
      sequences.push_back({.num_tokens = 1, .context_len = 8192, .block_table = own.data()});
    }
    AttentionArgs args;
    args.kv.num_kv_heads = num_kv_heads;
    args.kv.head_dim = 64;
    args.num_heads = 3 * num_kv_heads;
    CommonKeyFinder finder;
    return op.find_common(args, sequences, finder).size();
  };
  EXPECT_EQ(num_found(16, 448, 2), 1u);
  EXPECT_EQ(num_found(16, 32, 2), 0u);   // no whole step
  EXPECT_EQ(num_found(2, 4096, 2), 0u);  // keys are shared out between threads
  EXPECT_EQ(num_found(4, 4096, 2), 1u);
  EXPECT_EQ(num_found(16, 4096, 64), 0u);
  EXPECT_EQ(num_found(64, 4096, 64, 8), 1u);
}

}  // namespace
}  // namespace larder
