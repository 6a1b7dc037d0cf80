// What store_kv leaves in a block: close to what it was given, a token's bytes by that token alone,
// and the same bytes on every instruction set.
#include <cmath>

#include "kernels/attention_test_support.h"

namespace larder {
namespace {

constexpr KvType kTypes[] = {KvType::kF16, KvType::kBF16, KvType::kFp8, KvType::kInt8,
                             KvType::kInt4};
constexpr int kHeads = 2;

// One block of `dim` values per head, written token by token.
struct Block {
  Block(KvType type, int dim, int background)
      : bytes(static_cast<std::size_t>(
                  kHeads * (kv_key_size_bytes(type, dim) + kv_value_size_bytes(type, dim))),
              std::byte(background)),
        view{.base = bytes.data(),
             .block_stride_bytes = static_cast<std::int64_t>(bytes.size()),
             .k_offset_bytes = 0,
             .v_offset_bytes = kHeads * kv_key_size_bytes(type, dim),
             .num_kv_heads = kHeads,
             .head_dim = dim,
             .types = {type, type}} {}

  void store(const KernelTable& table, const std::vector<float>& k, const std::vector<float>& v,
             const std::vector<std::int64_t>& slots) {
    const std::int64_t width = std::int64_t{kHeads} * view.head_dim;
    table.store_kv({view, k.data(), v.data(), width, width, slots.data()}, 0,
                   static_cast<int>(slots.size()));
  }

  // In the basis that was given; key_balance and key_order are null.
  std::vector<double> values(bool is_key, int offset, int head) const {
    const KvType type = view.types.k;
    const int dim = view.head_dim;
    const std::byte* at =
        bytes.data() + (is_key ? head * kv_key_size_bytes(type, dim)
                               : view.v_offset_bytes + head * kv_value_size_bytes(type, dim));
    std::vector<double> values;
    for (int d = 0; d < dim; ++d)
      values.push_back(stored_value(type, is_key, at, offset, d, dim));
    if (type == KvType::kInt8 && is_key) turn(values.data(), dim);
    if (type == KvType::kInt4) {
      const int wide = is_key ? kv_num_wide(dim) : 0;
      if (is_key && kv_is_large(dim)) turn(values.data(), wide);
      turn(values.data() + wide, dim - wide);
    }
    return values;
  }

