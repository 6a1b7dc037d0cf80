#include "model/expert_choice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

namespace larder {
namespace {

// By double's exponential: a float's differs more from one C library to the next.
float sigmoid(float x) { return static_cast<float>(1 / (1 + std::exp(-static_cast<double>(x)))); }

void softmax(const float* scores, std::span<float> weights) {
  const float best = *std::max_element(scores, scores + weights.size());
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double weight = std::exp(static_cast<double>(scores[i]) - best);
    weights[i] = static_cast<float>(weight);
    sum += weight;
  }
  for (float& weight : weights) weight = static_cast<float>(weight / sum);
}

void weigh(const ExpertConfig& experts, const float* scores, std::span<float> weights) {
  switch (experts.gating) {
    case ExpertGating::kSoftmax:
      return softmax(scores, weights);
    case ExpertGating::kSigmoid:
      std::ranges::transform(scores, scores + weights.size(), weights.begin(), sigmoid);
      return;
    case ExpertGating::kSoftmaxOfChosen:
      std::copy_n(scores, weights.size(), weights.begin());
      return;
  }
}

// Leaves out the experts of all groups but the best: by their best expert, or by the sum of the two best where
// sigmoids rank (DeepSeek-V2 and V3).
void keep_best_groups(const ExpertConfig& experts, std::span<float> ranks) {
  const auto num_groups = static_cast<std::size_t>(experts.num_groups);
  const std::size_t size = ranks.size() / num_groups;
  std::array<float, kMaxExperts> sums;
  for (std::size_t group = 0; group < num_groups; ++group) {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    float best = kNone, second = kNone;
    for (const float rank : ranks.subspan(group * size, size)) {
      second = std::max(second, std::min(best, rank));
      best = std::max(best, rank);
    }
    sums[group] = size > 1 && experts.gating == ExpertGating::kSigmoid ? best + second : best;
  }
  for (std::size_t group = 0; group < num_groups; ++group) {
    std::size_t num_better = 0;
    for (std::size_t other = 0; other < num_groups; ++other)
      num_better += sums[other] > sums[group] || (sums[other] == sums[group] && other < group) ? 1 : 0;
    if (num_better < static_cast<std::size_t>(experts.num_chosen_groups)) continue;
    std::ranges::fill(ranks.subspan(group * size, size), -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

void choose_experts(const ExpertConfig& experts, const float* scores, const float* bias,
                    std::int32_t* chosen, float* weights) {
  const auto num_experts = static_cast<std::size_t>(experts.num_experts);
  std::array<float, kMaxExperts> all_weights, ranks;
  const auto all = std::span(all_weights).first(num_experts);
  weigh(experts, scores, all);
  for (std::size_t i = 0; i < num_experts; ++i) ranks[i] = all[i] + (bias != nullptr ? bias[i] : 0);
  if (experts.num_chosen_groups < experts.num_groups) keep_best_groups(experts, std::span(ranks).first(num_experts));

  for (int k = 0; k < experts.num_chosen; ++k) {
    const auto best = std::max_element(ranks.begin(), ranks.begin() + experts.num_experts);
    chosen[k] = static_cast<std::int32_t>(best - ranks.begin());
    *best = -std::numeric_limits<float>::infinity();
  }
  std::sort(chosen, chosen + experts.num_chosen);
  const auto of_chosen = std::span(weights, static_cast<std::size_t>(experts.num_chosen));
  for (std::size_t k = 0; k < of_chosen.size(); ++k) of_chosen[k] = all[static_cast<std::size_t>(chosen[k])];
  if (experts.gating == ExpertGating::kSoftmaxOfChosen) softmax(weights, of_chosen);
  float sum = 0;
  for (const float weight : of_chosen) sum += weight;
  constexpr float kLeastSum = 1e-20F;  // where all sigmoids are 0
  for (int k = 0; k < experts.num_chosen; ++k) {
    if (experts.normalises) weights[k] /= std::max(sum, kLeastSum);  // of one alone, exactly 1
    weights[k] *= experts.scale;
  }
}

}  // namespace larder
