#include "model/expert_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace larder {
namespace {

struct Choice {
  std::vector<std::int32_t> chosen;
  std::vector<float> weights;
};

Choice choose(const ExpertConfig& experts, const std::vector<float>& scores, const std::vector<float>& bias = {}) {
  Choice choice{std::vector<std::int32_t>(static_cast<std::size_t>(experts.num_chosen)),
                std::vector<float>(static_cast<std::size_t>(experts.num_chosen))};
  choose_experts(experts, scores.data(), bias.empty() ? nullptr : bias.data(), choice.chosen.data(),
                 choice.weights.data());
  return choice;
}

void expect_weights(const Choice& choice, const std::vector<double>& wanted) {
  ASSERT_EQ(choice.weights.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(choice.weights[i], wanted[i], 1e-6) << i;
}

using Ids = std::vector<std::int32_t>;

TEST(ExpertChoice, WeighsBySoftmax) {
  const std::vector<float> scores = {1, 3, -2, 2};
  const double sum = std::exp(1) + std::exp(3) + std::exp(-2) + std::exp(2);
  ExpertConfig experts{.num_experts = 4, .num_chosen = 2};
  Choice choice = choose(experts, scores);
  EXPECT_EQ(choice.chosen, (Ids{1, 3}));
  expect_weights(choice, {std::exp(3) / (std::exp(3) + std::exp(2)), std::exp(2) / (std::exp(3) + std::exp(2))});
  experts.normalises = false;
  experts.scale = 1.5F;
  expect_weights(choose(experts, scores), {1.5 * std::exp(3) / sum, 1.5 * std::exp(2) / sum});
}

// By their scores, of which a softmax over all would make zeros.
TEST(ExpertChoice, WeighsThoseChosenAlone) {
  const ExpertConfig experts{.num_experts = 5, .num_chosen = 3, .gating = ExpertGating::kSoftmaxOfChosen};
  const Choice choice = choose(experts, {-300, 1, -200, -201, 0});
  EXPECT_EQ(choice.chosen, (Ids{1, 2, 4}));
  expect_weights(choice, {1 / (1 + std::exp(-1)), 0, 1 / (1 + std::exp(1))});
}

TEST(ExpertChoice, BiasChoosesButDoesNotWeigh) {
  const ExpertConfig experts{.num_experts = 3, .num_chosen = 1, .gating = ExpertGating::kSigmoid, .normalises = false};
  const Choice choice = choose(experts, {2, 1, 0}, {0, 0, 0.6F});
  EXPECT_EQ(choice.chosen, Ids{2});
  expect_weights(choice, {0.5});
}

TEST(ExpertChoice, TakesTheFirstOfEquals) {
  const ExpertConfig experts{.num_experts = 5, .num_chosen = 3};
  EXPECT_EQ(choose(experts, {1, 1, 1, 1, 1}).chosen, (Ids{0, 1, 2}));
}

// The best expert of all stands in a group whose second is weak.
TEST(ExpertChoice, ChoosesWithinTheBestGroups) {
  const ExpertConfig experts{.num_experts = 6, .num_chosen = 2, .gating = ExpertGating::kSigmoid, .num_groups = 3,
                             .num_chosen_groups = 1};
  EXPECT_EQ(choose(experts, {3, -9, 1, 2, 0, 0}).chosen, (Ids{2, 3}));
}

TEST(ExpertChoice, KeepsToGroupsOfOne) {
  const ExpertConfig experts{.num_experts = 4, .num_chosen = 2, .num_groups = 4, .num_chosen_groups = 2};
  EXPECT_EQ(choose(experts, {1, 4, 2, 3}).chosen, (Ids{1, 3}));
}

TEST(ExpertChoice, OneAloneWeighsOne) {
  const ExpertConfig experts{.num_experts = 3, .num_chosen = 1};
  for (const float score : {0.1F, 0.7F, 3.0F, -2.0F}) EXPECT_EQ(choose(experts, {score, 0, 0.05F}).weights[0], 1.0F);
}

// Where all sigmoids vanish, weights are finite.
TEST(ExpertChoice, SurvivesScoresThatVanish) {
  const ExpertConfig experts{.num_experts = 2, .num_chosen = 2, .gating = ExpertGating::kSigmoid};
  for (const float weight : choose(experts, {-800, -800}).weights) EXPECT_TRUE(std::isfinite(weight));
}

}  // namespace
}  // namespace larder
