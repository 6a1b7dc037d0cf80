#include "model/forward/expert_layers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "model/expert_choice.h"
#include "model/forward/activation.h"
#include "model/forward/quantized_rows.h"
#include "model/forward/row_tasks.h"
#include "model/forward/scratch_placer.h"

namespace larder {

namespace {

const float* bias_of(const float* biases, int expert, int size) {
  return biases != nullptr ? biases + std::int64_t{expert} * size : nullptr;
}

}  // namespace

struct ExpertScratchPlan {
  ExpertLayers::Buffers buffers;
  std::size_t size_bytes = 0;

  ExpertScratchPlan(const ModelConfig& config, int max_rows, std::byte* base) {
    const ExpertConfig& experts = config.experts;
    const auto rows = static_cast<std::size_t>(max_rows);
    const std::size_t places = rows * static_cast<std::size_t>(experts.num_chosen);
    const auto num_experts = static_cast<std::size_t>(experts.num_experts);
    const auto hidden = static_cast<std::size_t>(config.hidden_size);
    const auto ffn = static_cast<std::size_t>(experts.ffn_size);
    const auto shared_ffn = static_cast<std::size_t>(experts.shared_ffn_size);
    ScratchPlacer placer(base);
    buffers.scores = placer.place<float>(rows * num_experts);
    if (experts.weighs_shared) buffers.shared_scores = placer.place<float>(rows);
    buffers.weights = placer.place<float>(places);
    buffers.chosen = placer.place<std::int32_t>(places);
    buffers.places = placer.place<std::int32_t>(places);
    buffers.rows = placer.place<std::int32_t>(places);
    buffers.first = placer.place<std::int32_t>(num_experts + 1);
    buffers.x = placer.place<float>(places * hidden);
    buffers.gate = placer.place<float>(places * ffn);
    buffers.up = placer.place<float>(places * ffn);
    buffers.shared_gate = placer.place<float>(rows * shared_ffn);
    buffers.shared_up = placer.place<float>(rows * shared_ffn);
    buffers.taken = placer.place_quantized(rows, hidden);
    buffers.inner = placer.place_quantized(places, std::max(hidden, ffn));
    buffers.shared_inner = placer.place_quantized(rows, shared_ffn);
    buffers.taken.num_cols = config.hidden_size;
    buffers.shared_inner.num_cols = experts.shared_ffn_size;
    size_bytes = placer.size_bytes();
  }
};

std::size_t ExpertLayers::size_bytes(const ModelConfig& config, int max_rows) {
  return ExpertScratchPlan(config, max_rows, nullptr).size_bytes;
}

ExpertLayers::ExpertLayers(const ModelConfig& config, const KernelTable& kernels, ThreadPool& pool,
                           int max_rows, bool int8)
    : config_(config),
      kernels_(kernels),
      pool_(pool),
      scratch_(nullptr, size_bytes(config, max_rows), true),
      buffers_(ExpertScratchPlan(config, max_rows, scratch_.data()).buffers),
      // Gate and up of each expert and of the shared ones.
      products_(kernels, pool, 2 * config.experts.num_experts + 2, int8) {
  CHECK(config.experts.num_experts > 0 && config.experts.num_experts <= kMaxExperts, config.experts.num_experts);
}

bool ExpertLayers::takes_int8(const LayerWeights& weights) const {
  const bool are_shared = config_.experts.shared_ffn_size > 0;
  return products_.wants_int8(weights.router) ||
         (config_.experts.weighs_shared && products_.wants_int8(weights.shared_router)) || products_.wants_int8(weights.expert_gate.front()) ||
         products_.wants_int8(weights.expert_up.front()) ||
         (are_shared && (products_.wants_int8(weights.gate) || products_.wants_int8(weights.up)));
}

void ExpertLayers::choose(const LayerWeights& weights, const float* x, int num_rows) {
  const ExpertConfig& experts = config_.experts;
  products_.add(weights.router, {x, buffers_.taken, 0, num_rows}, {buffers_.scores, 0, weights.router_bias});
  if (experts.weighs_shared) products_.add(weights.shared_router, {x, buffers_.taken, 0, num_rows}, {buffers_.shared_scores});
  products_.run();
  for_row_tasks(pool_, num_rows, [&](int begin, int end) {
    for (std::int64_t row = begin; experts.weighs_shared && row < end; ++row)
      buffers_.shared_scores[row] = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(buffers_.shared_scores[row]))));
    for (std::int64_t row = begin; row < end; ++row)
      choose_experts(experts, buffers_.scores + row * experts.num_experts, weights.ranking_bias,
                     buffers_.chosen + row * experts.num_chosen, buffers_.weights + row * experts.num_chosen);
  });
}

// Counts, then hands out: places of an expert are in the order of rows.
void ExpertLayers::list_places(int num_rows) {
  const int count = num_places(num_rows);
  std::int32_t* first = buffers_.first;
  std::fill_n(first, config_.experts.num_experts + 1, 0);
  for (int i = 0; i < count; ++i) ++first[buffers_.chosen[i] + 1];
  for (int expert = 0; expert < config_.experts.num_experts; ++expert) first[expert + 1] += first[expert];
  for (int i = 0; i < count; ++i) {
    const std::int32_t place = first[buffers_.chosen[i]]++;
    buffers_.places[i] = place;
    buffers_.rows[place] = i / config_.experts.num_chosen;
  }
  for (int expert = config_.experts.num_experts; expert > 0; --expert) first[expert] = first[expert - 1];
  first[0] = 0;
}

