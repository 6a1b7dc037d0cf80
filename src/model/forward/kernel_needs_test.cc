#include "model/forward/kernel_needs.h"

#include <gtest/gtest.h>

#include "base/stack_test_support.h"
#include "kv/kv_type_names.h"
#include "model/forward/exactness.h"

namespace larder {
namespace {

// Of all other frames of a step.
constexpr std::int64_t kFrameBytes = 48 << 10;

// Model, KV type.
class KernelStack : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

// A prompt long enough for whatever is put in order, by one thread.
TEST_P(KernelStack, IsWhatAStepTakes) {
  if (!kStackIsKnown) GTEST_SKIP() << "sanitizers have frames of their own";
  const auto [name, type] = GetParam();
  const std::string path = LARDER_SOURCE_DIR "/tests/golden/model/" + std::string(name) + ".gguf";
  const MappedFile file(path);
  const TestModel model(path, 2, nullptr, parse_kv_types(type));
  const TransformerLimits limits{.max_batch_tokens = 256, .max_logit_rows = 256, .max_context_len = 256};
  PagedKvView blocks;
  blocks.head_dim = model.config.head_dim;
  blocks.types = model.layout->types();
  const std::int64_t own = stack_bytes_of([] {});
  for (const Isa isa : kCpuIsas) {
    const KernelTable* kernels = kernels_for(isa);
    if (kernels == nullptr) continue;
    TestRunner runner(model, *kernels, 1, limits, blocks_for(model, 256, 1));
    TestSequence sequence;
    for (int i = 0; i < 256; ++i) sequence.tokens.push_back(i * 37 % model.config.vocab_size);
    const std::vector<TestStep> steps = {{&sequence, 256}};
    runner.prepare(steps, true);
    const std::int64_t taken = stack_bytes_of([&] { runner.run_prepared(); }) - own;
    const std::int64_t planned =
        kernel_stack_bytes(*kernels, list_matrices(model.config, GgufFile(file.bytes())), blocks, limits);
    EXPECT_LE(taken, planned + kFrameBytes) << kernels->name;
    EXPECT_GE(taken, planned - kFrameBytes) << kernels->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, KernelStack,
                         ::testing::Combine(::testing::Values("tiny_llama", "tiny_gemma3", "tiny_mixed", "tiny_qwen3moe"),
                                            ::testing::Values("f16", "int8")));
// Keys are values there, and no codes.
INSTANTIATE_TEST_SUITE_P(Latents, KernelStack, ::testing::Values(std::tuple("tiny_deepseek2", "f16")));

}  // namespace
}  // namespace larder
