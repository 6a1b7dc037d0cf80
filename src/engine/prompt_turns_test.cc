#include "engine/prompt_turns.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

constexpr int kBrief = 16;

// A turn that a prompt takes as a chunk.
void take_turn(PromptTurns& turns, bool passes_a_longer) {
  turns.begin(kBrief);
  turns.take({.is_long = true, .passes_a_longer = passes_a_longer});
}

bool next_lets_pass(PromptTurns& turns) {
  turns.begin(kBrief);
  return turns.lets_pass();
}

TEST(PromptTurns, ALongPromptsTurnIsFollowedByOneForShorterOnes) {
  PromptTurns turns;
  EXPECT_FALSE(next_lets_pass(turns));
  take_turn(turns, false);
  EXPECT_TRUE(next_lets_pass(turns));
  turns.take({.is_long = false, .passes_a_longer = true});
  EXPECT_FALSE(next_lets_pass(turns));
}

TEST(PromptTurns, WhoPassesHasNoSecondTurnThoughItIsAChunk) {
  PromptTurns turns;
  take_turn(turns, false);
  take_turn(turns, true);
  for (int i = 0; i < 3; ++i) {  // its layers pass over several steps
    turns.begin_between_layers(kBrief, 100);
    EXPECT_TRUE(turns.lets_pass());
    turns.take({.is_long = true, .passes_a_longer = false});
  }
  EXPECT_FALSE(next_lets_pass(turns));
}

TEST(PromptTurns, ATurnThatNobodyTakesIsStillToCome) {
  PromptTurns turns;
  take_turn(turns, false);
  EXPECT_TRUE(next_lets_pass(turns));
  EXPECT_TRUE(next_lets_pass(turns));
  EXPECT_EQ(turns.num(), 2u);
}

TEST(PromptTurns, TheFirstToGiveWayDecidesWhoPasses) {
  PromptTurns turns;
  EXPECT_FALSE(turns.gives_way(0, 1000)) << "nobody passes yet";
  take_turn(turns, false);
  turns.begin(kBrief);
  EXPECT_FALSE(turns.gives_way(0, kBrief));
  EXPECT_TRUE(turns.gives_way(0, 400));
  EXPECT_FALSE(turns.gives_way(0, 50)) << "an eighth";
  EXPECT_TRUE(turns.gives_way(0, 51));
  EXPECT_TRUE(turns.gives_way(0, 8000));
  EXPECT_TRUE(turns.gives_way(0, 51)) << "the first decides";
  EXPECT_TRUE(turns.gives_way(1, 5)) << "less urgent";
  EXPECT_FALSE(turns.gives_way(-1, 8000)) << "more urgent";
  turns.end_passing();
  EXPECT_FALSE(turns.gives_way(0, 400));
}

TEST(PromptTurns, BetweenLayersHalfAsLongIsTheMost) {
  PromptTurns turns;
  turns.begin_between_layers(kBrief, 20);
  EXPECT_TRUE(turns.gives_way(0, 20));
  EXPECT_FALSE(turns.gives_way(0, 10));
  EXPECT_TRUE(turns.gives_way(0, 11));
}

}  // namespace
}  // namespace larder
