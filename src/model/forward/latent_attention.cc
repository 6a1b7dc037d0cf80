#include "model/forward/latent_attention.h"

#include <algorithm>
#include <cstring>

#include "model/forward/quantized_rows.h"
#include "model/forward/row_tasks.h"
#include "model/forward/scratch_placer.h"

namespace larder {

struct LatentScratchPlan {
  LatentAttention::Buffers buffers;
  std::size_t size_bytes = 0;

  LatentScratchPlan(const ModelConfig& config, int max_rows, std::byte* base) {
    const LatentConfig& latent = config.latent;
    const auto rows = static_cast<std::size_t>(max_rows);
    const auto hidden = static_cast<std::size_t>(config.hidden_size);
    const auto heads = static_cast<std::size_t>(config.num_heads);
    const auto q_rank = static_cast<std::size_t>(latent.q_rank);
    const auto head_q = static_cast<std::size_t>(latent.nope_dim + config.rope_dim);
    const auto widest = static_cast<std::size_t>(std::max(latent.nope_dim, latent.rank));
    ScratchPlacer placer(base);
    buffers.x = placer.place_quantized(2 * rows, hidden);
    buffers.x.num_cols = config.hidden_size;
    buffers.rests = placer.place<float>(rows * hidden);
    buffers.kv = placer.place<float>(2 * rows * static_cast<std::size_t>(config.head_dim));
    buffers.latent = placer.place<float>(rows * static_cast<std::size_t>(latent.rank));
    buffers.q_low = placer.place<float>(rows * q_rank);
    buffers.q_low_codes = placer.place_quantized(rows, q_rank);
    buffers.q_low_codes.num_cols = latent.q_rank;
    buffers.q_flat = placer.place<float>(rows * heads * head_q);
    buffers.by_heads = placer.place<float>(heads * rows * widest);
    buffers.by_heads_codes = placer.place_quantized(heads * rows, widest);
    size_bytes = placer.size_bytes();
  }
};

std::size_t LatentAttention::size_bytes(const ModelConfig& config, int max_rows) {
  return LatentScratchPlan(config, max_rows, nullptr).size_bytes;
}

LatentAttention::LatentAttention(const ModelConfig& config, const KernelTable& kernels, ThreadPool& pool,
                                 int max_rows, bool int8)
    : config_(config),
      latent_(config.latent),
      kernels_(kernels),
      pool_(pool),
      scratch_(nullptr, size_bytes(config, max_rows), true),
      buffers_(LatentScratchPlan(config, max_rows, scratch_.data()).buffers),
      products_(kernels, pool, std::max(config.num_heads, 2), int8) {}

void LatentAttention::project(const LayerWeights& weights, const float* x, int num_rows, float* k, float* q) {
  const bool has_queries = q != nullptr;
  take_input(weights, x, num_rows, has_queries);
  // Keys and values stay in the cache, so their input has 16 bits, as V's in Transformer::refine_input().
  const bool has_rests = products_.wants_int8(weights.kv_a);
  products_.add(weights.kv_a, {x, buffers_.x, 0, has_rests ? 2 * num_rows : num_rows}, {buffers_.kv});
  if (has_queries) {
    const bool is_low = latent_.q_rank > 0;
    products_.add(is_low ? weights.q_a : weights.q, {x, buffers_.x, 0, num_rows}, {is_low ? buffers_.q_low : buffers_.q_flat});
  }
  products_.run();
  make_keys(weights, num_rows, has_rests, k);
  if (!has_queries) return;
  if (latent_.q_rank > 0) widen_queries(weights, num_rows);
  make_queries(weights, num_rows, q);
}

void LatentAttention::take_input(const LayerWeights& weights, const float* x, int num_rows, bool has_queries) {
  const bool has_rests = products_.wants_int8(weights.kv_a);
  const bool int8_queries = has_queries && products_.wants_int8(latent_.q_rank > 0 ? weights.q_a : weights.q);
  if (!has_rests && !int8_queries) return;
  for_row_tasks(pool_, num_rows, [&](int begin, int end) {
    kernels_.quantize_rows(x, config_.hidden_size, buffers_.x, begin, end);
    if (has_rests) quantize_rests(kernels_, x, buffers_.x, num_rows, buffers_.rests, begin, end);
  });
}

// The rotating part comes first, since that is what rotates of a head.
void LatentAttention::make_keys(const LayerWeights& weights, int num_rows, bool has_rests, float* k) {
  const std::int64_t rank = latent_.rank, rope = config_.rope_dim, size = config_.head_dim;
  for_row_tasks(pool_, num_rows, [&](int begin, int end) {
    if (has_rests)
      kernels_.add(buffers_.kv + begin * size, buffers_.kv + (num_rows + begin) * size, (end - begin) * size);
    for (std::int64_t row = begin; row < end; ++row) {
      const float* kv = buffers_.kv + row * size;
      std::copy_n(kv, rank, buffers_.latent + row * rank);
      std::copy_n(kv + rank, rope, k + row * size);
    }
    kernels_.rms_norm({.x = buffers_.latent,
                       .weight = weights.kv_a_norm,
                       .epsilon = config_.rms_epsilon,
                       .out = buffers_.latent,
                       .num_cols = latent_.rank},
                      begin, end);
    for (std::int64_t row = begin; row < end; ++row)
      std::copy_n(buffers_.latent + row * rank, rank, k + row * size + rope);
  });
}

void LatentAttention::widen_queries(const LayerWeights& weights, int num_rows) {
  for_row_tasks(pool_, num_rows, [&](int begin, int end) {
    kernels_.rms_norm({.x = buffers_.q_low,
                       .weight = weights.q_a_norm,
                       .epsilon = config_.rms_epsilon,
                       .out = buffers_.q_low,
                       .num_cols = latent_.q_rank},
                      begin, end);
    if (products_.wants_int8(weights.q))
      kernels_.quantize_rows(buffers_.q_low, latent_.q_rank, buffers_.q_low_codes, begin, end);
  });
  products_.add(weights.q, {buffers_.q_low, buffers_.q_low_codes, 0, num_rows}, {buffers_.q_flat});
  products_.run();
}

void LatentAttention::split_heads(const float* rows, std::int64_t ld, int head_stride, int first, int count,
                                  int num_rows) {
  for_row_tasks(pool_, num_rows, [&](int begin, int end) {
    for (std::int64_t head = 0; head < config_.num_heads; ++head)
      for (std::int64_t row = begin; row < end; ++row)
        std::copy_n(rows + row * ld + head * head_stride + first, count,
                    buffers_.by_heads + (head * num_rows + row) * count);
  });
  buffers_.by_heads_codes.num_cols = count;
}

void LatentAttention::quantize_heads(const PackedMatrix& w, int num_rows) {
  if (!products_.wants_int8(w)) return;
  for_row_tasks(pool_, config_.num_heads * num_rows, [&](int begin, int end) {
    kernels_.quantize_rows(buffers_.by_heads, w.num_cols, buffers_.by_heads_codes, begin, end);
  });
}

void LatentAttention::make_queries(const LayerWeights& weights, int num_rows, float* q) {
  const int head_q = latent_.nope_dim + config_.rope_dim;
  const std::int64_t flat_size = std::int64_t{config_.num_heads} * head_q;
  const std::int64_t q_size = config_.q_size();
  split_heads(buffers_.q_flat, flat_size, head_q, 0, latent_.nope_dim, num_rows);
  quantize_heads(weights.k_b.front(), num_rows);
  for_row_tasks(pool_, num_rows, [&](int begin, int end) {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t head = 0; head < config_.num_heads; ++head)
        std::copy_n(buffers_.q_flat + row * flat_size + head * head_q + latent_.nope_dim, config_.rope_dim,
                    q + row * q_size + head * config_.head_dim);
  });
  for (int head = 0; head < config_.num_heads; ++head)
    products_.add(weights.k_b[static_cast<std::size_t>(head)],
                  {buffers_.by_heads, buffers_.by_heads_codes, head * num_rows, num_rows},
                  {q + std::int64_t{head} * config_.head_dim + config_.rope_dim, q_size});
  products_.run();
}

void LatentAttention::make_values(const LayerWeights& weights, const float* sums, int num_rows, float* out) {
  split_heads(sums, config_.q_size(), config_.head_dim, config_.rope_dim, latent_.rank, num_rows);
  quantize_heads(weights.v_b.front(), num_rows);
  for (int head = 0; head < config_.num_heads; ++head)
    products_.add(weights.v_b[static_cast<std::size_t>(head)],
                  {buffers_.by_heads, buffers_.by_heads_codes, head * num_rows, num_rows},
                  {out + std::int64_t{head} * latent_.value_dim, config_.o_size()});
  products_.run();
}

}  // namespace larder
