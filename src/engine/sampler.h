// Logits to a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "engine/request.h"
#include "engine/token_counts.h"
#include "kernels/kernels.h"

namespace larder {

// What a draw depends on, beside the logits: never on the batch or on time.
struct SampleContext {
  const SamplingParams& params;
  const TokenCounts* seen = nullptr;  // in prompt and output, where penalizes() says so
  std::size_t num_output = 0;         // tokens so far
  // Not before params.min_tokens; empty with ignore_eos.
  std::span<const TokenId> end_tokens;
  std::uint64_t seed = 0;
  int choice = 0;
  // With params.constraint: a bit for each token that may come, and whether end tokens may.
  std::span<const std::uint64_t> allowed = {};
  bool may_end = true;
};

// Logit bias, penalties (over prompt and output, or output), tokens barred, temperature, top-k,
// top-p (arXiv:1904.09751), min-p (arXiv:2407.01082); then one draw, from a generator that is a
// function of (seed, choice, output index). Temperature 0: the first of the best. Linear in the
// vocabulary unless top-p keeps most of a flat distribution; allocates nothing but what it returns.
// Thread: one at a time.
class Sampler {
 public:
  explicit Sampler(int vocab_size);
  // Whether a draw depends on the tokens before it: on SampleContext::seen.
  static bool penalizes(const SamplingParams& params);
  // Whether sample() gives a token and nothing else, of logits as the model gave them: then a device draws it
  // where they are, and the host does not. It may round otherwise, so nothing but the request says who draws.
  static bool takes_token_alone(const SamplingParams& params, std::size_t num_output);
  // And whether that is the first of the best logits, whatever they are.
  static bool takes_first_of_best(const SamplingParams& params, std::size_t num_output);
  // sample()'s draw, for a device, from logits of that row.
  static TokenDraw draw_of(const SamplingParams& params, std::uint64_t seed, int choice,
                           std::size_t num_output, int row);
  // What one takes when it is made, for the planner.
  static std::int64_t size_bytes(int vocab_size);

  // logits: [vocab_size], as the model gave them; maxima: their run_maxima(), or none.
  OutputToken sample(std::span<const float> logits, std::span<const float> maxima,
                     const SampleContext& context);
  // A token that was not drawn but given: its logprob, and the num_best best.
  OutputToken score(std::span<const float> logits, std::span<const float> maxima, TokenId token,
                    int num_best);

 private:
  struct Candidate {
    float logit;  // or weight, see where
    TokenId token;
  };

  std::span<const float> adjust(std::span<const float> logits, const SampleContext& context);
  void penalize(const SampleContext& context);
  void constrain(const SampleContext& context);
  // Of these logits: maxima_, those given if any are, and the best of all.
  float find_maxima(std::span<const float> logits, std::span<const float> given);
  // Of weights: sums_, and the sum of all.
  double sum_weights(std::span<const float> logits, const WeightArgs& args);
  // The following take maxima_ as of the same logits.
  TokenId first_of_best(std::span<const float> logits, float best) const;
  TokenId draw(std::span<const float> logits, float best, const SampleContext& context);
  TokenId draw_from_all(std::span<const float> logits, const WeightArgs& args, double uniform);
  void select_top_k(std::span<const float> logits, int k);
  void select_top_p(std::span<const float> logits, const WeightArgs& args, float top_p);
  void gather(std::span<const float> logits, float least);
  void weigh_candidates(const WeightArgs& args);
  void keep_top_p(double wanted);
  TokenId draw_from_candidates(const SamplingParams& params, double uniform);

  const KernelTable* kernels_;
  std::vector<float> adjusted_;       // [vocab_size]
  std::vector<float> weights_;        // [vocab_size]
  std::vector<float> found_maxima_, sums_;  // a run of kLogitRun each
  std::span<const float> maxima_;
  std::vector<Candidate> candidates_;  // whole runs' room from the start
};

}  // namespace larder
