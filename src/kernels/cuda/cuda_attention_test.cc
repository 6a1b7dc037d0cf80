// Attention of a device against the generic CPU's, and rows against themselves in other company.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>

#include "kernels/attention_test_support.h"
#include "kernels/cuda/test_device.h"

namespace larder {
namespace {

using test::host;
using test::OnDevice;
using test::random_values;
using test::same_bits;

// Queries [begin, end) of a sequence.
struct Part {
  int sequence;
  int begin;
  int end;
};

// Sequences in one storage, their blocks shuffled, on the host and on the device.
class Sequences {
 public:
  // num_common: tokens that all of them begin with, as far as they reach.
  Sequences(Device& device, const Shape& shape, const std::vector<int>& lengths, int num_common = 0)
      : device_(device), shape_(shape) {
    int num_blocks = 0;
    for (const int length : lengths) num_blocks += (length + kBlockSize - 1) / kBlockSize;
    std::vector<int> ids(static_cast<std::size_t>(num_blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::mt19937 random(1);
    std::shuffle(ids.begin(), ids.end(), random);
    const std::int64_t k_bytes = shape.num_kv_heads * kv_key_size_bytes(shape.types.k, shape.head_dim);
    const std::int64_t v_bytes =
        shape.num_kv_heads * kv_value_size_bytes(shape.types.v, shape.head_dim);
    bytes_.resize(static_cast<std::size_t>(num_blocks * (k_bytes + v_bytes)));
    for (int block = 0; block < num_blocks; ++block) {
      std::byte* at = bytes_.data() + block * (k_bytes + v_bytes);
      fill_with_garbage(shape.types.k, {at, static_cast<std::size_t>(k_bytes)}, random);
      fill_with_garbage(shape.types.v, {at + k_bytes, static_cast<std::size_t>(v_bytes)}, random);
    }
    view_ = {.base = bytes_.data(),
             .block_stride_bytes = k_bytes + v_bytes,
             .k_offset_bytes = 0,
             .v_offset_bytes = k_bytes,
             .num_kv_heads = shape.num_kv_heads,
             .head_dim = shape.head_dim,
             .types = shape.types};
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      tables_.emplace_back();
      for (int block = 0; block * kBlockSize < lengths[i]; ++block) {
        tables_[i].push_back(BlockId{ids.back()});
        ids.pop_back();
      }
      store(tables_[i], lengths[i], static_cast<unsigned>(i));
      for (std::size_t block = 0; block < std::min(tables_[0].size(), tables_[i].size()); ++block)
        if ((static_cast<int>(block) + 1) * kBlockSize <= num_common) tables_[i][block] = tables_[0][block];
      const std::size_t size = static_cast<std::size_t>(lengths[i] * row_size());
      q_.push_back(random_values(size, 10 + static_cast<unsigned>(i), 1.5F));
      q_sinks_.push_back(random_values(size, 20 + static_cast<unsigned>(i), 1.5F));
    }
    device_bytes_ = std::make_unique<OnDevice<std::byte>>(device, bytes_);
  }

  int window = 0;  // the sequences' own
  int num_sinks = 0;
  int num_pieces = 0;  // of the last run

  // How far a result may be from the CPU's. Codes are multiplied with queries and weights rounded to
  // 16 bits; those that fall on the other side of a half differ.
  float tolerance() const {
    return has_codes(shape_.types.k) || has_codes(shape_.types.v) ? 1e-4F : 2e-5F;
  }
  int row_size() const { return shape_.num_heads * shape_.head_dim; }

  void put_into_queries(const std::vector<float>& extremes, std::size_t every) {
    for (auto* queries : {&q_, &q_sinks_})
      for (std::vector<float>& of_sequence : *queries)
        for (std::size_t i = 0; i < of_sequence.size(); i += every) of_sequence[i] = extremes[i / every % extremes.size()];
  }

  std::vector<float> run_on_host(const std::vector<Part>& parts) {
    const Call call = prepare(parts);
    ThreadPool pool(1);
    AttentionOp op(pool, call.num_rows, shape_.num_heads, shape_.head_dim, call.max_context_len);
    std::vector<float> out(call.q.size(), NAN);
    AttentionArgs args = args_of(call);
    args.kv = view_;
    args.q = call.q.data();
    if (num_sinks > 0) args.q_sinks = call.q_sinks.data();
    args.out = out.data();
    args.sequences = call.sequences.data();
    op.run(host(), args);
    return out;
  }

  // Keys are shared out over blocks where there is scratch for it.
  std::vector<float> run(const std::vector<Part>& parts, std::int64_t scratch_bytes) {
    Call call = prepare(parts);
    OnDevice<float> q(device_, call.q), q_sinks(device_, call.q_sinks);
    OnDevice<float> out(device_, std::vector<float>(call.q.size(), NAN));
    AttentionArgs args = args_of(call);
    args.kv = view_;
    CommonKeyFinder finder;
    args.sharing = share_keys(args, call.sequences, finder.find(call.sequences, device_common_rule(args)), scratch_bytes);
    num_pieces = args.sharing.num_pieces;
    std::vector<std::unique_ptr<OnDevice<BlockId>>> tables;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto behind_sinks = call.tables[i].begin() + num_sinks / kBlockSize;
      call.tables[i].erase(behind_sinks, behind_sinks + call.sequences[i].skipped_blocks);
      tables.push_back(std::make_unique<OnDevice<BlockId>>(device_, call.tables[i]));
      call.sequences[i].block_table = tables.back()->data();
    }
    OnDevice<AttentionSequence> sequences(device_, call.sequences);
    DeviceBuffer scratch(&device_, static_cast<std::size_t>(scratch_bytes));
    args.kv.base = device_bytes_->data();
    args.q = q.data();
    if (num_sinks > 0) args.q_sinks = q_sinks.data();
    args.out = out.data();
    args.sequences = sequences.data();
    device_.kernels().attention_batch(args, scratch.data());
    return out.read();
  }

