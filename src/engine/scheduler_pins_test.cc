// What requests keep in the cache: pins, and the priority of their blocks.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engine/engine_test_support.h"
#include "engine/scheduler.h"

namespace larder {
namespace {

class SchedulerPins : public ::testing::Test {
 protected:
  TinyModel model_{"tiny_llama"};
};

TEST_F(SchedulerPins, PinnedPromptsAndThoseOfHighPriorityStay) {
  for (const bool is_pinned : {true, false}) {
    Rig rig(model_, {.num_blocks = 40});
    const auto kept = random_tokens(160, 1), other = random_tokens(160, 2);
    if (is_pinned) rig.pins = {{.num_tokens = 160, .ttl_s = 60}};
    rig.add(kept, greedy(4), 1, is_pinned ? 0 : -1);
    rig.pins.clear();
    rig.add(other, greedy(4));
    rig.run();
    EXPECT_EQ(rig.cache.stats().num_pinned, is_pinned ? 10 : 0);
    for (std::uint32_t i = 3; i < 8; ++i) {
      rig.add(random_tokens(100, i), greedy(4));
      rig.run();
    }
    const std::uint64_t kept_again = rig.add(kept, greedy(1));
    const std::uint64_t other_again = rig.add(other, greedy(1));
    rig.run();
    EXPECT_EQ(rig.heard.at({kept_again, 0}).usage.num_cached_tokens, 159);
    EXPECT_LT(rig.heard.at({other_again, 0}).usage.num_cached_tokens, 159);
  }
}

TEST_F(SchedulerPins, PinsAtPlacesOfThePrompt) {
  Rig rig(model_, {.num_blocks = 40});
  const auto prompt = random_tokens(160, 1);
  const auto serve = [&](std::vector<PromptPin> pins) {
    rig.pins = std::move(pins);
    const std::uint64_t id = rig.add(prompt, greedy(2));
    rig.run();
    return rig.heard.at({id, 0}).usage;
  };
  const RequestUsage first = serve({{20, 3600}, {100, 300}});
  EXPECT_EQ(rig.cache.stats().num_pinned, 7);
  EXPECT_EQ(first.written[0].num_tokens, 20);
  EXPECT_EQ(first.written[0].ttl_s, 3600);
  EXPECT_EQ(first.written[1].num_tokens, 80);
  EXPECT_EQ(first.num_written_tokens(), 100);
  rig.pins.clear();
  for (std::uint32_t i = 3; i < 8; ++i) {
    rig.add(random_tokens(200, i), greedy(4));
    rig.run();
  }
  const RequestUsage last = serve({{100, 300}, {140, 0}});
  EXPECT_EQ(last.num_cached_tokens, 112);  // the blocks that hold 100 tokens
  EXPECT_EQ(last.written[0].num_tokens, 0);
  EXPECT_EQ(last.written[1].num_tokens, 28);
  // All but the last token is cached now; that one is written when a pin covers it.
  EXPECT_EQ(serve({{100, 300}}).num_written_tokens(), 0);
  EXPECT_EQ(serve({{160, 0}}).num_written_tokens(), 1);
}

TEST_F(SchedulerPins, UsageTellsWhatWasRefusedAPin) {
  Rig rig(model_, {.num_blocks = 40});  // of which half may be pinned
  rig.pins = {{.num_tokens = 160, .ttl_s = 60}};
  const auto written = [&](std::uint32_t seed) {
    const std::uint64_t id = rig.add(random_tokens(160, seed), greedy(1));
    rig.run();
    return rig.heard.at({id, 0}).usage.written[0];
  };
  EXPECT_TRUE(written(1).is_pinned);
  EXPECT_TRUE(written(2).is_pinned);
  const WrittenTokens refused = written(3);
  EXPECT_EQ(rig.cache.stats().num_pins_refused, 1u);
  EXPECT_FALSE(refused.is_pinned);
  EXPECT_EQ(refused.ttl_s, 60) << "as asked";
  EXPECT_EQ(refused.num_tokens, 160);
}

// Its window's blocks are given back, and taken by the rest of the prompt.
TEST_F(SchedulerPins, APlaceThatTheWindowLeavesIsKept) {
  TinyModel model("tiny_gemma3");
  for (const int batch_tokens : {16, 100}) {
    const auto num_blocks = model.layout.num_blocks_for(Rig::kMaxModelLen, batch_tokens) + 8;
    Rig rig(model, {.num_blocks = static_cast<int>(num_blocks), .max_batch_tokens = batch_tokens});
    const auto prompt = random_tokens(230, 1);
    rig.pins = {{40, 60}};
    rig.add(prompt, greedy(1));
    rig.run();
    rig.pins.clear();
    for (std::uint32_t i = 2; i < 6; ++i) {
      rig.add(random_tokens(230, i), greedy(1));
      rig.run();
    }
    EXPECT_GT(rig.cache.stats().num_evicted, 0u);
    EXPECT_EQ(rig.cache.stats().num_pins_refused, 0u);
    const std::vector<TokenId> pinned(prompt.begin(), prompt.begin() + 40);
    const std::uint64_t again = rig.add(joined(pinned, random_tokens(40, 9)), greedy(1));
    rig.run();
    EXPECT_GE((rig.heard[{again, 0}]).usage.num_cached_tokens, 40) << batch_tokens;
  }
}

}  // namespace
}  // namespace larder
