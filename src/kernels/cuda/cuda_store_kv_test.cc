// Keys, values and queries as a device places, stores and turns them: the generic CPU's bytes.
#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/cuda/test_device.h"
#include "kernels/rope_test_support.h"

namespace larder {
namespace {

using test::host;
using test::OnDevice;
using test::random_values;
using test::same_bits;

constexpr int kHeads = 2;
constexpr int kRows = 9;
constexpr int kBlocks = 3;
constexpr KvType kTypes[] = {KvType::kF16, KvType::kBF16, KvType::kFp8, KvType::kInt8, KvType::kInt4};

std::size_t to_size(int n) { return static_cast<std::size_t>(n); }

// A basis of keys, in both memories.
struct Basis {
  Basis(Device& device, int dim) {
    std::mt19937 random(5);
    for (int head = 0; head < kHeads; ++head) {
      std::vector<std::int16_t> places(to_size(dim));
      std::iota(places.begin(), places.end(), std::int16_t{0});
      std::shuffle(places.begin(), places.end(), random);
      order.insert(order.end(), places.begin(), places.end());
      for (int d = 0; d < dim; ++d)
        balance.push_back(0.05F + static_cast<float>(random() % 1000) / 70);
    }
    device_balance = std::make_unique<OnDevice<float>>(device, balance);
    device_order = std::make_unique<OnDevice<std::int16_t>>(device, order);
  }
  void put_into(PagedKvView& on_host, PagedKvView& on_device) const {
    on_host.key_balance = balance.data();
    on_host.key_order = order.data();
    on_device.key_balance = device_balance->data();
    on_device.key_order = device_order->data();
  }

