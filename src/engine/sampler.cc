#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "base/check.h"

namespace larder {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5f;  // temperatures that only the best token survives
constexpr int kLanes = 16;             // partial sums and maxima, so that loops become vectors
constexpr int kRun = 256;              // weights summed as one; a multiple of kLanes

// e^x for x <= 0 within 2 units in the last place; 0 below -87. Without branches or calls.
inline float exp_of_negative(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float power = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;  // to an integer
  const float rest = (clamped - power * 0.693359375f) + power * 2.12194440e-4f;
  float value = 1.9875691500e-4f;
  value = value * rest + 1.3981999507e-3f;
  value = value * rest + 8.3334519073e-3f;
  value = value * rest + 4.1665795894e-2f;
  value = value * rest + 1.6666665459e-1f;
  value = value * rest + 5.0000001201e-1f;
  value = value * rest * rest + rest + 1.0f;
  const std::int32_t exponent = (static_cast<std::int32_t>(power) + 127) << 23;
  value *= std::bit_cast<float>(exponent);
  return x < -87.0f ? 0.0f : value;
}

float max_of(std::span<const float> values) {
  std::array<float, kLanes> best;
  best.fill(-kInfinity);
  const std::size_t num_whole = values.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < num_whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      best[lane] = value > best[lane] ? value : best[lane];
    }
  }
  float most = -kInfinity;
  for (const float value : best) most = std::max(most, value);
  for (const float value : values.subspan(num_whole)) most = std::max(most, value);
  return most;
}

// The best run first, so that only it is searched.
TokenId first_of_best(std::span<const float> logits) {
  constexpr std::size_t kSearched = 2048;
  float most = -kInfinity;
  std::size_t best_begin = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kSearched) {
    const float value = max_of(logits.subspan(begin, std::min(kSearched, logits.size() - begin)));
    if (value > most) {
      most = value;
      best_begin = begin;
    }
  }
  const auto run = logits.subspan(best_begin, std::min(kSearched, logits.size() - best_begin));
  const auto best = std::ranges::find(run, most);
  return best == run.end() ? 0 : static_cast<TokenId>(best - logits.begin());
}

double sum_of(std::span<const float> values) {
  std::array<float, kLanes> sums{};
  const std::size_t num_whole = values.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < num_whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += values[i + lane];
  }
  double sum = 0;
  for (const float value : sums) sum += value;
  for (const float value : values.subspan(num_whole)) sum += value;
  return sum;
}

double sum_in_runs(std::span<const float> values) {
  double sum = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += kRun) {
    sum += sum_of(values.subspan(begin, std::min<std::size_t>(kRun, values.size() - begin)));
  }
  return sum;
}

// weights[i] = e^((logits[i] - best) / temperature)
void fill_weights(std::span<const float> logits, float temperature, std::span<float> weights) {
  const float best = max_of(logits);
  const float scale = 1.0f / temperature;
  const float* from = logits.data();
  float* to = weights.data();
  for (std::size_t i = 0; i < logits.size(); ++i) to[i] = exp_of_negative((from[i] - best) * scale);
}

std::uint64_t mix(std::uint64_t value) {  // the finaliser of SplitMix64 (Steele et al. 2014)
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// In [0, 1), a function of the three alone.
double uniform_of(std::uint64_t seed, int choice, std::size_t index) {
  const std::uint64_t stream = mix(mix(seed) ^ static_cast<std::uint64_t>(choice));
  return static_cast<double>(mix(stream ^ (index * 0xd1342543de82ef95u)) >> 11) * 0x1p-53;
}

// Larger first; equal ones by token.
template <class Candidate>
bool goes_before(const Candidate& left, const Candidate& right) {
  return left.logit != right.logit ? left.logit > right.logit : left.token < right.token;
}

}  // namespace

Sampler::Sampler(int vocab_size)
    : adjusted_(static_cast<std::size_t>(vocab_size)),
      weights_(adjusted_.size()),
      counts_(adjusted_.size()) {
  CHECK(vocab_size > 0, vocab_size);
}

OutputToken Sampler::sample(std::span<const float> logits, const SampleContext& context) {
  CHECK(logits.size() == adjusted_.size(), logits.size());
  const TokenId token = draw(adjust(logits, context), context);
  const int num_best = context.params.num_logprobs;
  return num_best < 0 ? OutputToken{token, 0, {}} : score(logits, token, num_best);
}

