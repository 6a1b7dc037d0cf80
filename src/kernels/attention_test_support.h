// A sequence whose keys and values lie in shuffled blocks, with attention over it in double
// precision.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <numeric>
#include <ostream>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "kernels/test_util.h"

namespace larder {

struct Shape {
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int window = 0;
  KvTypes types = {};
  bool values_are_keys = false;
  bool has_sink_scores = false;
  float score_cap = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << "dim " << shape.head_dim << " types " << static_cast<int>(shape.types.k) << ' '
             << static_cast<int>(shape.types.v) << " cap " << shape.score_cap;
}

// From Sequence::reference(). Where BF16 is multiplied, the reference is of rounded queries, keys and
// values, and softmax weights keep 8 bits. Codes multiply queries and weights in 16 bits; those of 4
// bits stand for halves, and what takes them off a sum is rounded, too. E4M3's scales are two more roundings.
inline double attention_tolerance(KvTypes types, const KernelTable& table) {
  if (multiplies_bf16(table.isa) && (!has_codes(types.k) || !has_codes(types.v))) return 4e-3;
  if (types.k == KvType::kInt4) return 6e-4;
  if (has_codes(types.k) || has_codes(types.v)) return 3e-4;
  return types.k == KvType::kFp8 || types.v == KvType::kFp8 ? 8e-6 : 5e-6;
}

// Bytes that a block may hold where no token is stored: for floats and their scales any finite value,
// for codes and theirs anything.
inline void fill_with_garbage(KvType type, std::span<std::byte> bytes, std::mt19937& random) {
  if (has_codes(type)) {
    for (std::byte& byte : bytes) byte = std::byte(random() & 255);
    return;
  }
  if (type == KvType::kFp8) {
    // Twice the same: as a scale, too, they are below the largest one there is.
    for (std::size_t i = 0; i < bytes.size(); i += 2)
      bytes[i] = bytes[i + 1] = std::byte((random() & 128) | random() % 123);
    return;
  }
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    const float value = static_cast<float>(random() % 131008) - 65504;
    const std::uint16_t bits =
        type == KvType::kF16 ? float_to_half(value) : float_to_bfloat16(value);
    std::memcpy(&bytes[i], &bits, 2);
  }
}

inline double maybe_rounded(double value, bool rounds) {
  return rounds ? bfloat16_to_float(float_to_bfloat16(static_cast<float>(value))) : value;
}

inline int byte_at(const std::byte* p, int at) { return std::to_integer<int>(p[at]); }

inline double scale8_at(const std::byte* p, int at) {
  const int code = byte_at(p, at);
  return std::ldexp(1 + code % 8 / 8.0, code / 8 - 17);
}

// Place i of a key of 4-bit codes, in the key basis.
inline double stored_int4_key(const std::byte* head, int offset, int i, int head_dim) {
  const int wide = kv_num_wide(head_dim);
  const int narrow = kv_num_narrow(head_dim);
  const int wide_groups = kv_num_wide_groups(head_dim);
  const int narrow_begin = kv_wide_size_bytes(head_dim) * 16;
  const int scales = narrow_begin + narrow / 2 * 16;
  const bool is_wide = i < wide;
  const int place = is_wide ? i : i - wide;
  const int unit = is_wide ? kv_wide_unit(head_dim) : 8;
  const int num_units = (is_wide ? wide : narrow) / unit;
  const int num_groups = is_wide ? wide_groups : kv_num_narrow_groups(head_dim);
  int group = 0;
  while (place / unit >= num_units * (group + 1) / num_groups) ++group;
  if (!is_wide) group += wide_groups;
  const double scale = scale8_at(head, scales + group * 16 + offset);
  // Of two quads in a vector.
  const auto nibble = [&](int at, int j) {
    const int both = byte_at(head, at + offset * 4 + j % 4);
    return j < 4 ? both & 15 : both >> 4;
  };
  if (!is_wide) return scale * (nibble(narrow_begin + place / 8 * 64, place % 8) - 7.5);
  if (head_dim % 128 != 0)
    return scale * (byte_at(head, i / 4 * 64 + offset * 4 + i % 4) - 127.5);
  const int three = i / 16 * 192;
  const int upper = byte_at(head, three + 128 + offset * 4 + i % 4) >> (i % 16 / 4 * 2) & 3;
  return scale * (upper * 16 + nibble(three + i % 16 / 8 * 64, i % 8) - 31.5);
}

// Dimension d of a turned value of 4-bit codes, or 5 of large heads.
inline double stored_int4_value(const std::byte* head, int offset, int d, int head_dim) {
  const int padded_dim = (head_dim + 31) / 32 * 32;
  const int in_tile = offset % 8 / 2 * 64 + d % 16 * 4 + offset % 2 + offset / 8 * 2;
  const auto nibble = [&](int at) {
    return d % 32 < 16 ? byte_at(head, at) & 15 : byte_at(head, at) >> 4;
  };
  if (head_dim % 128 != 0) {
    return scale8_at(head, padded_dim * 8 + d / 32 * 16 + offset) * kNormalLevelStep *
           kNormalLevels[nibble(d / 32 * 256 + in_tile)];
  }
  const int unit = d / 128 * 1280;
  const int fifth = byte_at(head, unit + 1024 + in_tile) >> (d % 128 / 16) & 1;
  return scale8_at(head, head_dim * 10 + d / 128 * 16 + offset) *
         (fifth * 16 + nibble(unit + d % 128 / 32 * 256 + in_tile) - 15.5);
}