 private:
  struct Call {
    std::vector<AttentionSequence> sequences;
    std::vector<std::vector<BlockId>> tables;
    std::vector<float> q, q_sinks;
    int num_rows = 0;
    int max_context_len = 0;
  };

  void store(const std::vector<BlockId>& table, int length, unsigned seed) {
    const std::size_t size =
        static_cast<std::size_t>(length * shape_.num_kv_heads * shape_.head_dim);
    const auto k = random_values(size, 30 + seed, 1.5F);
    const auto v = random_values(size, 40 + seed);
    std::vector<std::int64_t> slots;
    for (int t = 0; t < length; ++t)
      slots.push_back(std::int64_t{to_index(table[static_cast<std::size_t>(t / kBlockSize)])} *
                          kBlockSize +
                      t % kBlockSize);
    const std::int64_t ld = std::int64_t{shape_.num_kv_heads} * shape_.head_dim;
    host().store_kv({.kv = view_,
                     .k = k.data(),
                     .v = v.data(),
                     .ldk = ld,
                     .ldv = ld,
                     .slots = slots.data()},
                    0, length);
  }

  // The table as the part needs it: no block that its queries do not see.
  std::vector<BlockId> known_blocks(const Part& part) const {
    std::vector<BlockId> table = tables_[static_cast<std::size_t>(part.sequence)];
    table.resize(static_cast<std::size_t>((part.end + kBlockSize - 1) / kBlockSize));
    int first = 0;
    for (const int size : {shape_.window, window})
      if (size > 0) first = std::max(first, part.begin - size + 1);
    const int sinks = shape_.window == 0 && window > 0 ? num_sinks : 0;
    for (int block = sinks / kBlockSize; (block + 1) * kBlockSize <= first; ++block)
      table[static_cast<std::size_t>(block)] = BlockId::kNone;
    return table;
  }

  Call prepare(const std::vector<Part>& parts) const {
    Call call;
    for (const Part& part : parts) call.tables.push_back(known_blocks(part));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      call.sequences.push_back({.first_row = call.num_rows,
                                .num_tokens = part.end - part.begin,
                                .context_len = part.end,
                                .block_table = call.tables[i].data(),
                                .window = window,
                                .num_sinks = num_sinks});
      call.num_rows += part.end - part.begin;
      call.max_context_len = std::max(call.max_context_len, part.end);
      const auto append = [&](std::vector<float>& to, const std::vector<float>& from) {
        to.insert(to.end(), from.begin() + part.begin * row_size(),
                  from.begin() + part.end * row_size());
      };
      append(call.q, q_[static_cast<std::size_t>(part.sequence)]);
      append(call.q_sinks, q_sinks_[static_cast<std::size_t>(part.sequence)]);
    }
    return call;
  }

  AttentionArgs args_of(const Call& call) const {
    AttentionArgs args;
    args.ldq = args.ldo = row_size();
    args.num_heads = shape_.num_heads;
    args.scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    args.score_cap = shape_.score_cap;
    args.window = shape_.window;
    args.num_sequences = static_cast<int>(call.sequences.size());
    return args;
  }

