#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/heap_size.h"

namespace larder {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5f;  // temperatures that only the best token survives
constexpr std::ptrdiff_t kFewRuns = 8;  // that part of all
constexpr int kHalvings = 5;            // of the logarithm of a weight

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

std::span<const float> run_of(std::span<const float> logits, std::size_t run) {
  const std::size_t begin = run * kLogitRun;
  return logits.subspan(begin, std::min<std::size_t>(kLogitRun, logits.size() - begin));
}

// That weighs so much, or a trifle less.
float logit_of(float weight, const WeightArgs& args) {
  return args.best + (std::log(weight) - 1e-3f) / args.scale;
}

// What is not a number weighs nothing, and has no place in an order.
float comparable(float logit) { return std::isnan(logit) ? -kInfinity : logit; }

bool is_greedy(const SamplingParams& params) {
  return params.temperature < kGreedyBelow || params.top_k == 1;
}
bool bars_end(const SamplingParams& params, std::size_t num_output) {
  return static_cast<int>(num_output) < params.min_tokens;
}
bool changes_logits(const SamplingParams& params, std::size_t num_output) {
  return !params.logit_bias.empty() || Sampler::penalizes(params) || bars_end(params, num_output) ||
         params.constraint != nullptr;
}

// Larger first; equal ones by token.
template <class Candidate>
bool goes_before(const Candidate& left, const Candidate& right) {
  return left.logit != right.logit ? left.logit > right.logit : left.token < right.token;
}

}  // namespace

Sampler::Sampler(int vocab_size)
    : kernels_(&select_kernels()),
      adjusted_(static_cast<std::size_t>(vocab_size)),
      weights_(adjusted_.size()),
      found_maxima_(static_cast<std::size_t>(num_logit_runs(vocab_size))),
      sums_(found_maxima_.size()),
      candidates_(sums_.size() * kLogitRun) {
  CHECK(vocab_size > 0, vocab_size);
}

std::int64_t Sampler::size_bytes(int vocab_size) {
  const auto num_logits = static_cast<std::size_t>(vocab_size);
  const auto num_runs = static_cast<std::size_t>(num_logit_runs(vocab_size));
  return heap_bytes(sizeof(Sampler)) + 2 * heap_bytes(num_logits * sizeof(float)) +
         2 * heap_bytes(num_runs * sizeof(float)) +
         heap_bytes(num_runs * kLogitRun * sizeof(Candidate));
}

bool Sampler::penalizes(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.frequency_penalty != 0 || params.presence_penalty != 0;
}

bool Sampler::takes_token_alone(const SamplingParams& params, std::size_t num_output) {
  return params.num_logprobs < 0 && !changes_logits(params, num_output);
}

bool Sampler::takes_first_of_best(const SamplingParams& params, std::size_t num_output) {
  return is_greedy(params) && takes_token_alone(params, num_output);
}

TokenDraw Sampler::draw_of(const SamplingParams& params, std::uint64_t seed, int choice,
                           std::size_t num_output, int row) {
  return {.uniform = uniform_of(seed, choice, num_output),
          .row = row,
          .top_k = params.top_k,
          .scale = 1.0f / params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p};
}

OutputToken Sampler::sample(std::span<const float> logits, std::span<const float> maxima,
                            const SampleContext& context) {
  CHECK(logits.size() == adjusted_.size(), logits.size());
  const std::span<const float> adjusted = adjust(logits, context);
  const bool is_changed = adjusted.data() != logits.data();
  const float best = find_maxima(adjusted, is_changed ? std::span<const float>{} : maxima);
  const TokenId token = draw(adjusted, best, context);
  const int num_best = context.params.num_logprobs;
  return num_best < 0 ? OutputToken{token, 0, {}} : score(logits, maxima, token, num_best);
}

