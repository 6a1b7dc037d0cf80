// The whole forward pass on a device: open_test_device() is an emulated GPU here, a real one in
// tests/gpu.
#include <gtest/gtest.h>

#include "kernels/cpu/tables.h"
#include "kernels/cuda/test_device.h"
#include "model/golden.h"

namespace larder {
namespace {

class CudaTransformer : public ::testing::TestWithParam<const char*> {
 protected:
  std::string path(const char* ending = ".gguf") const {
    return std::string(LARDER_SOURCE_DIR "/tests/golden/model/") + GetParam() + ending;
  }
};

// Logits of every row of a prompt.
std::vector<float> all_logits(TestRunner& runner, const std::vector<TokenId>& tokens) {
  runner.reset();
  TestSequence sequence{.tokens = tokens, .num_computed = 0, .tables = {}};
  const TestStep step{&sequence, static_cast<int>(tokens.size())};
  const auto logits = runner.run({&step, 1}, true);
  return {logits.begin(), logits.end()};
}

TEST_P(CudaTransformer, AgreesWithTheCpu) {
  const auto device = open_test_device();
  const TestModel on_host(path());
  const TestModel on_device(path(), 2, device.get());
  const int num_tokens = 40;
  const auto tokens = arbitrary_tokens(num_tokens, on_host.config.vocab_size, 7);
  for (const ActivationType activations : {ActivationType::kF32, ActivationType::kInt8}) {
    const TransformerLimits limits{.max_batch_tokens = 64,
                                   .max_logit_rows = 64,
                                   .max_context_len = 64,
                                   .activations = activations};
    const int num_blocks = blocks_for(on_host, num_tokens, 1);
    TestRunner host_runner(on_host, isa_generic::kTable, 1, limits, num_blocks);
    TestRunner runner(on_device, device->kernels(), 2, limits, num_blocks, device.get());
    const auto expected = all_logits(host_runner, tokens);
    const auto logits = all_logits(runner, tokens);
    ASSERT_EQ(logits.size(), expected.size());
    double squares = 0;
    double error = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      squares += std::pow(double{expected[i]}, 2);
      error += std::pow(double{logits[i]} - expected[i], 2);
    }
    // Codes of activations, and keys and values in FP16, that lie on a border may fall to either
    // side.
    EXPECT_LE(std::sqrt(error / squares), activations == ActivationType::kF32 ? 1e-4 : 3e-3);
  }
}

TEST_P(CudaTransformer, AgreesWithTheReference) {
  const auto device = open_test_device();
  const TestModel model(path(), 2, device.get());
  TestRunner runner(model, device->kernels(), 1,
                    {.max_batch_tokens = 64,
                     .max_logit_rows = 64,
                     .max_context_len = 128,
                     .activations = ActivationType::kF32},
                    blocks_for(model, 128, 1), device.get());
  expect_reference(runner, read_json(path(".json")), "cuda");
}

TEST_P(CudaTransformer, RowsDoNotDependOnTheirCompany) {
  const auto device = open_test_device();
  const TestModel model(path(), 2, device.get());
  expect_exact(model, device->kernels(), 70, ActivationType::kInt8, device.get());
}

TEST(CudaTransformerInFloats, RowsDoNotDependOnTheirCompany) {
  const auto device = open_test_device();
  const TestModel model(LARDER_SOURCE_DIR "/tests/golden/model/tiny_mixed.gguf", 2, device.get());
  expect_exact(model, device->kernels(), 20, ActivationType::kF32, device.get());
}

// Contexts of three partial softmaxes, beside others of one and of two.
TEST(CudaTransformerInSplits, RowsDoNotDependOnTheirCompany) {
  const auto device = open_test_device();
  const TestModel model(LARDER_SOURCE_DIR "/tests/golden/model/tiny_gemma3.gguf", 2, device.get());
  const int num_tokens = 1100;
  const auto tokens = arbitrary_tokens(num_tokens, model.config.vocab_size, 1);
  const TransformerLimits limits{.max_batch_tokens = 600,
                                 .max_logit_rows = 8,
                                 .max_context_len = num_tokens + 16};
  TestRunner runner(model, device->kernels(), 1, limits, blocks_for(model, num_tokens + 16, 3),
                    device.get());
  const auto alone = logits_in_chunks(runner, tokens, 600);
  EXPECT_TRUE(same_bits(alone, logits_in_chunks(runner, tokens, 300))) << "in other chunks";

  // The prompt's last tokens one by one, beside one sequence before its second split and one that
  // passes into it.
  runner.reset();
  TestSequence sequence{.tokens = tokens, .num_computed = 0, .tables = {}};
  TestSequence before = sequence, into = sequence;
  const auto run = [&](std::vector<TestStep> steps) { return runner.run(steps, false); };
  run({{&sequence, 500}, {&before, 50}});
  run({{&sequence, 590}, {&into, 10}});
  run({{&into, 499}, {&sequence, 5}});
  for (int i = 0; i < 4; ++i) run({{&before, 1}, {&sequence, 1}, {&into, 1}});
  const auto logits = run({{&before, 1}, {&sequence, 1}, {&into, 1}});
  const auto vocab_size = static_cast<std::size_t>(model.config.vocab_size);
  EXPECT_TRUE(same_bits(alone, logits.subspan(vocab_size, vocab_size)));
}

// Counts what it is asked for. A GPU that has filled up since takes no more while requests run.
class WatchedDevice : public Device {
 public:
  explicit WatchedDevice(Device& device) : device_(device) {}

