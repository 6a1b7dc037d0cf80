// A hit equals a miss on the real models, on every instruction set of this machine: the logits of
// every draw, compared bit for bit through the scheduler and the cache.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine_test_support.h"
#include "kv/kv_type_names.h"

namespace larder {
namespace {

constexpr int kNumOutput = 4;
constexpr int kMaxModelLen = 1024;

// Model's variable, instruction set, KV type.
using Case = std::tuple<const char*, Isa, const char*>;

class RealExactness : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const char* path = std::getenv(std::get<0>(GetParam()));
    if (path == nullptr) GTEST_SKIP() << std::get<0>(GetParam()) << " is not set";
    kernels_ = kernels_for(std::get<1>(GetParam()));
    if (kernels_ == nullptr) GTEST_SKIP() << "not on this machine";
    if (std::get<1>(GetParam()) == Isa::kAvx512Bf16 && kernels_ != &best_kernels())
      GTEST_SKIP() << "with AMX it is nobody's choice";
    std::printf("on %s\n", kernels_->name);
    const KvTypes types = parse_kv_types(std::get<2>(GetParam()));
    if (types != KvTypes{} && kernels_->attention != select_kernels().attention)
      GTEST_SKIP() << "codes are tested on the machine's best set, and in the kernels' own tests";
    // Some ten tokens a second: one model's warm prompt. engine_exactness_generic goes all ways.
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    const bool is_one = std::string(std::get<0>(GetParam())) == "LARDER_TEST_SMOLLM2" &&
                        test.starts_with("WarmAndPartlyWarm");
    if (is_generic() && !is_one && select_kernels().isa != Isa::kGeneric)
      GTEST_SKIP() << "the generic set is slow";
    model_ = std::make_unique<TinyModel>(path, 1, types);
    // Gemma's window is 512: its sliding layers forget the prompt's beginning, on the machine's best set. The tiny
    // Gemma takes all sets past a window.
    const int length = types == KvTypes{} && kernels_ == &best_kernels() ? 600 : 120;
    prompt_ = random_tokens(is_generic() ? 2 * kBlockSize + 2 : length, 1);
  }

  static bool is_generic() { return std::get<1>(GetParam()) == Isa::kGeneric; }

  RigConfig config(int max_batch_tokens = 512) const {
    RigConfig result;
    result.num_blocks = 256 * model_->layout.num_groups();
    result.max_batch_tokens = max_batch_tokens;
    result.max_prefill_tokens = max_batch_tokens;
    result.max_model_len = kMaxModelLen;
    result.kernels = kernels_;
    return result;
  }

  static SamplingParams params(std::uint64_t seed) {
    SamplingParams result;
    result.temperature = 0.8f;
    result.seed = seed;
    result.max_tokens = kNumOutput;
    result.ignore_eos = true;
    return result;
  }

  Heard run(Rig& rig, const std::vector<TokenId>& prompt, std::uint64_t seed = 5) {
    const std::uint64_t id = rig.add(prompt, params(seed));
    rig.run();
    return rig.heard.at({id, 0});
  }

  Heard cold(const std::vector<TokenId>& prompt, std::uint64_t seed = 5) {
    Rig rig(*model_, config());
    return run(rig, prompt, seed);
  }

  std::vector<TokenId> prefix(int num_tokens) const {
    return {prompt_.begin(), prompt_.begin() + num_tokens};
  }

  const KernelTable* kernels_ = nullptr;
  std::unique_ptr<TinyModel> model_;
  std::vector<TokenId> prompt_;
};

TEST_P(RealExactness, WarmAndPartlyWarm) {
  const Heard expected = cold(prompt_);
  const int length = static_cast<int>(prompt_.size());
  const int num_others = is_generic() ? 12 : 40;
  Rig rig(*model_, config());
  // In turn: others that share a part, then the prompt itself, twice.
  for (const int num_shared : {3, length / 2 + 1, length - 5}) {
    if (is_generic() && num_shared == 3) continue;  // slow
    run(rig, joined(prefix(num_shared), random_tokens(num_others, 99)), 1);
    Rig fresh(*model_, config());
    run(fresh, joined(prefix(num_shared), random_tokens(num_others, 99)), 1);
    const Heard partly = run(fresh, prompt_);
    EXPECT_GE(partly.usage.num_cached_tokens, num_shared);
    EXPECT_TRUE(same_bits(partly, expected)) << num_shared;
  }
  for (int round = 0; round < 2; ++round) {
    const Heard warm = run(rig, prompt_);
    EXPECT_TRUE(same_bits(warm, expected)) << round;
    if (round == 1) {
      EXPECT_EQ(warm.usage.num_cached_tokens, length - 1);
    }
  }
}

