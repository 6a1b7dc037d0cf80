// A pass through the model takes no memory, the first one no more than any other: all it needs was taken at start,
// as planned. Around it, a step takes some for a token on its way to the client, and for a block that is completed.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cluster/worker_links.h"
#include "cluster/worker_test_support.h"
#include "engine/engine.h"
#include "engine/engine_test_support.h"
#include "kv/kv_type_names.h"
#include "model/forward/test_model.h"

namespace {

std::atomic<bool> is_counting = false;
std::atomic<int> num_taken = 0;

// Of all threads.
template <class Function>
int allocations_in(Function&& function) {
  num_taken = 0;
  is_counting = true;
  function();
  is_counting = false;
  return num_taken;
}

void* take(void* bytes) {
  if (bytes == nullptr) throw std::bad_alloc();
  if (is_counting) ++num_taken;
  return bytes;
}

}  // namespace

// Not inlined: GCC 12 takes one of a pair that it sees without the other for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) { return take(std::malloc(size)); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  return take(std::aligned_alloc(align, (size + align - 1) / align * align));
}
[[gnu::noinline]] void operator delete(void* bytes) noexcept { std::free(bytes); }
[[gnu::noinline]] void operator delete(void* bytes, std::size_t) noexcept { std::free(bytes); }
[[gnu::noinline]] void operator delete(void* bytes, std::align_val_t) noexcept { std::free(bytes); }
[[gnu::noinline]] void operator delete(void* bytes, std::size_t, std::align_val_t) noexcept { std::free(bytes); }

