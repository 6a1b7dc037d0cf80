// From logits to what a draw needs.
#include "kernels/cpu/functions.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr int kLanes = 16;
constexpr float kLowest = -__builtin_inff();

// exp2_to_one() is not 0 far below.
constexpr float kLeastWeight = 1e-37F;

struct Weights {
  V16 best;
  V16 scale;
  V16 least;

  LARDER_INLINE_LAMBDA explicit Weights(const WeightArgs& args)
      : best(set1(args.best)),
        scale(set1(args.scale * 1.44269504088896341F)),
        least(set1(args.least > kLeastWeight ? args.least : kLeastWeight)) {}

  LARDER_INLINE_LAMBDA V16 operator()(V16 logits) const {
    const V16 weights = exp2_to_one(mul(sub(logits, best), scale));
    return select_ge(weights, least, weights, zero());
  }
};

// function(run, its logits, how many) for every run.
template <class Function>
LARDER_INLINE void for_each_run(const float* logits, int64_t num_logits, const Function& function) {
  for (int64_t begin = 0; begin < num_logits; begin += kLogitRun) {
    const int64_t left = num_logits - begin;
    function(begin / kLogitRun, logits + begin,
             static_cast<int>(left < kLogitRun ? left : kLogitRun));
  }
}

// The last lanes of a run that ends within a vector, the others as low as can be.
LARDER_INLINE V16 load_rest(const float* logits, int count) {
  return select(lanes_between(0, count), load_partial(logits, count), set1(kLowest));
}

}  // namespace

void run_maxima(const float* logits, int64_t num_logits, float* maxima) {
  for_each_run(logits, num_logits, [&](int64_t run, const float* begin, int count) {
    // The second operand where either is NaN.
    V16 most = set1(kLowest);
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) most = max(load(begin + i), most);
    if (i < count) most = max(load_rest(begin + i, count - i), most);
    maxima[run] = reduce_max(most);
  });
}

void run_weights(const float* logits, int64_t num_logits, const WeightArgs& args, float* sums) {
  const Weights weights_of(args);
  for_each_run(logits, num_logits, [&](int64_t run, const float* begin, int count) {
    V16 sum = zero();
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) sum = add(sum, weights_of(load(begin + i)));
    if (i < count) sum = add(sum, weights_of(load_rest(begin + i, count - i)));
    sums[run] = reduce_add(sum);
  });
}

void weights(const float* logits, int64_t num_logits, const WeightArgs& args, float* weights) {
  const Weights weights_of(args);
  int64_t i = 0;
  for (; i + kLanes <= num_logits; i += kLanes) store(weights + i, weights_of(load(logits + i)));
  const int rest = static_cast<int>(num_logits - i);
  if (rest > 0) store_partial(weights + i, weights_of(load_rest(logits + i, rest)), rest);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