OutputToken Sampler::score(std::span<const float> logits, TokenId token, int num_best) {
  fill_weights(logits, 1, weights_);
  const double log_sum = std::log(sum_in_runs(weights_));
  const float best = max_of(logits);
  const auto logprob_of = [&](float logit) { return static_cast<float>(logit - best - log_sum); };
  OutputToken scored{token, logprob_of(logits[static_cast<std::size_t>(token)]), {}};
  if (num_best > 0) {
    select_top_k(logits, std::min(num_best, static_cast<int>(logits.size())));
    for (const Candidate& candidate : candidates_) {
      scored.best.push_back({candidate.token, logprob_of(candidate.logit)});
    }
  }
  return scored;
}

std::span<const float> Sampler::adjust(std::span<const float> logits,
                                       const SampleContext& context) {
  const SamplingParams& params = context.params;
  const bool penalizes = params.repetition_penalty != 1 || params.frequency_penalty != 0 ||
                         params.presence_penalty != 0;
  const bool bars_end = static_cast<int>(context.output.size()) < params.min_tokens;
  if (params.logit_bias.empty() && !penalizes && !bars_end) return logits;
  std::ranges::copy(logits, adjusted_.begin());
  const auto at = [this](TokenId token) -> float& {
    return adjusted_[static_cast<std::size_t>(token)];
  };
  for (const auto& [token, bias] : params.logit_bias) at(token) += bias;
  if (penalizes) penalize(context);
  if (bars_end) {
    for (const TokenId token : context.end_tokens) at(token) = -kInfinity;
    for (const TokenId token : params.stop_token_ids) at(token) = -kInfinity;
  }
  return adjusted_;
}

void Sampler::penalize(const SampleContext& context) {
  const SamplingParams& params = context.params;
  const auto count_of = [this](TokenId token) -> std::int32_t& {
    return counts_[static_cast<std::size_t>(token)];
  };
  // Bit 0: seen at all; above it: times in the output.
  for (const TokenId token : context.prompt) count_of(token) = 1;
  for (const TokenId token : context.output) count_of(token) = (count_of(token) | 1) + 2;
  const auto apply = [&](TokenId token) {
    std::int32_t& count = count_of(token);
    if (count == 0) return;  // done already
    float& logit = adjusted_[static_cast<std::size_t>(token)];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    const std::int32_t num_in_output = count >> 1;
    logit -= params.frequency_penalty * static_cast<float>(num_in_output);
    if (num_in_output > 0) logit -= params.presence_penalty;
    count = 0;
  };
  for (const TokenId token : context.prompt) apply(token);
  for (const TokenId token : context.output) apply(token);
}

TokenId Sampler::draw(std::span<const float> logits, const SampleContext& context) {
  const SamplingParams& params = context.params;
  if (params.temperature < kGreedyBelow || params.top_k == 1) return first_of_best(logits);
  if (max_of(logits) == -kInfinity) return 0;
  const double uniform = uniform_of(context.seed, context.choice, context.output.size());
  const int vocab_size = static_cast<int>(logits.size());
  if (params.top_k > 0 && params.top_k < vocab_size) {
    select_top_k(logits, params.top_k);
    const float best = candidates_.front().logit;
    double sum = 0;
    for (Candidate& candidate : candidates_) {
      candidate.logit = exp_of_negative((candidate.logit - best) / params.temperature);
      sum += candidate.logit;
    }
    double kept = 0;
    std::size_t num_kept = 0;
    while (num_kept < candidates_.size() && (num_kept == 0 || kept < params.top_p * sum)) {
      kept += candidates_[num_kept++].logit;
    }
    candidates_.resize(num_kept);
  } else if (params.top_p < 1) {
    select_top_p(logits, params.temperature, params.top_p);
  } else {
    return draw_from_all(logits, params, uniform);
  }
  return draw_from_candidates(params, uniform);
}

// In order of token.
TokenId Sampler::draw_from_all(std::span<const float> logits, const SamplingParams& params,
                               double uniform) {
  fill_weights(logits, params.temperature, weights_);
  if (params.min_p > 0) {
    for (float& weight : weights_) weight = weight < params.min_p ? 0.0f : weight;
  }
  double left = uniform * sum_in_runs(weights_);
  TokenId last_possible = 0;
  for (std::size_t begin = 0; begin < weights_.size(); begin += kRun) {
    const std::size_t end = std::min(weights_.size(), begin + kRun);
    const double sum = sum_of(std::span(weights_).subspan(begin, end - begin));
    if (left >= sum && end < weights_.size()) {
      left -= sum;
      continue;
    }
    for (std::size_t token = begin; token < end; ++token) {
      if (weights_[token] <= 0) continue;
      last_possible = static_cast<TokenId>(token);
      left -= weights_[token];
      if (left < 0) return last_possible;
    }
  }
  // Rounding may leave a trifle.
  return weights_[static_cast<std::size_t>(last_possible)] > 0 ? last_possible
                                                               : first_of_best(weights_);
}