namespace larder {
namespace {

constexpr int kNumStreams = 16;

TEST(StepMemory, WhatTakesMemoryIsSeen) {
  EXPECT_GE(allocations_in([] { std::vector<int>(100).swap(*std::make_unique<std::vector<int>>()); }), 2);
}

std::vector<TokenId> known_tokens(const TestModel& model, int num_tokens, std::uint32_t seed) {
  std::vector<TokenId> tokens = random_tokens(num_tokens, seed);
  for (TokenId& token : tokens) token %= model.config.vocab_size;
  return tokens;
}

// Model, KV type.
class PassMemory : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(PassMemory, NoPassTakesAny) {
  const auto [name, type] = GetParam();
  const std::string path = LARDER_SOURCE_DIR "/tests/golden/model/" + std::string(name) + ".gguf";
  TestModel model(path, 2, nullptr, parse_kv_types(type));
  if (has_codes(model.layout->types().k)) {
    ThreadPool pool(2);
    model.layout->set_key_basis(
        calibrate_keys(model.config, *model.weights, select_kernels(), pool, known_tokens(model, 100, 77)));
  }
  TestRunner runner(model, select_kernels(), 2,
                    {.max_batch_tokens = 256, .max_logit_rows = 256, .max_context_len = 400},
                    blocks_for(model, 400, kNumStreams + 1));
  std::vector<TestSequence> streams(kNumStreams);
  TestSequence late;
  late.tokens = known_tokens(model, 400, 99);
  streams[0].tokens = known_tokens(model, 400, 1);
  const auto expect_none = [&](const std::vector<TestStep>& steps, bool all_logits, const char* what) {
    runner.prepare(steps, all_logits);
    EXPECT_EQ(allocations_in([&] { runner.run_prepared(); }), 0) << what;
  };
  const auto decodes = [&](int num_streams) {
    std::vector<TestStep> steps;
    for (int i = 0; i < num_streams; ++i) steps.push_back({&streams[static_cast<std::size_t>(i)], 1});
    return steps;
  };
  // One prompt for all, whose blocks they share.
  for (std::size_t done = 0; done < 256; done += 128) expect_none({{&streams[0], 128}}, false, "a prompt");
  for (TestSequence& stream : streams) stream = streams[0];
  expect_none(decodes(1), false, "one stream");
  expect_none(decodes(kNumStreams), false, "many");
  auto mixed = decodes(kNumStreams);
  mixed.push_back({&late, 70});
  expect_none(mixed, false, "many beside a prompt");
  expect_none({{&late, 60}}, true, "logits of a prompt");
  runner.prepare(std::vector<TestStep>{{&late, 64}}, false);
  EXPECT_EQ(allocations_in([&] { runner.run_prepared_in_layers(); }), 0) << "layer by layer";
}

INSTANTIATE_TEST_SUITE_P(All, PassMemory,
                         ::testing::Combine(::testing::Values("tiny_llama", "tiny_gemma3", "tiny_qwen2", "tiny_mixed",
                                                              "tiny_qwen3moe"),
                                            ::testing::Values("f16", "int8", "int4")));
INSTANTIATE_TEST_SUITE_P(Latent, PassMemory,
                         ::testing::Combine(::testing::Values("tiny_deepseek2", "tiny_deepseek3"),
                                            ::testing::Values("f16")));

// Nor one whose products a worker has a part of, here on a thread: neither end takes any.
TEST(WorkersMemory, NoPassTakesAny) {
  const std::string path = LARDER_SOURCE_DIR "/tests/golden/model/tiny_mixed.gguf";
  const TestWorker worker(path);
  WorkerLinksConfig config;
  config.workers = {{"127.0.0.1", worker.port()}};
  config.hello = {.kernels = select_kernels().name, .activations = "int8", .model = "m", .proof = ""};
  config.shares = {1, 1};
  WorkerLinks links(config);
  const TransformerLimits limits{
      .max_batch_tokens = 128, .max_logit_rows = 64, .max_context_len = 400, .split = links.split()};
  links.assign({limits.max_batch_tokens, limits.max_logit_rows});
  TestModel model(path);
  const MappedFile file(path);
  ThreadPool pool(1);
  model.weights = std::make_unique<Weights>(model.config, GgufFile(file.bytes()), pool, LoadProgress(), nullptr,
                                            model.config.num_layers(), MachineShare{limits.split, 0});
  links.await_ready();
  TestRunner runner(model, select_kernels(), 1, limits, blocks_for(model, 400, 2), nullptr, &links);
  TestSequence stream;
  stream.tokens = known_tokens(model, 400, 1);
  for (const int num_tokens : {100, 1, 60, 1}) {
    runner.prepare(std::vector<TestStep>{{&stream, num_tokens}}, false);
    EXPECT_EQ(allocations_in([&] { runner.run_prepared(); }), 0) << num_tokens;
  }
  EXPECT_GT(links.stats()[0].received_bytes, 0U);
}

// With guesses and without, drawn by temperature.
class EngineMemory : public ::testing::TestWithParam<int> {};

TEST_P(EngineMemory, AStepTakesItForTokensAndBlocks) {
  TinyModel model("tiny_llama", 2);
  SteadyClock clock;
  const EngineConfig config{.num_blocks = 2000,
                            .max_model_len = 400,
                            .max_batch_tokens = 64,
                            .max_draft_tokens = GetParam()};
  KvStorage storage(model.layout, config.num_blocks);
  Transformer transformer(model.config, model.weights, model.layout, select_kernels(), model.pool,
                          {.max_batch_tokens = 64, .max_logit_rows = 64, .max_context_len = 400});
  Engine engine(config, transformer, storage, model.layout, {}, clock);
  int num_tokens = 0;
  for (int i = 0; i < kNumStreams; ++i) {
    Request request;
    request.prompt = random_tokens(20, static_cast<std::uint32_t>(i + 1));
    request.sampling.max_tokens = 370;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 0.7F;
    request.on_update = [&](RequestUpdate&& update) { num_tokens += static_cast<int>(update.tokens.size()); };
    engine.submit(std::move(request));
  }
  const auto step = [&](int times) {
    for (int i = 0; i < times; ++i) ASSERT_TRUE(engine.step());
  };
  step(40);
  num_tokens = 0;
  const int num_allocations = allocations_in([&] { step(20); });
  EXPECT_GE(num_tokens, 20 * kNumStreams);
  // A completed block has a place in the index and in its order; a list that has grown doubles.
  const int num_blocks = num_tokens / kBlockSize + kNumStreams;
  EXPECT_LE(num_allocations, num_tokens + 3 * num_blocks + 3 * kNumStreams);
}

INSTANTIATE_TEST_SUITE_P(Drafts, EngineMemory, ::testing::Values(0, 8));

}  // namespace
}  // namespace larder