// As kv_type.h says it.
inline double stored_value(KvType type, bool is_key, const std::byte* head, int offset, int d,
                           int head_dim) {
  std::uint16_t bits = 0;
  if (type == KvType::kInt4) {
    return is_key ? stored_int4_key(head, offset, d, head_dim)
                  : stored_int4_value(head, offset, d, head_dim);
  }
  if (type == KvType::kInt8) {
    const int tiles = (head_dim + 15) / 16;
    std::memcpy(&bits, head + tiles * 256 + (d / 64 * 16 + offset) * 2, 2);
    const int i = is_key ? d % 16 : offset;
    const int lane = is_key ? offset : d % 16;
    const int at = d / 16 * 256 + i % 8 / 2 * 64 + lane * 4 + i % 2 + i / 8 * 2;
    return double{bfloat16_to_float(bits)} * (byte_at(head, at) - 128);
  }
  if (type == KvType::kFp8) {
    std::memcpy(&bits, head + (is_key ? head_dim * 16 : 0) + offset * 2, 2);
    const int number = byte_at(head, is_key ? d * 16 + offset : 32 + offset * head_dim + d);
    const int exponent = number / 8 % 16;
    const double magnitude =
        std::ldexp(exponent == 0 ? number % 8 : 8 + number % 8, (exponent == 0 ? 1 : exponent) - 10);
    return bfloat16_to_float(bits) * (number >= 128 ? -magnitude : magnitude);
  }
  std::memcpy(&bits, head + (is_key ? d * 16 + offset : offset * head_dim + d) * 2, 2);
  return type == KvType::kF16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

// Orthonormal, from its definition, in blocks of the largest powers of two that fit.
inline void turn(double* x, int size) {
  while (size > 0) {
    int block = 1;
    while (2 * block <= size) block *= 2;
    std::vector<double> turned(static_cast<std::size_t>(block));
    for (int i = 0; i < block; ++i) {
      for (int j = 0; j < block; ++j)
        turned[static_cast<std::size_t>(i)] +=
            (std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? x[j] : -x[j]) /
            std::sqrt(block);
    }
    std::copy(turned.begin(), turned.end(), x);
    x += block;
    size -= block;
  }
}

// A sequence's keys and values in blocks, the queries of all of its tokens.
class Sequence {
 public:
  Sequence(const Shape& shape, int length, unsigned seed)
      : shape_(shape),
        length_(length),
        q(test::random_values(size(shape.num_heads), seed, 1.5F)),
        k_(test::random_values(size(shape.num_kv_heads), seed + 1, 1.5F)),
        v_(test::random_values(size(shape.num_kv_heads), seed + 2)) {
    // Of less than a key's weight to all of it.
    if (shape.has_sink_scores) sink_scores_ = test::random_values(static_cast<std::size_t>(shape.num_heads), seed + 3, 6);
  }

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
    const std::int64_t k_bytes =
        shape_.num_kv_heads * kv_key_size_bytes(shape_.types.k, shape_.head_dim);
    const std::int64_t v_bytes =
        shape_.values_are_keys ? 0 : shape_.num_kv_heads * kv_value_size_bytes(shape_.types.v, shape_.head_dim);
    memory_.resize(static_cast<std::size_t>((blocks + 3) * (k_bytes + v_bytes)));
    for (int block = 0; block < blocks + 3; ++block) {
      std::byte* at = memory_.data() + block * (k_bytes + v_bytes);
      fill_with_garbage(shape_.types.k, {at, static_cast<std::size_t>(k_bytes)}, random);
      fill_with_garbage(shape_.types.v, {at + k_bytes, static_cast<std::size_t>(v_bytes)}, random);
    }
    StoreKvArgs args;
    args.kv = view = {.base = memory_.data(),
                      .block_stride_bytes = k_bytes + v_bytes,
                      .k_offset_bytes = 0,
                      .v_offset_bytes = shape_.values_are_keys ? 0 : k_bytes,
                      .num_kv_heads = shape_.num_kv_heads,
                      .head_dim = shape_.head_dim,
                      .types = shape_.types,
                      .values_are_keys = shape_.values_are_keys};
    if (!balance_.empty()) {
      view.key_balance = balance_.data();
      view.key_order = order_.data();
    }
    args.kv = view;
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
    q_basis_ = q;
    const std::int64_t ldq = std::int64_t{shape_.num_heads} * shape_.head_dim;
    table.to_key_basis(view, shape_.num_heads, q_basis_.data(), ldq, 0, length_);
    q_sinks_basis_ = q_sinks;
    if (!q_sinks.empty())
      table.to_key_basis(view, shape_.num_heads, q_sinks_basis_.data(), ldq, 0, length_);
  }

  // In place of ones in order.
  void use_random_basis(unsigned seed) {
    std::mt19937 random(seed);
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      std::vector<std::int16_t> order(static_cast<std::size_t>(shape_.head_dim));
      std::iota(order.begin(), order.end(), std::int16_t{0});
      std::shuffle(order.begin(), order.end(), random);
      order_.insert(order_.end(), order.begin(), order.end());
      for (int d = 0; d < shape_.head_dim; ++d)
        balance_.push_back(0.5F + static_cast<float>(random() % 1000) / 500);
    }
  }

  AttentionArgs args(std::vector<float>& out) const {
    AttentionArgs args;
    args.kv = view;
    args.q = q_basis_.data();
    args.out = out.data();
    args.ldq = args.ldo = std::int64_t{shape_.num_heads} * shape_.head_dim;
    args.num_heads = shape_.num_heads;
    args.scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    args.score_cap = shape_.score_cap;
    args.window = shape_.window;
    args.rounds_to_bf16 = true;  // where the table multiplies BF16
    if (!q_sinks.empty()) args.q_sinks = q_sinks_basis_.data();
    if (!sink_scores_.empty()) args.sink_scores = sink_scores_.data();
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

  // What the bytes of a key or value stand for.
  double stored(bool is_key, int token, int kv_head, int d) const {
    is_key = is_key || shape_.values_are_keys;
    const KvType type = is_key ? shape_.types.k : shape_.types.v;
    const auto block = to_index(block_table[static_cast<std::size_t>(token / kBlockSize)]);
    const std::byte* head = view.base + block * view.block_stride_bytes +
                            (is_key ? view.k_offset_bytes : view.v_offset_bytes) +
                            kv_head * (is_key ? kv_key_size_bytes(type, shape_.head_dim)
                                              : kv_value_size_bytes(type, shape_.head_dim));
    return stored_value(type, is_key, head, token % kBlockSize, d, shape_.head_dim);
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

  // Token t, head h, in double precision, from K and V as stored. rounds: queries, keys and values to
  // BF16 first, where they are floats.
  std::vector<double> reference(int t, int head, bool rounds = false) const {
    const int dim = shape_.head_dim;
    const bool rounds_k = rounds && !has_codes(shape_.types.k);
    // Numbers in fewer bits are multiplied as they are, and scaled in FP32.
    const bool rounds_keys = rounds && is_half(shape_.types.k);
    const bool rounds_values = rounds && is_half(shape_.types.v);
    // As scores are: logarithms to base 2.
    const double query_scale = rounds_k ? std::numbers::log2e / std::sqrt(dim) : 1;
    const double score_scale = rounds_k ? std::numbers::ln2 : 1 / std::sqrt(dim);
    const int kv_head = head / (shape_.num_heads / shape_.num_kv_heads);
    const int first = first_seen(t);
    std::vector<int> keys;
    for (int key = 0; key <= t; ++key) {
      if (key < sinks() || key >= first) keys.push_back(key);
    }
    std::vector<double> weights;
    for (const int key : keys) {
      double score = 0;
      const std::vector<float>& from =
          key < sinks() && sinks() < first ? q_sinks_basis_ : q_basis_;
      for (int d = 0; d < dim; ++d) {
        const auto at = static_cast<std::size_t>((t * shape_.num_heads + head) * dim + d);
        score += maybe_rounded(stored(true, key, kv_head, d), rounds_keys) *
                 maybe_rounded(from[at] * query_scale, rounds_k);
      }
      score *= score_scale;
      weights.push_back(shape_.score_cap > 0 ? shape_.score_cap * std::tanh(score / shape_.score_cap) : score);
    }
    double largest = *std::max_element(weights.begin(), weights.end());
    double total = 0;
    if (!sink_scores_.empty()) {
      const double sink = sink_scores_[static_cast<std::size_t>(head)];
      largest = std::max(largest, sink);
      total = std::exp(sink - largest);
    }
    std::vector<double> out(static_cast<std::size_t>(dim));
    for (double& weight : weights) total += weight = std::exp(weight - largest);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const double weight = weights[i] / total;
      for (int d = 0; d < dim; ++d)
        out[static_cast<std::size_t>(d)] +=
            weight * maybe_rounded(stored(false, keys[i], kv_head, d), rounds_values);
    }
    if (shape_.types.v == KvType::kInt4) turn(out.data(), dim);
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
  // In the basis of the stored keys, after store().
  const std::vector<float>& q_basis() const { return q_basis_; }

 private:
  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<float> q_basis_, q_sinks_basis_;
  std::vector<float> sink_scores_;
  std::vector<float> balance_;
  std::vector<std::int16_t> order_;
  std::vector<std::byte> memory_;
};

}  // namespace larder
