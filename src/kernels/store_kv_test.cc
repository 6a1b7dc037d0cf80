// What store_kv leaves in a block: close to what it was given, a token's bytes by that token alone,
// and the same bytes on every instruction set.
#include <cmath>

#include "kernels/attention_test_support.h"

namespace larder {
namespace {

constexpr KvType kTypes[] = {KvType::kF16, KvType::kBF16, KvType::kInt8};
constexpr int kHeads = 2;

// One block of `dim` values per head, written token by token.
struct Block {
  Block(KvType type, int dim, int background)
      : bytes(static_cast<std::size_t>(2 * kHeads * kv_head_size_bytes(type, dim)),
              std::byte(background)),
        view{.base = bytes.data(),
             .block_stride_bytes = static_cast<std::int64_t>(bytes.size()),
             .k_offset_bytes = 0,
             .v_offset_bytes = static_cast<std::int64_t>(bytes.size() / 2),
             .num_kv_heads = kHeads,
             .head_dim = dim,
             .types = {type, type}} {}

  void store(const KernelTable& table, const std::vector<float>& k, const std::vector<float>& v,
             const std::vector<std::int64_t>& slots) {
    const std::int64_t width = std::int64_t{kHeads} * view.head_dim;
    table.store_kv({view, k.data(), v.data(), width, width, slots.data()}, 0,
                   static_cast<int>(slots.size()));
  }

  double value(bool is_key, int offset, int head, int d) const {
    const KvType type = view.types.k;
    const std::byte* at = bytes.data() + (is_key ? 0 : view.v_offset_bytes) +
                          head * kv_head_size_bytes(type, view.head_dim);
    return stored_value(type, is_key, at, offset, d, view.head_dim);
  }

  std::vector<std::byte> bytes;
  PagedKvView view;
};

std::vector<std::int64_t> all_slots() {
  std::vector<std::int64_t> slots(kBlockSize);
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

double relative_error(KvType type) {
  switch (type) {
    case KvType::kF16:
      return 0x1p-11;
    case KvType::kBF16:
      return 0x1p-8;
    case KvType::kInt8:
      return 0.505 / 127;  // of the largest of its group
  }
  return 0;
}

TEST(StoreKv, StoresWhatItIsGiven) {
  for (const KvType type : kTypes) {
    for (const int dim : {6, 18, 64, 80, 256}) {
      const auto count = static_cast<std::size_t>(kBlockSize * kHeads * dim);
      const auto k = test::random_values(count, 1, 2);
      auto v = test::random_values(count, 2, 1e-4F);
      for (int i = 0; i < dim; ++i) v[static_cast<std::size_t>(i)] = 0;
      for (const KernelTable* table : test::tables()) {
        Block block(type, dim, 0x7F);
        block.store(*table, k, v, all_slots());
        for (int t = 0; t < kBlockSize; ++t) {
          for (int i = 0; i < kHeads * dim; ++i) {
            const int group = i / dim * dim + i % dim / kInt8Group * kInt8Group;
            const int group_end = std::min(group + kInt8Group, i / dim * dim + dim);
            for (const bool is_key : {true, false}) {
              const float* row = (is_key ? k : v).data() + t * kHeads * dim;
              double largest = std::abs(row[i]);
              for (int j = group; j < group_end && type == KvType::kInt8; ++j) {
                largest = std::max<double>(largest, std::abs(row[j]));
              }
              ASSERT_NEAR(block.value(is_key, t, i / dim, i % dim), row[i],
                          largest * relative_error(type) + 1e-7)
                  << table->name << " dim " << dim << " type " << static_cast<int>(type);
            }
          }
        }
      }
    }
  }
}

TEST(StoreKv, ATokensBytesAreItsOwn) {
  for (const KvType type : kTypes) {
    for (const int dim : {18, 64, 80}) {
      const auto width = static_cast<std::size_t>(kHeads * dim);
      const auto k = test::random_values(kBlockSize * width, 1);
      const auto v = test::random_values(kBlockSize * width, 2);
      for (const KernelTable* table : test::tables()) {
        Block together(type, dim, 0);
        together.store(*table, k, v, all_slots());
        std::size_t num_owned = 0;
        for (std::size_t t = 0; t < kBlockSize; ++t) {
          // Alone, on two backgrounds: what is the same on both is the token's.
          const std::vector<float> k_row(k.begin() + static_cast<long>(t * width),
                                         k.begin() + static_cast<long>((t + 1) * width));
          const std::vector<float> v_row(v.begin() + static_cast<long>(t * width),
                                         v.begin() + static_cast<long>((t + 1) * width));
          Block zeros(type, dim, 0), ones(type, dim, 0xFF);
          zeros.store(*table, k_row, v_row, {static_cast<std::int64_t>(t)});
          ones.store(*table, k_row, v_row, {static_cast<std::int64_t>(t)});
          for (std::size_t i = 0; i < zeros.bytes.size(); ++i) {
            if (zeros.bytes[i] != ones.bytes[i]) {
              ASSERT_TRUE(zeros.bytes[i] == std::byte{0} && ones.bytes[i] == std::byte{0xFF});
              continue;
            }
            ++num_owned;
            ASSERT_EQ(together.bytes[i], zeros.bytes[i]) << table->name << " token " << t;
          }
        }
        EXPECT_EQ(num_owned, together.bytes.size());
      }
    }
  }
}

TEST(StoreKv, EveryInstructionSetStoresTheSameBytes) {
  for (const KvType type : kTypes) {
    const int dim = 80;
    auto k = test::random_values(kBlockSize * kHeads * dim, 1, 3);
    const auto v = test::random_values(kBlockSize * kHeads * dim, 2);
    k[3] = NAN;
    k[200] = INFINITY;
    k[500] = -1e38F;
    Block expected(type, dim, 0);
    expected.store(*kernels_for(Isa::kGeneric), k, v, all_slots());
    EXPECT_EQ(expected.value(true, 0, 0, 3), 0);
    EXPECT_TRUE(std::isfinite(expected.value(true, 200 / 160, 0, 40)));
    for (const KernelTable* table : test::tables()) {
      Block block(type, dim, 0);
      block.store(*table, k, v, all_slots());
      EXPECT_EQ(block.bytes, expected.bytes) << table->name << " type " << static_cast<int>(type);
    }
  }
}

}  // namespace
}  // namespace larder
