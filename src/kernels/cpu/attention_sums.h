// What becomes of partial softmaxes: two are one, and the last one is a row's result. Included by attention.cc alone.
#pragma once

#include "kernels/cpu/attention_work.h"
#include "kernels/cpu/hadamard.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

// into = into and partial as one softmax. An empty side changes nothing.
void merge(const Work& work, const Partial& into, const Partial& partial) {
  for (int r = 0; r < work.rows; ++r) {
    const float max = into.max[r] > partial.max[r] ? into.max[r] : partial.max[r];
    float lanes[kLanes];
    store(lanes, exp2_to_one(set1(into.max[r] - max)));
    const float keep = lanes[0];
    store(lanes, exp2_to_one(set1(partial.max[r] - max)));
    const float take = lanes[0];
    into.max[r] = max;
    into.sum[r] = into.sum[r] * keep + partial.sum[r] * take;
    for (int d = 0; d < work.padded_dim; d += kLanes) {
      const int64_t at = int64_t{r} * work.padded_dim + d;
      const V16 kept = mul(load(into.values + at), set1(keep));
      store(into.values + at, fma(load(partial.values + at), set1(take), kept));
    }
  }
}

// What a row's sums come to with the score that its head has learned: the part of them that is left, of all weight.
LARDER_INLINE float share_of_keys(const Work& work, const Partial& partial, int row) {
  if (work.args.sink_scores == nullptr) return 1.0F / partial.sum[row];
  const int head = work.kv_head * work.group + row % work.group;
  const float sink = to_base_two(work.args.sink_scores[head], 1);
  const float largest = partial.max[row] > sink ? partial.max[row] : sink;
  float weights[kLanes] = {partial.max[row] - largest, sink - largest};
  store(weights, exp2_to_one(load(weights)));
  return weights[0] / (partial.sum[row] * weights[0] + weights[1]);
}

void write_out(const Work& work, const Partial& partial) {
  for (int r = 0; r < work.rows; ++r) {
    const int query = work.sequence.first_row + work.query_begin + r / work.group;
    const int head = work.kv_head * work.group + r % work.group;
    float* out = work.args.out + query * work.args.ldo + int64_t{head} * work.dim;
    const V16 share = set1(share_of_keys(work, partial, r));
    float* values = partial.values + int64_t{r} * work.padded_dim;
    if (work.args.kv.types.v == KvType::kInt4) hadamard_blocks(values, work.dim);  // back
    for (int d = 0; d < work.dim; d += kLanes) {
      const V16 v = mul(load(values + d), share);
      store_partial(out + d, add(v, zero()), min_of(kLanes, work.dim - d));
    }
  }
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
