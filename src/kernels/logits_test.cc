// What a draw takes from logits, on every instruction set, against double precision.
#include <cmath>
#include <limits>

#include "kernels/test_util.h"

namespace larder {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Barred tokens, and one that no model should give.
std::vector<float> some_logits(int count) {
  auto logits = test::random_values(static_cast<std::size_t>(count), 1, 5);
  for (std::size_t i = 3; i < logits.size(); i += 17) logits[i] = -kInfinity;
  if (logits.size() > 40) logits[40] = std::numeric_limits<float>::quiet_NaN();
  return logits;
}

std::size_t run_end(const std::vector<float>& logits, std::size_t run) {
  return std::min(logits.size(), (run + 1) * kLogitRun);
}

double weight_of(float logit, const WeightArgs& args) {
  if (!(logit > -kInfinity)) return 0;
  const double weight = std::exp((double{logit} - args.best) * args.scale);
  return weight < args.least ? 0 : weight;
}

TEST(Logits, MaximaOfRuns) {
  for (const KernelTable* table : test::tables()) {
    for (const int count : {1, 15, 16, 17, 255, 256, 257, 300, 1000}) {
      const auto logits = some_logits(count);
      std::vector<float> maxima(static_cast<std::size_t>((count + kLogitRun - 1) / kLogitRun), 99);
      table->run_maxima(logits.data(), count, maxima.data());
      for (std::size_t run = 0; run < maxima.size(); ++run) {
        float most = -kInfinity;
        for (std::size_t i = run * kLogitRun; i < run_end(logits, run); ++i)
          most = logits[i] > most ? logits[i] : most;
        EXPECT_EQ(maxima[run], most) << table->name << " " << count;
      }
    }
  }
  const std::vector<float> none(20, -kInfinity);
  for (const KernelTable* table : test::tables()) {
    float most = 0;
    table->run_maxima(none.data(), 20, &most);
    EXPECT_EQ(most, -kInfinity) << table->name;
  }
}

TEST(Logits, WeightsAndTheirSums) {
  for (const KernelTable* table : test::tables()) {
    for (const int count : {1, 15, 16, 17, 255, 256, 257, 300, 1000}) {
      const auto logits = some_logits(count);
      float best = -100;
      for (const float logit : logits) best = logit > best ? logit : best;
      for (const WeightArgs& args : {WeightArgs{.best = best, .scale = 1, .least = 0},
                                     WeightArgs{.best = best, .scale = 30, .least = 0},
                                     WeightArgs{.best = best, .scale = 0.7F, .least = 0.01F}}) {
        std::vector<float> weights(logits.size(), 99);
        table->weights(logits.data(), count, args, weights.data());
        std::vector<float> sums((logits.size() + kLogitRun - 1) / kLogitRun, 99);
        table->run_weights(logits.data(), count, args, sums.data());
        for (std::size_t run = 0; run < sums.size(); ++run) {
          double sum = 0;
          for (std::size_t i = run * kLogitRun; i < run_end(logits, run); ++i) {
            const double expected = weight_of(logits[i], args);
            // Rounding of the exponent grows with its distance from 0.
            ASSERT_NEAR(weights[i], expected, expected * 2e-5 + 1e-36)
                << table->name << " " << logits[i];
            sum += weights[i];
          }
          EXPECT_NEAR(sums[run], sum, sum * 1e-6 + 1e-36) << table->name;
        }
      }
    }
  }
}

TEST(Logits, TheBestWeighsOne) {
  const std::vector<float> logits(21, 3.25F);
  for (const KernelTable* table : test::tables()) {
    std::vector<float> weights(logits.size());
    const WeightArgs args{.best = 3.25F, .scale = 1 / 0.3F, .least = 1};
    table->weights(logits.data(), 21, args, weights.data());
    for (const float weight : weights) EXPECT_EQ(weight, 1) << table->name;
  }
}

}  // namespace
}  // namespace larder