  std::vector<std::byte> bytes;
  PagedKvView view;
};

std::vector<std::int64_t> all_slots() {
  std::vector<std::int64_t> slots(kBlockSize);
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

// Of the root mean square of a head's values.
double largest_error(KvType type) {
  switch (type) {
    case KvType::kF16:
      return 0x1p-11;
    case KvType::kBF16:
      return 0x1p-8;
    case KvType::kFp8:
      return 0.04;
    case KvType::kInt8:
      return 0.012;
    case KvType::kInt4:
      return 0.14;
  }
  return 0;
}

TEST(StoreKv, StoresWhatItIsGiven) {
  for (const KvType type : kTypes) {
    for (const int dim : {6, 18, 64, 80, 128, 256}) {
      const auto count = static_cast<std::size_t>(kBlockSize * kHeads * dim);
      const auto k = test::random_values(count, 1, 2);
      auto v = test::random_values(count, 2, 1e-2F);
      for (int i = 0; i < dim; ++i) v[static_cast<std::size_t>(i)] = 0;
      for (const KernelTable* table : test::tables()) {
        Block block(type, dim, 0x7F);
        block.store(*table, k, v, all_slots());
        for (int i = 0; i < 2 * kBlockSize * kHeads; ++i) {
          const bool is_key = i % 2 == 0;
          const int row = i / 2;
          const auto stored = block.values(is_key, row / kHeads, row % kHeads);
          const float* given = (is_key ? k : v).data() + row * dim;
          double squares = 0, errors = 0;
          for (int d = 0; d < dim; ++d) {
            squares += given[d] * given[d];
            errors += std::pow(stored[static_cast<std::size_t>(d)] - given[d], 2);
          }
          // Few values: the error of a single one may be larger.
          const double bound = largest_error(type) * (dim < 64 ? 1.6 : 1);
          EXPECT_LE(std::sqrt(errors), bound * std::sqrt(squares) + 1e-4)
              << table->name << " dim " << dim << " type " << static_cast<int>(type);
        }
      }
    }
  }
}

TEST(StoreKv, RowsAreSharedOutByWholeBlocks) {
  const std::vector<std::int64_t> slots = {5, 6, 32, 33, 34, 64, 47, 80};
  const std::vector<int> expected = {0, 2, 2, 5, 5, 5, 6, 7, 8};
  for (int row = 0; row <= 8; ++row)
    EXPECT_EQ(next_block(slots, row), expected[static_cast<std::size_t>(row)]) << row;
  EXPECT_EQ(next_block({}, 0), 0);
}

// Balanced, in another order and turned: queries and keys still give the same scores.
TEST(StoreKv, TheKeyBasisKeepsScores) {
  for (const KvType type : {KvType::kInt8, KvType::kInt4}) {
    for (const int dim : {18, 64, 80, 128, 256}) {
      const auto count = static_cast<std::size_t>(kHeads * dim);
      const auto k = test::random_values(count, 1);
      auto q = test::random_values(3 * count, 2);
      const auto given = q;
      std::vector<float> balance(count);
      std::vector<std::int16_t> order(count);
      for (std::size_t i = 0; i < count; ++i) {
        balance[i] = 0.25F + static_cast<float>(i % 7);
        order[i] = static_cast<std::int16_t>(dim - 1 - static_cast<int>(i) % dim);
      }
      for (const KernelTable* table : test::tables()) {
        Block block(type, dim, 0);
        block.view.key_balance = balance.data();
        block.view.key_order = order.data();
        block.store(*table, k, k, {5});
        // Three query heads for each KV head.
        q = given;
        table->to_key_basis(block.view, 3 * kHeads, q.data(), 3 * kHeads * dim, 0, 1);
        for (int head = 0; head < 3 * kHeads; ++head) {
          const int kv_head = head / 3;
          double expected = 0, actual = 0, k_squares = 0, q_squares = 0;
          for (int d = 0; d < dim; ++d) {
            const auto at = static_cast<std::size_t>(head * dim + d);
            const float key = k[static_cast<std::size_t>(kv_head * dim + d)];
            const std::byte* stored_head =
                block.bytes.data() + kv_head * kv_key_size_bytes(type, dim);
            const double stored = stored_value(type, true, stored_head, 5, d, dim);
            expected += double{given[at]} * key;
            actual += double{q[at]} * stored;
            k_squares += stored * stored;
            q_squares += double{q[at]} * q[at];
          }
          // The rounding of codes alone.
          EXPECT_NEAR(actual, expected, largest_error(type) * std::sqrt(k_squares * q_squares) / 2)
              << table->name << " dim " << dim << " type " << static_cast<int>(type);
        }
      }
    }
  }
}

// Keys of which a few dimensions are large where queries are small: balanced, these take no precision from the others.
TEST(StoreKv, BalancedKeysOfBytesKeepMoreOfTheScores) {
  constexpr int kDim = 64;
  constexpr float kSpread = 50;
  auto k = test::random_values(kBlockSize * kHeads * kDim, 1);
  auto q = test::random_values(kHeads * kDim, 2);
  std::vector<float> balance(kHeads * kDim, 1);
  for (std::size_t i = 0; i < k.size(); ++i)
    if (i % 16 == 0) k[i] *= kSpread;
  for (std::size_t i = 0; i < q.size(); i += 16) {
    q[i] /= kSpread;
    balance[i] = 1 / kSpread;
  }
  for (const KernelTable* table : test::tables()) {
    double errors[2] = {};
    for (const bool is_balanced : {false, true}) {
      Block block(KvType::kInt8, kDim, 0);
      if (is_balanced) block.view.key_balance = balance.data();
      block.store(*table, k, k, all_slots());
      auto turned = q;
      table->to_key_basis(block.view, kHeads, turned.data(), kHeads * kDim, 0, 1);
      for (int i = 0; i < kBlockSize * kHeads; ++i) {
        const int head = i % kHeads;
        double score = 0;
        for (int d = 0; d < kDim; ++d) {
          const std::byte* stored = block.bytes.data() + head * kv_key_size_bytes(KvType::kInt8, kDim);
          const auto at = static_cast<std::size_t>(head * kDim + d);
          score += turned[at] * stored_value(KvType::kInt8, true, stored, i / kHeads, d, kDim);
          score -= double{q[at]} * k[static_cast<std::size_t>(i * kDim + d)];
        }
        errors[is_balanced] += score * score;
      }
    }
    EXPECT_LT(errors[true], errors[false] / 50) << table->name;
  }
}

TEST(StoreKv, ATokensBytesAreItsOwn) {
  for (const KvType type : kTypes) {
    for (const int dim : {18, 64, 80, 128}) {
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

// The largest of a token's values has the largest number there is, so the scale is 1 here; every number stands for itself, what lies
// between two becomes the nearer one and in the middle the one whose last bit is zero.
TEST(StoreKv, RoundsToTheNearestE4m3) {
  std::vector<double> numbers = {0};  // from the format's definition
  for (int bits = 1; bits < 127; ++bits) {
    const int exponent = bits / 8;
    numbers.push_back(exponent == 0 ? std::ldexp(bits, -9) : std::ldexp(1 + bits % 8 / 8.0, exponent - 7));
  }
  std::vector<float> given;
  std::vector<int> expected;
  for (int bits = 0; bits < 127; ++bits) {
    const double here = numbers[static_cast<std::size_t>(bits)];
    const auto put = [&](double value, int number) {
      given.push_back(static_cast<float>(value));
      expected.push_back(number);
      given.push_back(static_cast<float>(-value));
      expected.push_back(number | 128);
    };
    put(here, bits);
    if (bits == 126) break;
    const double middle = (here + numbers[static_cast<std::size_t>(bits) + 1]) / 2;
    put(std::nextafter(static_cast<float>(middle), 0.0F), bits);
    put(middle, bits % 2 == 0 ? bits : bits + 1);
    put(std::nextafter(static_cast<float>(middle), 1e9F), bits + 1);
  }
  const int dim = static_cast<int>(given.size());
  for (const KernelTable* table : test::tables()) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(2 * kv_key_size_bytes(KvType::kFp8, dim)));
    const PagedKvView view{.base = bytes.data(),
                           .block_stride_bytes = static_cast<std::int64_t>(bytes.size()),
                           .k_offset_bytes = 0,
                           .v_offset_bytes = kv_key_size_bytes(KvType::kFp8, dim),
                           .num_kv_heads = 1,
                           .head_dim = dim,
                           .types = {KvType::kFp8, KvType::kFp8}};
    const std::int64_t slot = 3;
    table->store_kv({view, given.data(), given.data(), dim, dim, &slot}, 0, 1);
    for (int d = 0; d < dim; ++d) {
      const auto at = static_cast<std::size_t>(d);
      EXPECT_EQ(byte_at(bytes.data(), d * 16 + 3), expected[at]) << table->name << ' ' << given[at];
      EXPECT_EQ(byte_at(bytes.data() + view.v_offset_bytes, 32 + 3 * dim + d), expected[at])
          << table->name << ' ' << given[at];
    }
  }
}

TEST(StoreKv, EveryInstructionSetStoresTheSameBytes) {
  for (const KvType type : kTypes) {
    for (const int dim : {80, 128}) {
      auto k = test::random_values(kBlockSize * kHeads * static_cast<std::size_t>(dim), 1, 3);
      const auto v = test::random_values(k.size(), 2);
      k[3] = NAN;
      k[200] = INFINITY;
      k[500] = -1e38F;
      Block expected(type, dim, 0);
      expected.store(*kernels_for(Isa::kGeneric), k, v, all_slots());
      for (const double value : expected.values(true, 1, 0)) EXPECT_TRUE(std::isfinite(value));
      for (const KernelTable* table : test::tables()) {
        Block block(type, dim, 0);
        block.store(*table, k, v, all_slots());
        EXPECT_EQ(block.bytes, expected.bytes) << table->name << " type " << static_cast<int>(type);
      }
    }
  }
}

}  // namespace
}  // namespace larder