OutputToken Sampler::score(std::span<const float> logits, std::span<const float> maxima,
                           TokenId token, int num_best) {
  const float best = find_maxima(logits, maxima);
  const double log_sum = std::log(sum_weights(logits, {.best = best}));
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

float Sampler::find_maxima(std::span<const float> logits, std::span<const float> given) {
  CHECK(given.empty() || given.size() == found_maxima_.size(), given.size());
  maxima_ = given;
  if (given.empty()) {
    maxima_ = found_maxima_;
    kernels_->run_maxima(logits.data(), static_cast<std::int64_t>(logits.size()),
                         found_maxima_.data());
  }
  return *std::ranges::max_element(maxima_);
}

double Sampler::sum_weights(std::span<const float> logits, const WeightArgs& args) {
  kernels_->run_weights(logits.data(), static_cast<std::int64_t>(logits.size()), args, sums_.data());
  return std::accumulate(sums_.begin(), sums_.end(), 0.0);
}

// 0 where no logit is above -infinity.
TokenId Sampler::first_of_best(std::span<const float> logits, float best) const {
  if (best == -kInfinity) return 0;
  const auto run = static_cast<std::size_t>(std::ranges::find(maxima_, best) - maxima_.begin());
  const auto within = run_of(logits, run);
  const auto found = std::ranges::find(within, best);
  return static_cast<TokenId>(run * kLogitRun + static_cast<std::size_t>(found - within.begin()));
}

std::span<const float> Sampler::adjust(std::span<const float> logits,
                                       const SampleContext& context) {
  const SamplingParams& params = context.params;
  if (!changes_logits(params, context.num_output)) return logits;
  std::ranges::copy(logits, adjusted_.begin());
  const auto at = [this](TokenId token) -> float& {
    return adjusted_[static_cast<std::size_t>(token)];
  };
  for (const auto& [token, bias] : params.logit_bias) at(token) += bias;
  if (penalizes(params)) penalize(context);
  if (bars_end(params, context.num_output)) {
    for (const TokenId token : context.end_tokens) at(token) = -kInfinity;
    for (const TokenId token : params.stop_token_ids) at(token) = -kInfinity;
  }
  if (params.constraint != nullptr) constrain(context);
  return adjusted_;
}

// End tokens are no text: whether they may come, the constraint's text alone says.
void Sampler::constrain(const SampleContext& context) {
  constexpr std::size_t kBits = 64;
  for (std::size_t i = 0; i < context.end_tokens.size(); ++i)
    weights_[i] = adjusted_[static_cast<std::size_t>(context.end_tokens[i])];  // that are kept for a moment
  for (std::size_t begin = 0; begin < adjusted_.size(); begin += kBits) {
    const std::size_t word = begin / kBits;
    // A model may have logits for more tokens than its vocabulary has.
    const std::uint64_t bits = word < context.allowed.size() ? context.allowed[word] : 0;
    if (bits == ~std::uint64_t{0}) continue;
    const std::size_t count = std::min(kBits, adjusted_.size() - begin);
    const std::span<float> logits = std::span(adjusted_).subspan(begin, count);
    constexpr int kMany = 40;
    if (std::popcount(bits) >= kMany) {
      for (std::uint64_t barred = ~bits; barred != 0; barred &= barred - 1) {
        const auto i = static_cast<std::size_t>(std::countr_zero(barred));
        if (i < count) logits[i] = -kInfinity;
      }
      continue;
    }
    std::array<float, kBits> kept;
    for (std::uint64_t left = bits; left != 0; left &= left - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(left));
      kept[i] = i < count ? logits[i] : 0;
    }
    std::ranges::fill(logits, -kInfinity);
    for (std::uint64_t left = bits; left != 0; left &= left - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(left));
      if (i < count) logits[i] = kept[i];
    }
  }
  for (std::size_t i = 0; i < context.end_tokens.size(); ++i) {
    adjusted_[static_cast<std::size_t>(context.end_tokens[i])] = context.may_end ? weights_[i] : -kInfinity;
  }
}

