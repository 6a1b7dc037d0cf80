// The whole forward pass on a device: open_test_device() is an emulated GPU here, a real one in
// tests/gpu.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "kernels/cpu/tables.h"
#include "kernels/cuda/test_device.h"
#include "model/forward/golden.h"
#include "model/forward/key_calibration.h"

namespace larder {
namespace {

class CudaTransformer : public ::testing::TestWithParam<const char*> {
 protected:
  std::string path(const char* ending = ".gguf") const {
    return std::string(LARDER_SOURCE_DIR "/tests/golden/model/") + GetParam() + ending;
  }
};

// As Runtime does, of a model whose keys are codes.
std::vector<KeyBasis> measured_basis(const TestModel& model, const KernelTable& kernels,
                                     Device* device = nullptr) {
  ThreadPool pool(1);
  return calibrate_keys(model.config, *model.weights, kernels, pool,
                        arbitrary_tokens(150, model.config.vocab_size, 3), device);
}

constexpr KvTypes kInt8Types{KvType::kInt8, KvType::kInt8};
constexpr KvTypes kInt4Types{KvType::kInt4, KvType::kInt4};
constexpr KvTypes kFp8Types{KvType::kFp8, KvType::kFp8};
constexpr KvTypes kMixedTypes{KvType::kInt8, KvType::kInt4};

// Logits of every row of a prompt.
std::vector<float> all_logits(TestRunner& runner, const std::vector<TokenId>& tokens) {
  runner.reset();
  TestSequence sequence{.tokens = tokens, .num_computed = 0, .tables = {}};
  const TestStep step{&sequence, static_cast<int>(tokens.size())};
  const auto logits = runner.run({&step, 1}, true);
  return {logits.begin(), logits.end()};
}

// How far a device's logits are from the CPU's, as a share of their size.
double distance_from_cpu(const TestModel& on_host, const TestModel& on_device, Device& device,
                         ActivationType activations) {
  const int num_tokens = 40;
  const auto tokens = arbitrary_tokens(num_tokens, on_host.config.vocab_size, 7);
  const TransformerLimits limits{.max_batch_tokens = 64,
                                 .max_logit_rows = 64,
                                 .max_context_len = 64,
                                 .activations = activations};
  const int num_blocks = blocks_for(on_host, num_tokens, 1);
  TestRunner host_runner(on_host, isa_generic::kTable, 1, limits, num_blocks);
  TestRunner runner(on_device, device.kernels(), 2, limits, num_blocks, &device);
  const auto expected = all_logits(host_runner, tokens);
  const auto logits = all_logits(runner, tokens);
  CHECK(logits.size() == expected.size(), logits.size());
  double squares = 0;
  double error = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    squares += std::pow(double{expected[i]}, 2);
    error += std::pow(double{logits[i]} - expected[i], 2);
  }
  return std::sqrt(error / squares);
}

TEST_P(CudaTransformer, AgreesWithTheCpu) {
  const auto device = open_test_device();
  const TestModel on_host(path());
  const TestModel on_device(path(), 2, device.get());
  for (const ActivationType activations : {ActivationType::kF32, ActivationType::kInt8}) {
    // Codes of activations, and keys and values in FP16, that lie on a border may fall to either
    // side.
    EXPECT_LE(distance_from_cpu(on_host, on_device, *device, activations),
              activations == ActivationType::kF32 ? 1e-4 : 3e-3);
  }
}

TEST_P(CudaTransformer, AgreesWithTheCpuOnFewerBits) {
  const auto device = open_test_device();
  for (const KvTypes types : {kFp8Types, kInt8Types, kInt4Types, kMixedTypes}) {
    const TestModel on_host(path(), 2, nullptr, types);
    const TestModel on_device(path(), 2, device.get(), types);
    if (has_codes(types.k)) {
      const auto basis = measured_basis(on_host, isa_generic::kTable);
      on_host.layout->set_key_basis(basis);
      on_device.layout->set_key_basis(basis);
    }
    // What lies on a border is a whole step away, of 4 bits and of E4M3 a large one.
    EXPECT_LE(distance_from_cpu(on_host, on_device, *device, ActivationType::kF32),
              types == kInt8Types ? 1e-3 : 1e-2)
        << static_cast<int>(types.k) << " " << static_cast<int>(types.v);
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

TEST_P(CudaTransformer, KeepsLogitsThatNobodyWants) {
  const auto device = open_test_device();
  const TestModel model(path(), 2, device.get());
  TestRunner runner(model, device->kernels(), 1,
                    {.max_batch_tokens = 64, .max_logit_rows = 64, .max_context_len = 64},
                    blocks_for(model, 40, 1), device.get());
  const auto tokens = arbitrary_tokens(40, model.config.vocab_size, 7);
  const std::vector<float> logits = all_logits(runner, tokens);
  std::vector<TokenId> expected;
  for (int row = 0; row < 40; ++row) {
    const auto from = logits.begin() + row * model.config.vocab_size;
    expected.push_back(static_cast<TokenId>(
        std::max_element(from, from + model.config.vocab_size) - from));
  }
  EXPECT_TRUE(std::ranges::equal(runner.logits().best, expected));

  runner.reset();
  TestSequence sequence{.tokens = tokens, .num_computed = 0, .tables = {}};
  const TestStep step{&sequence, 40};
  EXPECT_TRUE(std::ranges::equal(runner.run_to_draw({&step, 1}, true, {}, {}).best, expected));
  EXPECT_TRUE(runner.logits().values.empty());
}

// Two draws of one row, one of another, and a row that is read, between them, whose best is drawn.
TEST_P(CudaTransformer, DrawsBesideOthersWhatItDrawsAlone) {
  const auto device = open_test_device();
  const TestModel model(path(), 2, device.get());
  TestRunner runner(model, device->kernels(), 1,
                    {.max_batch_tokens = 64, .max_logit_rows = 8, .max_context_len = 64},
                    blocks_for(model, 40, 3), device.get());
  const auto vocab_size = static_cast<std::size_t>(model.config.vocab_size);
  std::vector<TestSequence> sequences(3);
  const auto begin = [&] {
    runner.reset();
    for (unsigned i = 0; i < 3; ++i) {
      const int num_tokens = 10 + 3 * static_cast<int>(i);
      sequences[i] = {arbitrary_tokens(num_tokens, model.config.vocab_size, i + 1), 0, {}};
    }
  };
  const auto step_of = [&](std::size_t i) {
    return TestStep{&sequences[i], static_cast<int>(sequences[i].tokens.size())};
  };
  const std::vector<TokenDraw> draws = {{.uniform = 0.21, .row = 0},
                                        {.uniform = 0.83, .row = 0, .top_k = 40, .top_p = 0.9F},
                                        {.uniform = 0.55, .row = 2, .scale = 2, .min_p = 0.01F},
                                        {.uniform = 0.99, .row = 1, .top_k = 1}};
  begin();
  const std::vector<TestStep> steps = {step_of(0), step_of(1), step_of(2)};
  const std::vector<std::int32_t> read = {1};
  const Logits together = runner.run_to_draw(steps, false, draws, read);
  ASSERT_EQ(together.values.size(), 3 * vocab_size);
  const auto row = together.values.subspan(vocab_size, vocab_size);
  const std::vector<float> logits(row.begin(), row.end());
  const std::vector<TokenId> drawn(together.drawn.begin(), together.drawn.end());
  ASSERT_EQ(drawn.size(), draws.size());
  EXPECT_EQ(drawn[3], best_token(logits));
  EXPECT_EQ(drawn[3], together.best[1]);

  begin();
  const TestStep first = step_of(0), middle = step_of(1), last = step_of(2);
  const auto& alone = runner.run_to_draw({&first, 1}, false, std::span(draws).first(2), {});
  EXPECT_TRUE(std::ranges::equal(alone.drawn, std::span(drawn).first(2)));
  EXPECT_TRUE(alone.values.empty());
  EXPECT_TRUE(same_bits(logits, runner.run({&middle, 1}, false)));
  TokenDraw of_last = draws[2];
  of_last.row = 0;
  EXPECT_EQ(runner.run_to_draw({&last, 1}, false, {&of_last, 1}, {}).drawn.front(), drawn[2]);
}

TEST_P(CudaTransformer, RowsDoNotDependOnTheirCompany) {
  const auto device = open_test_device();
  const TestModel model(path(), 2, device.get());
  expect_exact(model, device->kernels(), 70, ActivationType::kInt8, device.get());
}

TEST_P(CudaTransformer, MeasuresTheKeysThatTheCpuMeasures) {
  const auto device = open_test_device();
  const TestModel on_host(path());
  const TestModel on_device(path(), 2, device.get());
  const auto expected = measured_basis(on_host, isa_generic::kTable);
  const auto basis = measured_basis(on_device, device->kernels(), device.get());
  ASSERT_EQ(basis.size(), expected.size());
  // A key that lies on a border of FP16 is stored a whole step away, and so every layer's keys are further apart
  // than those of the layer before, about three times.
  double tolerance = 1e-6;
  for (std::size_t layer = 0; layer < basis.size(); ++layer, tolerance *= 3) {
    ASSERT_EQ(basis[layer].balance.size(), expected[layer].balance.size());
    for (std::size_t i = 0; i < basis[layer].balance.size(); ++i)
      EXPECT_NEAR(basis[layer].balance[i], expected[layer].balance[i],
                  tolerance * expected[layer].balance[i])
          << layer;
    EXPECT_TRUE(basis[layer].order == expected[layer].order) << layer;
  }
}

TEST(CudaTransformerOnFewerBits, RowsDoNotDependOnTheirCompany) {
  const auto device = open_test_device();
  for (const char* name : {"tiny_llama", "tiny_gemma3"}) {
    for (const KvTypes types : {kFp8Types, kInt8Types, kInt4Types}) {
      const std::string path = LARDER_SOURCE_DIR "/tests/golden/model/" + std::string(name) + ".gguf";
      const TestModel model(path, 2, device.get(), types);
      if (has_codes(types.k))
        model.layout->set_key_basis(measured_basis(model, device->kernels(), device.get()));
      expect_exact(model, device->kernels(), 24, ActivationType::kInt8, device.get(), 5);
    }
  }
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
  std::size_t num_copied_out = 0;  // bytes

  const KernelTable& kernels() const override { return device_.kernels(); }
  std::string describe() const override { return device_.describe(); }
  std::string arch() const override { return device_.arch(); }
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
    num_copied_out += size_bytes;
    device_.copy_out(to, from, size_bytes);
  }
  void copy_within(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    device_.copy_within(to, from, size_bytes);
  }
  void copy_in_beside(std::span<const HostCopy> copies, std::function<void()> done) override {
    for (const HostCopy& copy : copies) count_copy(copy.from, copy.size_bytes);
    device_.copy_in_beside(copies, std::move(done));
  }
  void copy_out_beside(std::span<const HostCopy> copies, std::function<void()> done) override {
    for (const HostCopy& copy : copies) count_copy(copy.to, copy.size_bytes);
    device_.copy_out_beside(copies, std::move(done));
  }
  void finish_copies_beside() override { device_.finish_copies_beside(); }
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

void expect_reserved_at_the_start(KvTypes types) {
  const auto inner = open_test_device();
  WatchedDevice device(*inner);
  const TestModel model(LARDER_SOURCE_DIR "/tests/golden/model/tiny_gemma3.gguf", 2, &device, types);
  if (has_codes(types.k))
    model.layout->set_key_basis(measured_basis(model, device.kernels(), &device));
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
  // The last, of full contexts, each of which is drawn for.
  const std::vector<TokenDraw> draws(4);
  const std::vector<std::int32_t> read = {0, 1, 2, 3};
  runner.run_to_draw(steps, false, draws, read);
}

TEST(CudaTransformerMemory, IsReservedAtTheStart) { expect_reserved_at_the_start({}); }
TEST(CudaTransformerMemory, OfCodesIsReservedAtTheStart) {
  expect_reserved_at_the_start(kInt4Types);
}

// What a tier takes of one storage and gives to another.
TEST(CudaTransformerMemory, BlocksComeBackAsTheyWere) {
  const auto inner = open_test_device();
  WatchedDevice device(*inner);
  const KvLayout layout(std::vector<KvLayerShape>(2, KvLayerShape{1, 64, 0}));
  KvStorage from(layout, 3, &device), to(layout, 3, &device);
  const auto size = static_cast<std::size_t>(layout.block_size_bytes());
  std::vector<std::byte> bytes(size), zeros(size), seen(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  from.write_block(BlockId{1}, bytes);
  from.copy_block(BlockId{1}, BlockId{2});
  device.num_slow_copies = 0;
  const auto read = from.read_block(BlockId{2});
  EXPECT_EQ(device.num_slow_copies, 0);
  to.write_block(BlockId{0}, read);
  EXPECT_EQ(device.num_slow_copies, 0);
  const auto has = [&](const KvStorage& storage, int block, const std::vector<std::byte>& expected) {
    device.copy_out(seen.data(), storage.view(0).base + static_cast<std::size_t>(block) * size, size);
    return seen == expected;
  };
  EXPECT_TRUE(has(to, 0, bytes));
  EXPECT_TRUE(has(to, 1, zeros));
  EXPECT_TRUE(has(from, 0, zeros));

  // Several beside the kernels, the second from behind the first.
  std::vector<std::byte> others(bytes.rbegin(), bytes.rend());
  HostMemory host(&device, 2 * size);
  std::ranges::copy(others, host.data());
  std::ranges::copy(bytes, host.data() + size);
  const std::vector<BlockId> targets{BlockId{1}, BlockId{2}};
  const std::vector<const std::byte*> sources{host.data(), host.data() + size};
  std::atomic<int> num_done = 0;
  device.num_slow_copies = 0;
  to.write_blocks(targets, sources, [&] { ++num_done; });
  to.finish_copies();
  EXPECT_EQ(num_done.load(), 1);
  EXPECT_EQ(device.num_slow_copies, 0);
  EXPECT_TRUE(has(to, 0, bytes));
  EXPECT_TRUE(has(to, 1, others));
  EXPECT_TRUE(has(to, 2, bytes));

  // And back, in the order of the calls.
  const std::vector<BlockId> sources_back{BlockId{2}, BlockId{1}};
  const std::vector<std::byte*> targets_back{host.data(), host.data() + size};
  device.num_slow_copies = 0;
  to.read_blocks(sources_back, targets_back, [&] { ++num_done; });
  to.write_blocks(std::vector{BlockId{0}}, std::vector<const std::byte*>{host.data() + size}, [&] { ++num_done; });
  to.finish_copies();
  EXPECT_EQ(num_done.load(), 3);
  EXPECT_EQ(device.num_slow_copies, 0);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), host.data()));
  EXPECT_TRUE(has(to, 0, others));
}

TEST(CudaTransformerMemory, HoldsTheKeyBasis) {
  const auto device = open_test_device();
  const TestModel model(LARDER_SOURCE_DIR "/tests/golden/model/tiny_gemma3.gguf", 2, nullptr,
                        kInt4Types);
  model.layout->set_key_basis(measured_basis(model, isa_generic::kTable));
  const KvStorage storage(*model.layout, 1, device.get());
  for (int layer = 0; layer < model.config.num_layers(); ++layer) {
    const PagedKvView view = storage.view(layer);
    const KeyBasis& expected = model.layout->key_basis()[static_cast<std::size_t>(layer)];
    KeyBasis basis = expected;
    std::ranges::fill(basis.balance, 0.0F);
    std::ranges::fill(basis.order, std::int16_t{-1});
    device->copy_out(reinterpret_cast<std::byte*>(basis.balance.data()),
                     reinterpret_cast<const std::byte*>(view.key_balance),
                     basis.balance.size() * sizeof(float));
    device->copy_out(reinterpret_cast<std::byte*>(basis.order.data()),
                     reinterpret_cast<const std::byte*>(view.key_order),
                     basis.order.size() * sizeof(std::int16_t));
    EXPECT_TRUE(basis.balance == expected.balance && basis.order == expected.order) << layer;
    EXPECT_TRUE(view.key_balance != model.layout->view(layer).key_balance) << "the host's";
    EXPECT_TRUE(view.key_order != model.layout->view(layer).key_order) << "the host's";
  }
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

// Of a device that counts its launches of draws.
TEST(CudaTransformerSteps, DrawAndCopyNoMoreThanIsAskedFor) {
  const auto inner = open_test_device();
  WatchedDevice device(*inner);
  static int num_launches;
  static const KernelTable* table;
  num_launches = 0;
  table = &device.kernels();
  KernelTable counting = *table;
  counting.draw_tokens = [](const DrawArgs& args) {
    ++num_launches;
    table->draw_tokens(args);
  };
  const TestModel model(LARDER_SOURCE_DIR "/tests/golden/model/tiny_llama.gguf", 2, &device);
  TestRunner runner(model, counting, 1, {.max_batch_tokens = 16, .max_logit_rows = 8, .max_context_len = 16},
                    blocks_for(model, 16, 1), &device);
  const std::size_t row_bytes = static_cast<std::size_t>(model.config.vocab_size) * sizeof(float);
  // Of eight rows, with so many draws.
  const auto expect = [&](std::vector<std::int32_t> read, int num_draws) {
    runner.reset();
    TestSequence sequence{.tokens = arbitrary_tokens(8, model.config.vocab_size, 3), .num_computed = 0, .tables = {}};
    const TestStep step{&sequence, 8};
    const std::vector<TokenDraw> draws(static_cast<std::size_t>(num_draws), {.uniform = 0.4, .row = 5});
    device.num_copied_out = 0;
    num_launches = 0;
    const Logits& logits = runner.run_to_draw({&step, 1}, true, draws, read);
    EXPECT_EQ(logits.values.size(), read.empty() ? 0 : 8 * row_bytes / sizeof(float));
    EXPECT_EQ(device.num_copied_out, read.size() * row_bytes + (8 + draws.size()) * sizeof(TokenId));
    EXPECT_EQ(num_launches, num_draws > 0 ? 1 : 0);
  };
  expect({}, 0);
  expect({}, 3);
  expect({0, 1, 5, 7}, 2);
  expect({4}, 0);
}

// What a graph of kernels has for an argument: draws lie where they lay a step before, whatever grows.
TEST(CudaTransformerSteps, FindDrawsWhereTheyWere) {
  const auto device = open_test_device();
  const TestModel model(LARDER_SOURCE_DIR "/tests/golden/model/tiny_llama.gguf", 2, device.get());
  BatchStaging staging(*device, {.max_tokens = 8,
                                 .max_logit_rows = 4,
                                 .max_draws = 4,
                                 .max_sequences = 4,
                                 .max_context_len = 64,
                                 .num_groups = model.layout->num_groups()});
  const TokenDraw* first = nullptr;
  for (const int position : {3, 40}) {
    const OneTokenStep step(model, position);
    ForwardBatch batch = step.batch(true);
    const std::vector<TokenDraw> draws = {{.uniform = 0.25}, {.uniform = position / 64.0, .top_k = position}};
    batch.draws = draws;
    const ForwardBatch staged = staging.stage(batch);
    std::vector<TokenDraw> seen(2);
    device->copy_out(reinterpret_cast<std::byte*>(seen.data()), reinterpret_cast<const std::byte*>(staged.draws.data()),
                     sizeof(TokenDraw) * seen.size());
    EXPECT_EQ(seen[1].top_k, position);
    EXPECT_EQ(seen[1].uniform, position / 64.0);
    if (first == nullptr) first = staged.draws.data();
    EXPECT_TRUE(staged.draws.data() == first);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaTransformer,
                         ::testing::Values("tiny_llama", "tiny_qwen2", "tiny_qwen3", "tiny_gemma3",
                                           "tiny_mixed", "tiny_phi3", "tiny_smollm3", "tiny_granite",
                                           "tiny_olmo3", "tiny_glm4", "tiny_gemma2"));

}  // namespace
}  // namespace larder