void ExpertLayers::copy_row(const float* x, int row, int place) {
  const std::int64_t hidden = config_.hidden_size;
  std::memcpy(buffers_.x + place * hidden, x + row * hidden, static_cast<std::size_t>(hidden) * sizeof(float));
}

void ExpertLayers::copy_codes(int row, int place) {
  const std::int64_t hidden = config_.hidden_size;
  const QuantizedRows from = rows_from(buffers_.taken, row), to = rows_from(buffers_.inner, place);
  std::memcpy(to.q, from.q, static_cast<std::size_t>(hidden));
  std::memcpy(to.scale, from.scale, static_cast<std::size_t>(hidden / kActivationGroup) * sizeof(float));
  std::memcpy(to.sum, from.sum, static_cast<std::size_t>(hidden / 16) * sizeof(std::int32_t));
}

// Each place's input: its row once more.
void ExpertLayers::take_rows(const LayerWeights& weights, const float* x, int num_rows) {
  const ExpertConfig& experts = config_.experts;
  buffers_.inner.num_cols = config_.hidden_size;
  const bool gate_codes = products_.wants_int8(weights.expert_gate.front());
  const bool up_codes = products_.wants_int8(weights.expert_up.front());
  for_row_tasks(pool_, num_places(num_rows), [&](int begin, int end) {
    for (int place = begin; place < end; ++place) {
      if (!gate_codes || !up_codes) copy_row(x, buffers_.rows[place], place);
      if (gate_codes || up_codes) copy_codes(buffers_.rows[place], place);
    }
  });
  for (int expert = 0; expert < experts.num_experts; ++expert) {
    const auto e = static_cast<std::size_t>(expert);
    const std::int64_t first = buffers_.first[expert];
    const ProductGroup::Input input{buffers_.x, buffers_.inner, buffers_.first[expert], num_rows_of(expert)};
    products_.add(weights.expert_gate[e], input,
                  {buffers_.gate + first * experts.ffn_size, 0, bias_of(weights.expert_gate_bias, expert, experts.ffn_size)});
    products_.add(weights.expert_up[e], input,
                  {buffers_.up + first * experts.ffn_size, 0, bias_of(weights.expert_up_bias, expert, experts.ffn_size)});
  }
  if (experts.shared_ffn_size > 0) {
    products_.add(weights.gate, {x, buffers_.taken, 0, num_rows}, {buffers_.shared_gate});
    products_.add(weights.up, {x, buffers_.taken, 0, num_rows}, {buffers_.shared_up});
  }
  products_.run();
}

void ExpertLayers::activate(const LayerWeights& weights, int num_rows) {
  const auto function = activation_kernel(kernels_, config_.activation);
  const auto run = [&](int count, std::int64_t size, float* gate, const float* up, QuantizedRows& rows,
                       const PackedMatrix& down) {
    rows.num_cols = static_cast<int>(size);
    for_row_tasks(pool_, count, [&](int begin, int end) {
      function(gate + begin * size, up + begin * size, gate + begin * size, (end - begin) * size);
      if (products_.wants_int8(down)) kernels_.quantize_rows(gate, static_cast<int>(size), rows, begin, end);
    });
  };
  const ExpertConfig& experts = config_.experts;
  run(num_places(num_rows), experts.ffn_size, buffers_.gate, buffers_.up, buffers_.inner, weights.expert_down.front());
  if (experts.shared_ffn_size > 0)
    run(num_rows, experts.shared_ffn_size, buffers_.shared_gate, buffers_.shared_up, buffers_.shared_inner, weights.down);
}

void ExpertLayers::add_up(int num_rows, bool has_shared, float* out) {
  const std::int64_t hidden = config_.hidden_size;
  const int num_chosen = config_.experts.num_chosen;
  for_row_tasks(pool_, num_rows, [&](int begin, int end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* sum = out + row * hidden;
      if (!has_shared) std::fill_n(sum, hidden, 0.0F);
      if (config_.experts.weighs_shared)
        for (std::int64_t c = 0; c < hidden; ++c) sum[c] *= buffers_.shared_scores[row];
      for (int k = 0; k < num_chosen; ++k) {
        const float weight = buffers_.weights[row * num_chosen + k];
        const float* given = buffers_.x + buffers_.places[row * num_chosen + k] * hidden;
        for (std::int64_t c = 0; c < hidden; ++c) sum[c] += weight * given[c];
      }
    }
  });
}

void ExpertLayers::run(const LayerWeights& weights, float* x, int num_rows) {
  const ExpertConfig& experts = config_.experts;
  if (takes_int8(weights))
    for_row_tasks(pool_, num_rows, [&](int begin, int end) {
      kernels_.quantize_rows(x, config_.hidden_size, buffers_.taken, begin, end);
    });
  choose(weights, x, num_rows);
  list_places(num_rows);
  take_rows(weights, x, num_rows);
  activate(weights, num_rows);
  for (int expert = 0; expert < experts.num_experts; ++expert) {
    const std::int64_t first = buffers_.first[expert];
    products_.add(weights.expert_down[static_cast<std::size_t>(expert)],
                  {buffers_.gate, buffers_.inner, buffers_.first[expert], num_rows_of(expert)},
                  {buffers_.x + first * config_.hidden_size, 0,
                   bias_of(weights.expert_down_bias, expert, config_.hidden_size)});
  }
  const bool has_shared = experts.shared_ffn_size > 0;
  if (has_shared) products_.add(weights.down, {buffers_.shared_gate, buffers_.shared_inner, 0, num_rows}, {x});
  products_.run();
  add_up(num_rows, has_shared, x);
}

}  // namespace larder