  std::vector<float> balance;
  std::vector<std::int16_t> order;
  std::unique_ptr<OnDevice<float>> device_balance;
  std::unique_ptr<OnDevice<std::int16_t>> device_order;
};

// Rows of many sizes, with what no model should give among them.
std::vector<float> odd_values(int dim, unsigned seed) {
  auto values = random_values(to_size(kRows * kHeads * dim), seed, 3);
  const float sizes[kRows] = {1, 1e-3F, 2e4F, 1, 1e-30F, 0, 1, 1e-9F, 30};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= sizes[i / to_size(kHeads * dim)];
  values[0] = std::numeric_limits<float>::quiet_NaN();
  values[1] = std::numeric_limits<float>::infinity();
  values[2] = -1e38F;
  values[3] = 1e-9F;
  values[to_size(3 * kHeads * dim)] = 500;  // stands out
  values.back() = -0.0F;
  return values;
}

void expect_the_cpus_bytes(Device& device, KvTypes types, int dim, const Basis* basis) {
  SCOPED_TRACE(dim);
  const auto k = odd_values(dim, 1);
  const auto v = odd_values(dim, 2);
  const std::vector<std::int64_t> slots = {0, 1, 47, 16, 20, 33, 2, 15, 46};
  const std::int64_t k_bytes = kHeads * kv_key_size_bytes(types.k, dim);
  const std::int64_t v_bytes = kHeads * kv_value_size_bytes(types.v, dim);
  std::vector<std::byte> bytes(static_cast<std::size_t>(kBlocks * (k_bytes + v_bytes)),
                               std::byte{0xA5});
  OnDevice<std::byte> device_bytes(device, bytes);
  StoreKvArgs args;
  args.kv = {.base = bytes.data(),
             .block_stride_bytes = k_bytes + v_bytes,
             .k_offset_bytes = 0,
             .v_offset_bytes = k_bytes,
             .num_kv_heads = kHeads,
             .head_dim = dim,
             .types = types};
  args.ldk = args.ldv = kHeads * dim;
  StoreKvArgs device_args = args;
  if (basis != nullptr) basis->put_into(args.kv, device_args.kv);
  args.k = k.data();
  args.v = v.data();
  args.slots = slots.data();
  host().store_kv(args, 0, kRows);
  OnDevice<float> device_k(device, k), device_v(device, v);
  OnDevice<std::int64_t> device_slots(device, slots);
  device_args.kv.base = device_bytes.data();
  device_args.k = device_k.data();
  device_args.v = device_v.data();
  device_args.slots = device_slots.data();
  device.kernels().store_kv(device_args, 1, kRows);
  device.kernels().store_kv(device_args, 0, 1);
  const std::vector<std::byte> stored = device_bytes.read();
  const auto differs = std::mismatch(stored.begin(), stored.end(), bytes.begin()).first;
  EXPECT_TRUE(differs == stored.end())
      << "types " << static_cast<int>(types.k) << " " << static_cast<int>(types.v) << " byte "
      << differs - stored.begin() << " of " << k_bytes << " and " << v_bytes;
}

TEST(CudaStoreKv, WritesTheCpusBytes) {
  const auto device = open_test_device();
  for (const int dim : {6, 18, 24, 32, 64, 80, 96, 126, 128, 256, 504, 512}) {
    const Basis basis(*device, dim);
    for (const KvType type : kTypes) {
      expect_the_cpus_bytes(*device, {type, type}, dim, nullptr);
      if (has_codes(type)) expect_the_cpus_bytes(*device, {type, type}, dim, &basis);
    }
  }
}

TEST(CudaStoreKv, WritesTheCpusBytesOfMixedTypes) {
  const auto device = open_test_device();
  for (const KvType k : kTypes)
    for (const KvType v : kTypes) expect_the_cpus_bytes(*device, {k, v}, 80, nullptr);
}

TEST(CudaStoreKv, TurnsQueriesToTheCpusBits) {
  const auto device = open_test_device();
  constexpr int kQueryHeads = 3 * kHeads;
  for (const int dim : {1, 6, 18, 32, 64, 80, 96, 126, 128, 256, 504, 512}) {
    const Basis basis(*device, dim);
    for (const KvType type : kTypes) {
      for (const bool has_basis : {false, true}) {
        PagedKvView kv{.num_kv_heads = kHeads, .head_dim = dim, .types = {type, KvType::kF16}};
        PagedKvView device_kv = kv;
        if (has_basis) basis.put_into(kv, device_kv);
        const int ldq = kQueryHeads * dim + 8;
        auto q = random_values(to_size(kRows * ldq), 7, 2);
        OnDevice<float> device_q(*device, q);
        host().to_key_basis(kv, kQueryHeads, q.data(), ldq, 2, kRows);
        device->kernels().to_key_basis(device_kv, kQueryHeads, device_q.data(), ldq, 2, kRows);
        EXPECT_TRUE(same_bits(device_q.read(), q)) << dim << " type " << static_cast<int>(type);
      }
    }
  }
}

// Runs store_kv() of rows [begin, end) on a device, with copies of all that they need.
void place_on_device(Device& device, test::RopeRows& rows, int begin, int end,
                     int num_heads = test::RopeRows::kHeads) {
  const auto on_device = [&](const auto& values) { return OnDevice(device, values); };
  auto q = on_device(rows.q), q_sinks = on_device(rows.q_sinks), k = on_device(rows.k), v = on_device(rows.v);
  auto cos = on_device(rows.cos), sin = on_device(rows.sin);
  auto cos_sinks = on_device(rows.cos_sinks), sin_sinks = on_device(rows.sin_sinks);
  auto q_norm = on_device(rows.q_norm), k_norm = on_device(rows.k_norm);
  auto slots = on_device(rows.slots);
  auto block = on_device(rows.block);
  StoreKvArgs args = rows.args();
  args.kv.base = block.data();
  args.k = args.rope.k = k.data();
  args.v = v.data();
  args.slots = slots.data();
  args.rope.q = q.data();
  args.rope.num_heads = num_heads;
  args.rope.cos = cos.data();
  args.rope.sin = sin.data();
  args.rope.cos_sinks = cos_sinks.data();
  args.rope.sin_sinks = sin_sinks.data();
  if (rows.shape.has_norms) {
    args.rope.q_norm = q_norm.data();
    args.rope.k_norm = k_norm.data();
  }
  if (rows.shape.has_sinks) args.rope.q_sinks = q_sinks.data();
  device.kernels().store_kv(args, begin, end);
  rows.q = q.read();
  rows.q_sinks = q_sinks.read();
  rows.k = k.read();
  rows.block = block.read();
}

// The norms' bits are those of the device's rms_norm().
TEST(CudaStoreKv, PlacesQueriesAndKeys) {
  const auto device = open_test_device();
  const KvTypes types[] = {{KvType::kF16, KvType::kF16}, {KvType::kBF16, KvType::kInt8}, {KvType::kFp8, KvType::kF16}};
  const auto norm = [&](const std::vector<float>& x, const std::vector<float>& weight) {
    OnDevice<float> values(*device, x), device_weight(*device, weight);
    device->kernels().rms_norm({.x = values.data(),
                                .weight = device_weight.data(),
                                .epsilon = test::RopeRows::kEpsilon,
                                .out = values.data(),
                                .num_cols = static_cast<int>(weight.size())},
                               0, static_cast<int>(x.size() / weight.size()));
    return values.read();
  };
  test::for_rope_shapes(types, [&](const test::RopeShape& shape) {
    test::RopeRows expected(shape), rows(shape);
    expected.place(norm, host());
    place_on_device(*device, rows, 3, 4);
    place_on_device(*device, rows, 1, 3);
    rows.expect_same(expected, "cuda");
  });
}

TEST(CudaStoreKv, LeavesQueriesThatNobodyWants) {
  const auto device = open_test_device();
  for (const KvType type : {KvType::kF16, KvType::kFp8, KvType::kInt8}) {
    test::RopeRows rows({.head_dim = 24,
                         .rope_dim = 22,
                         .interleaved = true,
                         .has_norms = false,
                         .has_sinks = false,
                         .types = {type, type}});
    test::RopeRows expected(rows.shape);
    host().store_kv(expected.args(), 1, 4);
    const std::vector<float> q = rows.q;
    place_on_device(*device, rows, 1, 4, 0);
    EXPECT_TRUE(same_bits(rows.q, q));
    EXPECT_TRUE(same_bits(rows.k, expected.k));
    EXPECT_TRUE(rows.block == expected.block);
  }
}

}  // namespace
}  // namespace larder