  bool is_full = false;
  int num_waits = 0;
  int num_slow_copies = 0;  // with memory that is not its own of the host

  const KernelTable& kernels() const override { return device_.kernels(); }
  std::string describe() const override { return device_.describe(); }
  int max_head_dim() const override { return device_.max_head_dim(); }
  std::size_t free_bytes() const override { return device_.free_bytes(); }
  std::byte* allocate(std::size_t size_bytes) override {
    EXPECT_TRUE(!is_full) << size_bytes;
    return device_.allocate(size_bytes);
  }
  void release(std::byte* memory) noexcept override { device_.release(memory); }
  std::byte* allocate_host(std::size_t size_bytes) override {
    std::byte* memory = device_.allocate_host(size_bytes);
    host_memory_.push_back({memory, size_bytes});
    return memory;
  }
  void release_host(std::byte* memory) noexcept override { device_.release_host(memory); }
  void copy_in(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    count_copy(from, size_bytes);
    device_.copy_in(to, from, size_bytes);
  }
  void copy_out(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    count_copy(to, size_bytes);
    device_.copy_out(to, from, size_bytes);
  }
  void copy_within(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    device_.copy_within(to, from, size_bytes);
  }
  void synchronize() override {
    ++num_waits;
    device_.synchronize();
  }

 private:
  void count_copy(const std::byte* on_host, std::size_t size_bytes) {
    for (const auto& [memory, size] : host_memory_)
      if (on_host >= memory && on_host + size_bytes <= memory + size) return;
    ++num_slow_copies;
  }

  Device& device_;
  std::vector<std::pair<std::byte*, std::size_t>> host_memory_;
};

TEST(CudaTransformerMemory, IsReservedAtTheStart) {
  const auto inner = open_test_device();
  WatchedDevice device(*inner);
  const TestModel model(LARDER_SOURCE_DIR "/tests/golden/model/tiny_gemma3.gguf", 2, &device);
  const TransformerLimits limits{.max_batch_tokens = 24,
                                 .max_logit_rows = 4,
                                 .max_context_len = 33,
                                 .max_sequences = 4};
  TestRunner runner(model, device.kernels(), 1, limits, blocks_for(model, 33, 4), &device);
  ThreadPool pool(1);
  EXPECT_EQ(runner.transformer().scratch_size_bytes(),
            transformer_scratch_size_bytes(model.config, limits, pool, &device));

  device.is_full = true;
  std::vector<TestSequence> sequences(4);
  std::vector<TestStep> steps;
  for (TestSequence& sequence : sequences) {
    sequence.tokens = arbitrary_tokens(33, model.config.vocab_size, 3);
    steps.push_back({&sequence, 6});
  }
  for (int i = 0; i < 5; ++i) runner.run(steps, false);
  for (TestStep& step : steps) step.num_tokens = 3;
  runner.run(steps, false);  // the last, of full contexts
}

// A step of one token at a position whose sequence has one block, seen from it and as its sinks.
struct OneTokenStep {
  OneTokenStep(const TestModel& model, int position)
      : positions{position},
        slots{position % kBlockSize},
        table(static_cast<std::size_t>(position / kBlockSize + 1), BlockId::kNone),
        sequence{.first_row = 0,
                 .num_tokens = 1,
                 .context_len = position + 1,
                 .block_table = table.data(),
                 .window = position < kBlockSize ? 0 : kBlockSize,
                 .num_sinks = position < kBlockSize ? 0 : kBlockSize},
        groups(static_cast<std::size_t>(model.layout->num_groups()), {slots, {&sequence, 1}}) {
    table.front() = table.back() = BlockId{0};
    if (table.size() > 1) table[table.size() - 2] = BlockId{0};
  }