  Device& device_;
  Shape shape_;
  PagedKvView view_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<OnDevice<std::byte>> device_bytes_;
  std::vector<std::vector<BlockId>> tables_;
  std::vector<std::vector<float>> q_, q_sinks_;
};

constexpr std::int64_t kScratchBytes = 8 << 20;

// Near the CPU's; and the same bits whoever shares the call, however keys are shared out.
void expect_attention(Sequences& sequences) {
  const std::vector<Part> parts = {{0, 1071, 1080}, {1, 0, 19}, {2, 520, 523}, {1, 19, 20}};
  const std::vector<float> all = sequences.run(parts, kScratchBytes);
  const std::vector<float> expected = sequences.run_on_host(parts);
  ASSERT_EQ(all.size(), expected.size());
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_NEAR(all[i], expected[i], sequences.tolerance()) << i;

  EXPECT_TRUE(same_bits(all, sequences.run(parts, 0))) << "keys not shared out";
  EXPECT_TRUE(same_bits(all, sequences.run(parts, 10 * sequences.row_size() * 4)))
      << "only the third sequence's are";
  int row = 0;
  for (const Part& part : parts) {
    for (int query = part.begin; query < part.end; query += 2, row += 2) {
      const int end = std::min(query + 2, part.end);
      const auto from = all.begin() + row * sequences.row_size();
      const std::vector<float> same(from, from + (end - query) * sequences.row_size());
      EXPECT_TRUE(same_bits(same, sequences.run({{part.sequence, query, end}}, kScratchBytes)))
          << part.sequence << " " << query;
    }
    row -= (part.end - part.begin) % 2;
  }
}

const std::vector<int> kLengths = {1080, 20, 523};

void expect_attention_of(std::initializer_list<Shape> shapes) {
  const auto device = open_test_device();
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.head_dim);
    Sequences sequences(*device, shape, kLengths);
    expect_attention(sequences);
  }
}

TEST(CudaAttention, OfManyShapes) {
  const KvTypes half{KvType::kF16, KvType::kF16};
  const KvTypes bf16{KvType::kBF16, KvType::kBF16};
  const KvTypes mixed{KvType::kF16, KvType::kBF16};
  expect_attention_of({{3, 1, 64, 0, half},
                       {2, 2, 30, 0, bf16},
                       {2, 2, 33, 0, half},
                       {12, 1, 20, 0, mixed},
                       {4, 2, 136, 0, half},
                       {2, 1, 264, 0, bf16}});
}

TEST(CudaAttention, OfFp8) {
  const KvTypes fp8{KvType::kFp8, KvType::kFp8};
  expect_attention_of({{3, 1, 64, 0, fp8},
                       {2, 2, 30, 0, fp8},
                       {2, 1, 33, 0, fp8},
                       {12, 1, 20, 0, fp8},
                       {4, 2, 128, 0, fp8},
                       {2, 1, 264, 0, fp8}});
}

TEST(CudaAttention, OfCodes) {
  const KvTypes int8{KvType::kInt8, KvType::kInt8};
  const KvTypes int4{KvType::kInt4, KvType::kInt4};
  expect_attention_of({{3, 1, 64, 0, int8},
                       {12, 1, 20, 0, int8},
                       {2, 1, 80, 0, int8},
                       {4, 2, 264, 0, int8},
                       {3, 1, 64, 0, int4},
                       {12, 1, 20, 0, int4},
                       {2, 1, 126, 0, int4},
                       {4, 2, 128, 0, int4},
                       {2, 1, 256, 0, int4},
                       {2, 1, 300, 0, int4},
                       {2, 1, 512, 0, int4}});
}

TEST(CudaAttention, OfMixedTypes) {
  expect_attention_of({{3, 1, 40, 0, {KvType::kInt8, KvType::kInt4}},
                       {3, 1, 40, 0, {KvType::kInt4, KvType::kInt8}},
                       {3, 1, 40, 0, {KvType::kF16, KvType::kInt4}},
                       {3, 1, 40, 0, {KvType::kInt8, KvType::kBF16}},
                       {3, 1, 40, 0, {KvType::kFp8, KvType::kInt4}},
                       {3, 1, 40, 0, {KvType::kBF16, KvType::kFp8}}});
}

TEST(CudaAttention, OfFewerBitsInAWindow) {
  const auto device = open_test_device();
  for (const int window : {1, 40, 530}) {
    for (const KvTypes types : {KvTypes{KvType::kInt4, KvType::kInt8}, {KvType::kFp8, KvType::kFp8}}) {
      Sequences sequences(*device, {3, 1, 32, window, types}, kLengths);
      expect_attention(sequences);
    }
  }
}