// candidates_ = the k best, in order.
void Sampler::select_top_k(std::span<const float> logits, int k) {
  constexpr int kMostForHeap = 1024;
  const auto before = goes_before<Candidate>;
  const auto num_kept = static_cast<std::size_t>(k);
  candidates_.clear();
  if (k > kMostForHeap) {
    for (std::size_t i = 0; i < logits.size(); ++i) {
      candidates_.push_back({logits[i], static_cast<TokenId>(i)});
    }
    std::nth_element(candidates_.begin(), candidates_.begin() + (k - 1), candidates_.end(), before);
    candidates_.resize(num_kept);
    std::sort(candidates_.begin(), candidates_.end(), before);
    return;
  }
  // A heap with the worst of the best on top, which few of the later ones displace.
  for (std::size_t i = 0; i < num_kept; ++i) {
    candidates_.push_back({logits[i], static_cast<TokenId>(i)});
  }
  std::make_heap(candidates_.begin(), candidates_.end(), before);
  float worst = candidates_.front().logit;
  for (std::size_t i = num_kept; i < logits.size(); ++i) {
    if (!(logits[i] > worst)) continue;
    std::pop_heap(candidates_.begin(), candidates_.end(), before);
    candidates_.back() = {logits[i], static_cast<TokenId>(i)};
    std::push_heap(candidates_.begin(), candidates_.end(), before);
    worst = candidates_.front().logit;
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), before);
}

// candidates_ = weights of the fewest best tokens that make up top_p, in no order. Linear: only
// tokens about as likely as the last one are sorted, since a float's leading bits tell the others
// apart.
void Sampler::select_top_p(std::span<const float> logits, float temperature, float top_p) {
  constexpr int kShift = 20;  // leaves sign, exponent and 3 bits: 8 buckets for each doubling
  constexpr std::uint32_t kLast = 0x3f800000u >> kShift;  // of 1, the largest weight
  const auto bucket_of = [](float weight) {
    const std::uint32_t bucket = std::bit_cast<std::uint32_t>(weight) >> kShift;
    return bucket < kLast ? bucket : kLast;
  };
  fill_weights(logits, temperature, weights_);
  std::array<double, kLast + 1> sums{};
  for (const float weight : weights_) sums[bucket_of(weight)] += weight;
  double sum = 0;
  for (const double each : sums) sum += each;
  double kept = 0;
  std::uint32_t edge = kLast;
  while (edge > 0 && kept + sums[edge] < top_p * sum) kept += sums[edge--];
  candidates_.clear();
  std::size_t num_certain = 0;
  for (const bool at_edge : {false, true}) {
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const std::uint32_t bucket = bucket_of(weights_[i]);
      if (at_edge ? bucket == edge : bucket > edge) {
        candidates_.push_back({weights_[i], static_cast<TokenId>(i)});
      }
    }
    if (!at_edge) num_certain = candidates_.size();
  }
  std::sort(candidates_.begin() + static_cast<std::ptrdiff_t>(num_certain), candidates_.end(),
            goes_before<Candidate>);
  std::size_t num_kept = num_certain;
  while (num_kept < candidates_.size() && (num_kept == 0 || kept < top_p * sum)) {
    kept += candidates_[num_kept++].logit;
  }
  candidates_.resize(num_kept);
}

// candidates_: weights, the best one's being 1.
TokenId Sampler::draw_from_candidates(const SamplingParams& params, double uniform) {
  double sum = 0;
  for (Candidate& candidate : candidates_) {
    if (candidate.logit < params.min_p) candidate.logit = 0;
    sum += candidate.logit;
  }
  double left = uniform * sum;
  TokenId last_possible = candidates_.front().token;
  for (const Candidate& candidate : candidates_) {
    if (candidate.logit <= 0) continue;
    last_possible = candidate.token;
    left -= candidate.logit;
    if (left < 0) break;
  }
  return last_possible;
}

}  // namespace larder