  ForwardBatch batch(bool with_logits) const {
    return {.tokens = tokens,
            .positions = positions,
            .sink_positions = sink_positions,
            .groups = groups,
            .logit_rows = std::span(rows).first(with_logits ? 1 : 0)};
  }

  std::vector<TokenId> tokens{1};
  std::vector<std::int32_t> positions, sink_positions{2 * kBlockSize - 1}, rows{0};
  std::vector<std::int64_t> slots;
  std::vector<BlockId> table;
  AttentionSequence sequence;
  std::vector<GroupBatch> groups;
};

TEST(CudaTransformerMemory, OfAnEndlessContextIsReservedToo) {
  const auto inner = open_test_device();
  WatchedDevice device(*inner);
  const std::string path = LARDER_SOURCE_DIR "/tests/golden/model/tiny_gemma3.gguf";
  const TestModel on_host(path);
  const TestModel model(path, 2, &device);
  ThreadPool pool(1);
  const KvStorage storage(*model.layout, 1, &device), host_storage(*model.layout, 1);
  const TransformerLimits limits{.max_batch_tokens = 8,
                                 .max_logit_rows = 1,
                                 .max_context_len = 64,
                                 .max_sequences = 1,
                                 .activations = ActivationType::kF32};
  Transformer transformer(model.config, *model.weights, *model.layout, device.kernels(), pool,
                          limits, &device);
  Transformer host(on_host.config, *on_host.weights, *on_host.layout, isa_generic::kTable, pool,
                   limits);
  const OneTokenStep step(model, 100000);
  device.is_full = true;
  const auto logits = transformer.forward(step.batch(true), storage).values;
  const auto expected = host.forward(step.batch(true), host_storage).values;
  device.is_full = false;
  ASSERT_EQ(logits.size(), expected.size());
  for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-3) << i;
}

TEST(CudaTransformerSteps, WaitForTheDeviceWithoutLogitsAndCopyFast) {
  const auto inner = open_test_device();
  WatchedDevice device(*inner);
  const TestModel model(LARDER_SOURCE_DIR "/tests/golden/model/tiny_llama.gguf", 2, &device);
  ThreadPool pool(1);
  const KvStorage storage(*model.layout, 1, &device);
  Transformer transformer(model.config, *model.weights, *model.layout, device.kernels(), pool,
                          {.max_batch_tokens = 8, .max_logit_rows = 1, .max_context_len = 16},
                          &device);
  const OneTokenStep step(model, 0);
  const int num_before = device.num_waits;
  EXPECT_TRUE(transformer.forward(step.batch(false), storage).values.empty());
  EXPECT_EQ(device.num_waits, num_before + 1);

  const int num_slow_before = device.num_slow_copies;
  EXPECT_TRUE(!transformer.forward(step.batch(true), storage).values.empty());
  EXPECT_EQ(device.num_slow_copies, num_slow_before);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaTransformer,
                         ::testing::Values("tiny_llama", "tiny_qwen2", "tiny_gemma3",
                                           "tiny_mixed"));

}  // namespace
}  // namespace larder
