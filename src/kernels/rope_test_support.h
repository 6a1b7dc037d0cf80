// Queries, keys and values of a few rows, what their positions make of them, and the bytes of their block.
#pragma once

#include <functional>
#include <ostream>
#include <span>
#include <vector>

#include "kernels/test_util.h"

namespace larder::test {

struct RopeShape {
  int head_dim;
  int rope_dim;
  bool interleaved;
  bool has_norms;
  bool has_sinks;
  KvTypes types = {};
};

inline std::ostream& operator<<(std::ostream& out, const RopeShape& shape) {
  return out << "dim " << shape.head_dim << " rope " << shape.rope_dim << (shape.interleaved ? " interleaved" : "")
             << (shape.has_norms ? " norms" : "") << (shape.has_sinks ? " sinks" : "") << " types "
             << static_cast<int>(shape.types.k) << ' ' << static_cast<int>(shape.types.v);
}

// Rows from kFirstRow on are placed.
struct RopeRows {
  static constexpr int kRows = 4, kFirstRow = 1;
  static constexpr int kHeads = 6, kKvHeads = 2;
  static constexpr float kEpsilon = 1e-5F;
  // The norm of each of some rows.
  using Norm = std::function<std::vector<float>(const std::vector<float>& x, const std::vector<float>& weight)>;

  explicit RopeRows(const RopeShape& of) : shape(of), ldq(kHeads * of.head_dim + 5), ldkv(kKvHeads * of.head_dim + 8) {
    const auto values = [](int count, unsigned seed) {
      return random_values(static_cast<std::size_t>(count), seed, 2);
    };
    q = values(kRows * ldq, 1);
    q_sinks = values(kRows * ldq, 2);
    k = values(kRows * ldkv, 3);
    v = values(kRows * ldkv, 4);
    const int pairs = kRows * (shape.rope_dim / 2);
    cos = values(pairs, 5);
    sin = values(pairs, 6);
    cos_sinks = values(pairs, 7);
    sin_sinks = values(pairs, 8);
    q_norm = values(shape.head_dim, 9);
    k_norm = values(shape.head_dim, 10);
    slots = {0, 9, 2, 15};
    k_bytes = kKvHeads * kv_key_size_bytes(shape.types.k, shape.head_dim);
    block.assign(static_cast<std::size_t>(k_bytes + kKvHeads * kv_value_size_bytes(shape.types.v, shape.head_dim)),
                 std::byte{0xA5});
  }

  // Those of a device's memory have their pointers still to be set.
  StoreKvArgs args() {
    return {.kv = {.base = block.data(),
                   .block_stride_bytes = static_cast<std::int64_t>(block.size()),
                   .k_offset_bytes = 0,
                   .v_offset_bytes = k_bytes,
                   .num_kv_heads = kKvHeads,
                   .head_dim = shape.head_dim,
                   .types = shape.types},
            .k = k.data(),
            .v = v.data(),
            .ldk = ldkv,
            .ldv = ldkv,
            .slots = slots.data(),
            .rope = {.rope_dim = shape.rope_dim,
                     .interleaved = shape.interleaved,
                     .cos = cos.data(),
                     .sin = sin.data(),
                     .k = k.data(),
                     .k_norm = shape.has_norms ? k_norm.data() : nullptr,
                     .q = q.data(),
                     .ldq = ldq,
                     .num_heads = kHeads,
                     .q_norm = shape.has_norms ? q_norm.data() : nullptr,
                     .epsilon = kEpsilon,
                     .q_sinks = shape.has_sinks ? q_sinks.data() : nullptr,
                     .cos_sinks = cos_sinks.data(),
                     .sin_sinks = sin_sinks.data()}};
  }

  // Does by hand what store_kv() should; norm, and store_kv() of keys as they are, do the rest.
  void place(const Norm& norm, const KernelTable& table) {
    if (shape.has_norms) {
      norm_heads(q, ldq, kHeads, q_norm, norm);
      norm_heads(k, ldkv, kKvHeads, k_norm, norm);
    }
    if (shape.has_sinks) {
      for_heads(kHeads, [&](int row, int head) {
        const int at = row * ldq + head * shape.head_dim;
        std::copy_n(q.data() + at, shape.head_dim, q_sinks.data() + at);
      });
      turn(q_sinks, ldq, kHeads, cos_sinks, sin_sinks);
    }
    turn(q, ldq, kHeads, cos, sin);
    turn(k, ldkv, kKvHeads, cos, sin);
    StoreKvArgs plain = args();
    plain.rope = {};
    table.store_kv(plain, kFirstRow, kRows);
  }

  // Both were placed.
  void expect_same(const RopeRows& other, const char* who) const {
    EXPECT_TRUE(same_bits(q, other.q)) << who << ' ' << shape;
    EXPECT_TRUE(same_bits(q_sinks, other.q_sinks)) << who << ' ' << shape;
    EXPECT_TRUE(same_bits(k, other.k)) << who << ' ' << shape;
    EXPECT_TRUE(block == other.block) << who << ' ' << shape;
  }

  RopeShape shape;
  int ldq, ldkv;
  std::int64_t k_bytes;
  std::vector<float> q, q_sinks, k, v, cos, sin, cos_sinks, sin_sinks, q_norm, k_norm;
  std::vector<std::int64_t> slots;
  std::vector<std::byte> block;

 private:
  template <class Function>
  void for_heads(int num_heads, const Function& function) {
    for (int row = kFirstRow; row < kRows; ++row)
      for (int head = 0; head < num_heads; ++head) function(row, head);
  }

  void norm_heads(std::vector<float>& x, int ldx, int num_heads, const std::vector<float>& weight, const Norm& norm) {
    std::vector<float> heads;
    for_heads(num_heads, [&](int row, int head) {
      const float* from = x.data() + row * ldx + head * shape.head_dim;
      heads.insert(heads.end(), from, from + shape.head_dim);
    });
    heads = norm(heads, weight);
    const float* from = heads.data();
    for_heads(num_heads, [&](int row, int head) {
      std::copy_n(from, shape.head_dim, x.data() + row * ldx + head * shape.head_dim);
      from += shape.head_dim;
    });
  }

  void turn(std::vector<float>& x, int ldx, int num_heads, const std::vector<float>& c, const std::vector<float>& s) {
    const int half = shape.rope_dim / 2;
    for_heads(num_heads, [&](int row, int head) {
      float* values = x.data() + row * ldx + head * shape.head_dim;
      for (int i = 0; i < half; ++i) {
        float& first = values[shape.interleaved ? 2 * i : i];
        float& second = values[shape.interleaved ? 2 * i + 1 : i + half];
        const float a = first, b = second;
        const auto pair = static_cast<std::size_t>(row * half + i);
        first = a * c[pair] - b * s[pair];
        second = a * s[pair] + b * c[pair];
      }
    });
  }
};

// With and without all that there may be; heads that no vector's width divides.
template <class Function>
void for_rope_shapes(std::span<const KvTypes> types, const Function& function) {
  for (const KvTypes& of : types) {
    for (const auto& [head_dim, rope_dim] :
         {std::pair{6, 6}, {18, 12}, {24, 22}, {64, 64}, {84, 80}, {128, 128}, {132, 64}, {256, 256}, {510, 256}}) {
      for (int with = 0; with < 8; ++with)
        function(RopeShape{head_dim, rope_dim, (with & 1) != 0, (with & 2) != 0, (with & 4) != 0, of});
    }
  }
}

}  // namespace larder::test
