// Products of different numbers of rows: what each is alone, whatever it is cut into.
#include "kernels/grouped_matmul.h"

#include "kernels/test_util.h"

namespace larder {
namespace {

using test::TestMatrix;

constexpr int kCols = 256;

TEST(GroupedMatmul, GivesWhatEachProductGivesAlone) {
  const int row_counts[] = {1, 0, 7, 40, 2, 0, 9};
  std::vector<TestMatrix> matrices;
  for (unsigned i = 0; i < std::size(row_counts); ++i)
    matrices.emplace_back(i % 2 == 0 ? GgmlType::kQ4_0 : GgmlType::kQ6_K, 37 + 16 * static_cast<int>(i), kCols, i + 1);
  for (const KernelTable* table : test::tables_of_products()) {
    for (const int num_threads : {1, 2, 3}) {
      ThreadPool pool(num_threads);
      GroupedMatmul grouped(pool, static_cast<int>(matrices.size()));
      std::vector<std::vector<float>> together, alone;
      std::vector<test::TestActivations> inputs;
      std::vector<MatmulArgs> products;
      inputs.reserve(matrices.size());
      for (std::size_t i = 0; i < matrices.size(); ++i) {
        const int rows = row_counts[i];
        const PackedMatrix& w = matrices[i].packed;
        const auto x = test::random_values(static_cast<std::size_t>(rows * kCols), 3);
        inputs.emplace_back(*table, x, rows, kCols);
        together.emplace_back(static_cast<std::size_t>(rows * w.num_rows), -1.0F);
        alone.push_back(together.back());
        products.push_back({.w = &w,
                            .xq = &inputs.back().view,
                            .y = together.back().data(),
                            .num_rows = rows,
                            .ldx = kCols,
                            .ldy = w.num_rows});
      }
      grouped.run(*table, products);
      for (std::size_t i = 0; i < matrices.size(); ++i) {
        MatmulArgs args = products[i];
        args.y = alone[i].data();
        if (args.num_rows > 0) table->matmul(args, 0, args.w->num_panels());
        EXPECT_TRUE(test::same_bits(together[i], alone[i])) << table->name << " product " << i;
      }
    }
  }
}

}  // namespace
}  // namespace larder