TEST_P(RealExactness, ChunkedAndOnTwoThreads) {
  if (std::string(std::get<2>(GetParam())) == "int8") GTEST_SKIP() << "as with int4";
  const Heard expected = cold(prompt_);
  for (const int max_batch_tokens : {7, 16, 100}) {
    if (is_generic() && max_batch_tokens == 16) continue;  // slow
    Rig rig(*model_, config(max_batch_tokens));
    EXPECT_TRUE(same_bits(run(rig, prompt_), expected)) << max_batch_tokens;
  }
  const auto short_prompt = prefix(is_generic() ? kBlockSize + 2 : 30);
  const Heard expected_short = cold(short_prompt);
  Rig one_by_one(*model_, config(1));
  EXPECT_TRUE(same_bits(run(one_by_one, short_prompt), expected_short));
  TinyModel two(model_->file.path(), 2, model_->layout.types());
  Rig rig(two, config());
  EXPECT_TRUE(same_bits(run(rig, short_prompt), expected_short));
}

TEST_P(RealExactness, InABatchOf16AndPreempted) {
  if (std::string(std::get<2>(GetParam())) != "f16") GTEST_SKIP() << "of one type";
  const int length = static_cast<int>(prompt_.size());
  const int half = std::min(4, length / 2 / kBlockSize) * kBlockSize;
  // All 16 on the machine's best set: how a batch is made depends on no set.
  const std::uint64_t num_prompts = is_generic() ? 3 : kernels_ == &best_kernels() ? 16 : 5;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<Heard> expected;
  for (std::uint64_t i = 0; i < num_prompts; ++i) {
    // One token short of two blocks: all need another at their second draw.
    prompts.push_back(
        joined(prefix(half * static_cast<int>(i % 2)),
               random_tokens(2 * kBlockSize - 1, static_cast<std::uint32_t>(100 + i))));
    expected.push_back(cold(prompts.back(), i));
  }
  Rig together(*model_, config());
  for (std::uint64_t i = 0; i < num_prompts; ++i) together.add(prompts[i], params(i));
  together.run();
  // Room for one sequence of the greatest length, which others fill to the brim.
  RigConfig scarce = config(64);
  scarce.max_model_len = half + 4 * kBlockSize;
  scarce.num_blocks = static_cast<int>(model_->layout.num_blocks_for(scarce.max_model_len, 64));
  Rig pressed(*model_, scarce);
  for (std::uint64_t i = 0; i < num_prompts; ++i) pressed.add(prompts[i], params(i));
  pressed.run();
  for (std::uint64_t i = 0; i < num_prompts; ++i) {
    EXPECT_TRUE(same_bits(together.heard.at({i + 1, 0}), expected[i])) << i;
    EXPECT_TRUE(same_bits(pressed.heard.at({i + 1, 0}), expected[i])) << i;
  }
  EXPECT_GT(pressed.scheduler.stats().num_preemptions, 0u);
}

// Attention reads the blocks of the prefix once for all of them.
TEST_P(RealExactness, DecodedTogetherBehindOnePrefix) {
  if (std::string(std::get<2>(GetParam())) != "f16") GTEST_SKIP() << "of one type";
  constexpr std::uint64_t kNumPrompts = 4;
  Rig together(*model_, config());
  run(together, prompt_);
  std::vector<Heard> expected;
  std::vector<std::uint64_t> ids;
  for (std::uint64_t i = 0; i < kNumPrompts; ++i) {
    const auto prompt = joined(prompt_, random_tokens(5 + static_cast<int>(i), static_cast<std::uint32_t>(200 + i)));
    expected.push_back(cold(prompt, i));
    ids.push_back(together.add(prompt, params(i)));
  }
  together.run();
  for (std::uint64_t i = 0; i < kNumPrompts; ++i) {
    const Heard& heard = together.heard.at({ids[i], 0});
    EXPECT_TRUE(same_bits(heard, expected[i])) << i;
    EXPECT_GE(heard.usage.num_cached_tokens, static_cast<int>(prompt_.size()) - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, RealExactness,
    ::testing::Combine(::testing::Values("LARDER_TEST_SMOLLM2", "LARDER_TEST_GEMMA3"),
                       ::testing::Values(Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx),
                       ::testing::Values("f16", "int8", "int4")));

}  // namespace
}  // namespace larder