void Sampler::penalize(const SampleContext& context) {
  CHECK(context.seen != nullptr);
  const SamplingParams& params = context.params;
  context.seen->for_each([&](TokenId token, std::int32_t num_in_output) {
    float& logit = adjusted_[static_cast<std::size_t>(token)];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.frequency_penalty * static_cast<float>(num_in_output);
    if (num_in_output > 0) logit -= params.presence_penalty;
  });
}

TokenId Sampler::draw(std::span<const float> logits, float best, const SampleContext& context) {
  const SamplingParams& params = context.params;
  if (is_greedy(params) || !std::isfinite(best)) return first_of_best(logits, best);
  const double uniform = uniform_of(context.seed, context.choice, context.num_output);
  const WeightArgs args{.best = best, .scale = 1.0f / params.temperature};
  const int vocab_size = static_cast<int>(logits.size());
  if (params.top_k > 0 && params.top_k < vocab_size) {
    select_top_k(logits, params.top_k);
    weigh_candidates(args);
    double sum = 0;
    for (const Candidate& candidate : candidates_) sum += candidate.logit;
    double kept = 0;
    std::size_t num_kept = 0;
    while (num_kept < candidates_.size() && (num_kept == 0 || kept < params.top_p * sum)) {
      kept += candidates_[num_kept++].logit;
    }
    candidates_.resize(num_kept);
  } else if (params.top_p < 1) {
    select_top_p(logits, args, params.top_p);
  } else {
    return draw_from_all(logits, {.best = best, .scale = args.scale, .least = params.min_p}, uniform);
  }
  return draw_from_candidates(params, uniform);
}

// In order of token.
TokenId Sampler::draw_from_all(std::span<const float> logits, const WeightArgs& args,
                               double uniform) {
  double left = uniform * sum_weights(logits, args);
  // Rounding may leave a trifle behind the last run that weighs something.
  std::size_t run = 0;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    if (sums_[i] <= 0) continue;
    run = i;
    if (left < sums_[i]) break;
    left -= sums_[i];
  }
  const auto within = run_of(logits, run);
  std::array<float, kLogitRun> weights;
  kernels_->weights(within.data(), static_cast<std::int64_t>(within.size()), args, weights.data());
  std::size_t last_possible = 0;
  for (std::size_t i = 0; i < within.size(); ++i) {
    if (weights[i] <= 0) continue;
    last_possible = i;
    left -= weights[i];
    if (left < 0) break;
  }
  return static_cast<TokenId>(run * kLogitRun + last_possible);
}

// The candidates' weights in place of their logits.
void Sampler::weigh_candidates(const WeightArgs& args) {
  for (std::size_t i = 0; i < candidates_.size(); ++i) weights_[i] = candidates_[i].logit;
  kernels_->weights(weights_.data(), static_cast<std::int64_t>(candidates_.size()), args,
                    weights_.data());
  for (std::size_t i = 0; i < candidates_.size(); ++i) candidates_[i].logit = weights_[i];
}

// candidates_ = the k best, in order.
void Sampler::select_top_k(std::span<const float> logits, int k) {
  constexpr int kMostForHeap = 1024;
  const auto before = goes_before<Candidate>;
  const auto num_kept = static_cast<std::size_t>(k);
  candidates_.clear();
  if (k > kMostForHeap) {
    for (std::size_t i = 0; i < logits.size(); ++i) {
      candidates_.push_back({comparable(logits[i]), static_cast<TokenId>(i)});
    }
    std::nth_element(candidates_.begin(), candidates_.begin() + (k - 1), candidates_.end(), before);
    candidates_.resize(num_kept);
    std::sort(candidates_.begin(), candidates_.end(), before);
    return;
  }
  // A heap with the worst of the best on top, which few of the later ones displace.
  for (std::size_t i = 0; i < num_kept; ++i) {
    candidates_.push_back({comparable(logits[i]), static_cast<TokenId>(i)});
  }
  std::make_heap(candidates_.begin(), candidates_.end(), before);
  float worst = candidates_.front().logit;
  for (std::size_t run = num_kept / kLogitRun; run < maxima_.size(); ++run) {
    if (!(maxima_[run] > worst)) continue;
    const std::size_t end = std::min(logits.size(), (run + 1) * kLogitRun);
    for (std::size_t i = std::max(num_kept, run * kLogitRun); i < end; ++i) {
      if (!(logits[i] > worst)) continue;
      std::pop_heap(candidates_.begin(), candidates_.end(), before);
      candidates_.back() = {logits[i], static_cast<TokenId>(i)};
      std::push_heap(candidates_.begin(), candidates_.end(), before);
      worst = candidates_.front().logit;
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), before);
}

