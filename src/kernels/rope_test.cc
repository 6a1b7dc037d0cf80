// Queries and keys at their positions, of every instruction set.
#include "kernels/rope_test_support.h"

namespace larder {
namespace {

TEST(Rope, TurnsPairsAndStoresWhatComesOfThem) {
  const KvTypes types[] = {{KvType::kF16, KvType::kBF16}, {KvType::kInt8, KvType::kInt4}};
  for (const KernelTable* table : test::tables()) {
    const auto norm = [&](const std::vector<float>& x, const std::vector<float>& weight) {
      std::vector<float> from = x, out(x.size());
      table->rms_norm({.x = from.data(),
                       .weight = weight.data(),
                       .epsilon = test::RopeRows::kEpsilon,
                       .out = out.data(),
                       .num_cols = static_cast<int>(weight.size())},
                      0, static_cast<int>(x.size() / weight.size()));
      return out;
    };
    test::for_rope_shapes(types, [&](const test::RopeShape& shape) {
      test::RopeRows expected(shape), rows(shape);
      expected.place(norm, *table);
      table->store_kv(rows.args(), 1, 3);
      table->store_kv(rows.args(), 3, 4);
      rows.expect_same(expected, table->name);
    });
  }
}

TEST(Rope, LeavesQueriesThatNobodyWants) {
  const test::RopeShape shape{
      .head_dim = 24, .rope_dim = 22, .interleaved = false, .has_norms = true, .has_sinks = true};
  for (const KernelTable* table : test::tables()) {
    test::RopeRows all(shape), rows(shape);
    const std::vector<float> q = rows.q, q_sinks = rows.q_sinks;
    table->store_kv(all.args(), 1, 4);
    StoreKvArgs args = rows.args();
    args.rope.num_heads = 0;
    table->store_kv(args, 1, 4);
    EXPECT_TRUE(test::same_bits(rows.q, q) && test::same_bits(rows.q_sinks, q_sinks)) << table->name;
    EXPECT_TRUE(test::same_bits(rows.k, all.k)) << table->name;
    EXPECT_TRUE(rows.block == all.block) << table->name;
  }
}

}  // namespace
}  // namespace larder
