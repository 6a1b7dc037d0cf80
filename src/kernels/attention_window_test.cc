// Attention of sequences with a window and sinks of their own.
#include "kernels/attention_test_support.h"

namespace larder {
namespace {

struct Streaming {
  int layer_window;
  int window;
  int num_sinks;
  float score_cap = 0;
};
constexpr Streaming kStreaming[] = {{0, 100, 16},  {0, 37, 48},   {0, 600, 64}, {0, 512, 512},
                                    {300, 100, 16}, {100, 300, 16}, {0, 1, 128},  {0, 90, 0},
                                    {1 << 30, 0, 0}, {0, 37, 48, 1.5F}};

Sequence streaming_sequence(const Streaming& streaming, int length, KvTypes types = {}) {
  Sequence sequence({4, 2, 24, streaming.layer_window, types, false, false, streaming.score_cap}, length, 11);
  sequence.window = streaming.window;
  sequence.num_sinks = streaming.num_sinks;
  sequence.q_sinks = test::random_values(sequence.q.size(), 77, 1.5F);
  return sequence;
}

// Every span in FP16, and one of them, with a cap and without, in every other type.
std::vector<std::pair<Streaming, KvTypes>> streaming_cases() {
  std::vector<std::pair<Streaming, KvTypes>> cases;
  for (const Streaming& streaming : kStreaming) cases.push_back({streaming, {}});
  for (const KvType type : {KvType::kBF16, KvType::kFp8, KvType::kInt8, KvType::kInt4})
    for (const Streaming& streaming : {kStreaming[1], kStreaming[9]}) cases.push_back({streaming, {type, type}});
  return cases;
}

TEST(Attention, SequencesWithWindowAndSinksMatchDoublePrecision) {
  ThreadPool pool(2);
  const int length = 1300;
  for (const auto& [streaming, types] : streaming_cases()) {
    Sequence sequence = streaming_sequence(streaming, length, types);
    for (const KernelTable* table : test::tables_of_attention()) {
      sequence.store(*table, 1);
      const auto out = sequence.run(*table, pool, length);
      for (const int t : {0, 15, 36, 63, 84, 85, 115, 116, 117, 300, 663, 664, 1023, 1024, 1299}) {
        for (int head = 0; head < 4; ++head) {
          const auto expected = sequence.reference(t, head, multiplies_bf16(table->isa));
          for (int d = 0; d < 24; ++d) {
            ASSERT_NEAR(out[static_cast<std::size_t>((t * 4 + head) * 24 + d)],
                        expected[static_cast<std::size_t>(d)],
                        attention_tolerance(types, *table))
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
  for (const auto& [streaming, types] : streaming_cases()) {
    Sequence sequence = streaming_sequence(streaming, length, types);
    for (const KernelTable* table : test::tables_of_attention()) {
      sequence.store(*table, 1);
      const auto whole = sequence.run(*table, one, length);
      for (const int chunk : {1, 7, 100}) {
        if (table->isa == Isa::kGeneric && chunk < 100) continue;
        if (chunk == 1 && streaming.window != 37) continue;  // a thousand forks for each
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

}  // namespace
}  // namespace larder