TEST(CudaAttention, OfFewerBitsWithSinks) {
  const auto device = open_test_device();
  for (const KvTypes types : {KvTypes{KvType::kInt8, KvType::kInt4},
                              {KvType::kInt4, KvType::kInt4},
                              {KvType::kFp8, KvType::kFp8}}) {
    Sequences sequences(*device, {4, 2, 32, 0, types}, kLengths);
    sequences.window = 300;
    sequences.num_sinks = 32;
    expect_attention(sequences);
  }
}

TEST(CudaAttention, OfCappedScores) {
  const auto capped = [](int window, KvType type) {
    return Shape{3, 1, 64, window, {type, type}, false, false, 2};
  };
  expect_attention_of({capped(0, KvType::kF16), capped(40, KvType::kF16), capped(0, KvType::kFp8),
                       capped(530, KvType::kInt8), capped(0, KvType::kInt4)});
  const auto device = open_test_device();
  for (const KvType type : {KvType::kBF16, KvType::kInt8}) {
    Sequences sequences(*device, {4, 2, 32, 0, {type, type}, false, false, 2}, kLengths);
    sequences.window = 300;
    sequences.num_sinks = 32;
    expect_attention(sequences);
  }
}

TEST(CudaAttention, InAWindow) {
  const auto device = open_test_device();
  for (const int window : {1, 40, 530}) {
    Sequences sequences(*device, {3, 1, 32, window}, kLengths);
    expect_attention(sequences);
  }
}

TEST(CudaAttention, WithSinks) {
  const auto device = open_test_device();
  for (const int window : {20, 300, 600}) {
    Sequences sequences(*device, {4, 2, 32, 0}, kLengths);
    sequences.window = window;
    sequences.num_sinks = 32;
    expect_attention(sequences);
  }
}

// What is beyond all sense stays finite, and depends on no company either.
TEST(CudaAttention, ScoresWithoutBoundDependOnTheirRowAlone) {
  const auto device = open_test_device();
  for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
    SCOPED_TRACE(static_cast<int>(type));
    Sequences sequences(*device, {4, 2, 64, 0, {type, type}}, kLengths);
    sequences.window = 300;
    sequences.num_sinks = 32;
    sequences.put_into_queries({1e25F, 3e38F, -3e38F, INFINITY, NAN}, 7);
    const std::vector<Part> parts = {{0, 1071, 1080}, {1, 0, 19}, {2, 520, 523}};
    const std::vector<float> all = sequences.run(parts, kScratchBytes);
    for (const float value : all) ASSERT_TRUE(std::isfinite(value));
    int row = 0;
    for (const Part& part : parts) {
      for (int query = part.begin; query < part.end; ++query, ++row) {
        const auto from = all.begin() + row * sequences.row_size();
        EXPECT_TRUE(same_bits(std::vector<float>(from, from + sequences.row_size()),
                              sequences.run({{part.sequence, query, query + 1}}, 0)))
            << part.sequence << ' ' << query;
      }
    }
  }
}

// Keys that are read once for several sequences give each the bits that it has alone.
TEST(CudaAttention, OfKeysInCommon) {
  const auto device = open_test_device();
  for (const Shape& shape : {Shape{3, 1, 64}, Shape{8, 2, 32, 0, {KvType::kInt8, KvType::kInt4}},
                             Shape{1, 1, 136, 0, {KvType::kBF16, KvType::kF16}},
                             Shape{2, 1, 64, 0, {KvType::kFp8, KvType::kFp8}}, Shape{2, 1, 32, 2200},
                             Shape{3, 1, 64, 0, {}, false, false, 2}}) {
    SCOPED_TRACE(shape.head_dim);
    Sequences sequences(*device, shape, {2300, 1560, 1041, 560, 2200, 2072, 2100, 2290}, 1040);
    std::vector<Part> parts;
    int num_alone = 0;
    std::vector<float> alone;
    for (const Part& part : {Part{0, 2299, 2300}, {1, 1559, 1560}, {2, 1040, 1041}, {3, 559, 560}, {4, 2190, 2199},
                             {5, 2071, 2072}, {6, 2099, 2100}, {7, 2289, 2290}}) {
      parts.push_back(part);
      const auto own = sequences.run({part}, kScratchBytes);
      alone.insert(alone.end(), own.begin(), own.end());
      num_alone += sequences.num_pieces;
    }
    EXPECT_TRUE(same_bits(sequences.run(parts, kScratchBytes), alone));
    EXPECT_LE(sequences.num_pieces, num_alone - 5) << "nothing was read in common";
    const std::vector<float> expected = sequences.run_on_host(parts);
    for (std::size_t i = 0; i < alone.size(); ++i) ASSERT_NEAR(alone[i], expected[i], sequences.tolerance()) << i;
  }
}

}  // namespace
}  // namespace larder