// candidates_ = weights of the fewest best tokens that make up top_p, in no order.
void Sampler::select_top_p(std::span<const float> logits, const WeightArgs& args, float top_p) {
  const double sum = sum_weights(logits, args);
  const double wanted = top_p * sum;
  // All tokens that weigh less do not make up half of what top_p leaves out.
  auto least = static_cast<float>((1 - top_p) * sum / static_cast<double>(logits.size()) / 2);
  least = std::max(least, 1e-36f);
  // A flat distribution has many that weigh more: the bound between those that make up top_p and
  // those that do not is looked for first.
  const auto is_above = [bound = logit_of(least, args)](float most) { return most >= bound; };
  if (std::ranges::count_if(maxima_, is_above) > std::ssize(maxima_) / kFewRuns) {
    float most = 1;
    for (int halving = 0; halving < kHalvings; ++halving) {
      const float middle = std::sqrt(least * most);
      const double above =
          sum_weights(logits, {.best = args.best, .scale = args.scale, .least = middle});
      (above >= wanted ? least : most) = middle;
    }
  }
  gather(logits, logit_of(least, args));
  weigh_candidates(args);
  keep_top_p(wanted);
}

// candidates_ = all from least on, in order. Without branches, which nothing could foretell.
void Sampler::gather(std::span<const float> logits, float least) {
  std::size_t count = 0;
  for (std::size_t run = 0; run < maxima_.size(); ++run) {
    if (maxima_[run] < least) continue;
    const auto within = run_of(logits, run);
    if (candidates_.size() < count + kLogitRun) candidates_.resize(count + kLogitRun);
    for (std::size_t i = 0; i < within.size(); ++i) {
      candidates_[count] = {within[i], static_cast<TokenId>(run * kLogitRun + i)};
      count += within[i] >= least ? 1 : 0;
    }
  }
  candidates_.resize(count);
}

// The fewest of the best candidates that weigh that much. Linear: only those about as likely as the
// last one are sorted, since a float's leading bits tell the others apart.
void Sampler::keep_top_p(double wanted) {
  constexpr int kShift = 20;  // leaves sign, exponent and 3 bits: 8 buckets for each doubling
  constexpr std::uint32_t kLast = 0x3f800000u >> kShift;  // of 1, the largest weight
  const auto bucket_of = [](const Candidate& candidate) {
    const std::uint32_t bucket = std::bit_cast<std::uint32_t>(candidate.logit) >> kShift;
    return bucket < kLast ? bucket : kLast;
  };
  std::array<double, kLast + 1> sums{};
  for (const Candidate& candidate : candidates_) sums[bucket_of(candidate)] += candidate.logit;
  double kept = 0;
  std::uint32_t edge = kLast;
  while (edge > 0 && kept + sums[edge] < wanted) kept += sums[edge--];
  const auto first_at_edge =
      std::partition(candidates_.begin(), candidates_.end(),
                     [&](const Candidate& candidate) { return bucket_of(candidate) > edge; });
  const auto behind_edge =
      std::partition(first_at_edge, candidates_.end(),
                     [&](const Candidate& candidate) { return bucket_of(candidate) == edge; });
  std::sort(first_at_edge, behind_edge, goes_before<Candidate>);
  auto end = first_at_edge;
  while (end != behind_edge && (end == candidates_.begin() || kept < wanted)) kept += (end++)->logit;
  candidates_.erase(end, candidates_.end());
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
