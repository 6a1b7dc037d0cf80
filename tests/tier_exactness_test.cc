// What comes back from a disk or a Redis server after a restart is what was computed, bit for bit:
// on the real models, for every KV type, through the scheduler and the real tiers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "engine/engine_test_support.h"
#include "kv/kv_type_names.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/remote_test_server.h"
#include "kv/tiers/remote_tier.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {
namespace {

// Model's variable, KV type.
using Case = std::tuple<const char*, const char*>;

class TierExactness : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const char* path = std::getenv(std::get<0>(GetParam()));
    if (path == nullptr) GTEST_SKIP() << std::get<0>(GetParam()) << " is not set";
    model_ = std::make_unique<TinyModel>(path, 2, parse_kv_types(std::get<1>(GetParam())));
    const bool is_f16 = std::string(std::get<1>(GetParam())) == "f16";
    prompt_ = random_tokens(is_f16 ? 700 : 200, 1);  // past Gemma's window of 512
  }

  TierFormat format() const { return test_format(model_->layout.block_size_bytes()); }

  std::unique_ptr<KvTier> open_disk(const TempDir& dir) const {
    DiskTierConfig config;
    config.directory = dir.path();
    config.size_bytes = std::int64_t{2} << 30;
    return std::make_unique<DiskTier>(config, format());
  }

  RigConfig config(std::vector<KvTier*> tiers) const {
    RigConfig result;
    result.num_blocks = 256 * model_->layout.num_groups();
    result.max_model_len = 1024;
    result.tiers = std::move(tiers);
    return result;
  }

  static SamplingParams params() {
    SamplingParams result;
    result.temperature = 0.8f;
    result.seed = 5;
    result.max_tokens = 4;
    result.ignore_eos = true;
    return result;
  }

  static Heard run(Rig& rig, const std::vector<TokenId>& prompt) {
    const std::uint64_t id = rig.add(prompt, params());
    rig.run();
    return rig.heard.at({id, 0});
  }

  static void save(Rig& rig) {
    while (rig.cache.has_unsaved()) {
      rig.cache.poll_tiers();
      std::this_thread::yield();
    }
  }

  // The prompt, cold, then in a new pool over what the tier kept; and one that shares a part.
  void restart(const std::function<std::unique_ptr<KvTier>()>& open) {
    Rig plain(*model_, config({}));
    const Heard expected = run(plain, prompt_);
    const int size = static_cast<int>(prompt_.size());
    const std::vector<TokenId> other =
        joined({prompt_.begin(), prompt_.begin() + size / 2}, random_tokens(60, 9));
    Rig plain_other(*model_, config({}));
    const Heard expected_other = run(plain_other, other);
    {
      const std::unique_ptr<KvTier> tier = open();
      Rig rig(*model_, config({tier.get()}));
      EXPECT_TRUE(same_bits(run(rig, prompt_), expected));
      save(rig);
    }
    const std::unique_ptr<KvTier> tier = open();
    {
      Rig rig(*model_, config({tier.get()}));
      const Heard loaded = run(rig, prompt_);
      EXPECT_TRUE(same_bits(loaded, expected));
      EXPECT_EQ(loaded.usage.num_cached_tokens, (size - 1) / kBlockSize * kBlockSize);
      EXPECT_EQ(loaded.usage.num_loaded_tokens, loaded.usage.num_cached_tokens);
      EXPECT_TRUE(same_bits(run(rig, other), expected_other));
    }
    Rig rig(*model_, config({tier.get()}));
    const Heard loaded = run(rig, other);
    EXPECT_TRUE(same_bits(loaded, expected_other));
    EXPECT_GE(loaded.usage.num_loaded_tokens, size / 2 / kBlockSize * kBlockSize);
  }

  std::unique_ptr<TinyModel> model_;
  std::vector<TokenId> prompt_;
};

TEST_P(TierExactness, FromADisk) {
  const TempDir dir;
  restart([&] { return open_disk(dir); });
}

TEST_P(TierExactness, FromARedisServer) {
  if (!RedisServer::is_installed()) GTEST_SKIP() << "redis-server is not installed";
  if (std::string(std::get<1>(GetParam())) == "bf16") GTEST_SKIP() << "as from a disk";
  RedisServer server;
  RemoteTierConfig config;
  config.url = server.url();
  config.compression_level = 1;
  restart([&] { return std::make_unique<RemoteTier>(config, format()); });
}

// Fault 39: far more work than room, blocks going to the disk and coming back all the time.
TEST_P(TierExactness, InAStormOfPreemptions) {
  if (std::string(std::get<1>(GetParam())) != "f16") GTEST_SKIP() << "of one type";
  const TempDir dir;
  const std::unique_ptr<KvTier> tier = open_disk(dir);
  RigConfig scarce = config({tier.get()});
  scarce.max_model_len = 256;
  scarce.max_batch_tokens = 64;
  scarce.max_prefill_tokens = 64;
  scarce.num_blocks = static_cast<int>(model_->layout.num_blocks_for(256, 64)) * 3 / 2;
  std::vector<Heard> expected;
  std::vector<std::vector<TokenId>> prompts;
  SamplingParams longer = params();
  longer.max_tokens = 40;
  for (std::uint32_t i = 0; i < 8; ++i) {
    prompts.push_back(joined({prompt_.begin(), prompt_.begin() + 64 * (i % 3)},
                             random_tokens(50, 50 + i)));
    Rig alone(*model_, config({}));
    alone.add(prompts.back(), longer);
    alone.run();
    expected.push_back(alone.heard.at({1, 0}));
  }
  Rig rig(*model_, scarce);
  for (int round = 0; round < 2; ++round) {
    for (const auto& prompt : prompts) rig.add(prompt, longer);
    rig.run();
  }
  EXPECT_GT(rig.scheduler.stats().num_preemptions, 0u);
  EXPECT_GT(tier->stats().num_read, 0u);
  for (std::uint64_t i = 0; i < 16; ++i) {
    EXPECT_TRUE(same_bits(rig.heard.at({i + 1, 0}), expected[i % 8])) << i;
  }
  EXPECT_EQ(rig.cache.stats().num_held, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Models, TierExactness,
    ::testing::Combine(::testing::Values("LARDER_TEST_SMOLLM2", "LARDER_TEST_GEMMA3"),
                       ::testing::Values("f16", "bf16", "fp8", "int8", "int4")));

}  // namespace
}  // namespace larder
