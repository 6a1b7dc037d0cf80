// What kernels say that they take of a thread's stack, against the pages that they touch.
#include <fmt/format.h>

#include <string>

#include "base/stack_test_support.h"
#include "kernels/attention_test_support.h"
#include "kernels/test_util.h"

namespace larder {
namespace {

using test::TestActivations;
using test::TestMatrix;

// Of all other frames below a kernel's, and pages in part.
constexpr std::int64_t kFrameBytes = 24 << 10;

void expect_stack(std::int64_t taken_bytes, std::int64_t said_bytes, const std::string& what) {
  EXPECT_LE(taken_bytes, said_bytes + kFrameBytes) << what;
  EXPECT_GE(taken_bytes, said_bytes - kFrameBytes) << what;
}

std::vector<const KernelTable*> tables_of_stacks() {
  std::vector<const KernelTable*> found = test::tables_of_products();
  const KernelTable* bf16 = kernels_for(Isa::kAvx512Bf16);
  if (bf16 != nullptr && !has_amx() && std::getenv("LARDER_ISA") == nullptr) found.push_back(&test::emulated_amx(*bf16));
  return found;
}

// Many rows as wide as those of large models.
TEST(StackBytes, ProductsTakeWhatTheySay) {
  if (!kStackIsKnown) GTEST_SKIP() << "sanitizers have frames of their own";
  constexpr int kCols = 2048;
  constexpr int kBatch = 200;
  const std::int64_t own = stack_bytes_of([] {});
  const auto x = test::random_values(std::size_t{kBatch} * kCols, 5);
  for (const GgmlType type : test::kAllTypes) {
    const TestMatrix w(type, 37, kCols);
    std::vector<float> y(kBatch * 37);
    for (const KernelTable* table : tables_of_stacks()) {
      const TestActivations activations(*table, x, kBatch, kCols);
      for (const bool is_int8 : {false, true}) {
        const bool is_rounded = w.packed.format == PackedFormat::kBF16 || (w.packed.format == PackedFormat::kW8 && !is_int8);
        if (is_int8 && !test::is_quantised(type)) continue;
        if (std::string_view(table->name).ends_with("emulated") && !is_rounded) continue;
        MatmulArgs args{.w = &w.packed, .x = x.data(), .xq = is_int8 ? &activations.view : nullptr, .rounds_to_bf16 = true,
                        .y = y.data(), .ldx = kCols, .ldy = 37};
        for (const int num_rows : {1, kBatch}) {
          args.num_rows = num_rows;
          const std::int64_t taken = stack_bytes_of([&] { table->matmul(args, 0, w.packed.num_panels()); }) - own;
          expect_stack(taken, table->matmul_stack_bytes(args),
                       fmt::format("{} {} rows of type {}, int8 {}", table->name, num_rows, static_cast<int>(type), is_int8));
        }
      }
    }
  }
}

TEST(StackBytes, AttentionTakesWhatItSays) {
  if (!kStackIsKnown) GTEST_SKIP() << "sanitizers have frames of their own";
  constexpr int kLength = 80;
  const std::int64_t own = stack_bytes_of([] {});
  for (const KernelTable* table : test::tables_of_attention()) {
    for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
      Sequence sequence({.num_heads = 4, .num_kv_heads = 1, .head_dim = 576, .types = {type, type}}, kLength, 7);
      sequence.store(*table, 8);
      std::vector<float> out(sequence.q.size());
      AttentionArgs args = sequence.args(out);
      const std::vector<BlockId> known = sequence.known_blocks(0, kLength);
      const AttentionSequence tokens{0, kLength, kLength, known.data()};
      args.sequences = &tokens;
      args.num_sequences = 1;
      AlignedBuffer scratch(static_cast<std::size_t>(attention_scratch_size_bytes(80, 576)));
      const AttentionTask task{.query_end = 20};
      const std::int64_t taken = stack_bytes_of([&] { table->attention(args, task, scratch.data()); }) - own;
      expect_stack(taken, table->attention_stack_bytes(args), fmt::format("{} type {}", table->name, static_cast<int>(type)));
    }
  }
}

}  // namespace
}  // namespace larder
