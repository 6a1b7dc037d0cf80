#include "model/forward/key_calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "kv/kv_storage.h"

namespace larder {
namespace {

constexpr int kFirstPosition = 8;
constexpr double kMostBalance = 30;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

template <class T>
std::vector<T> read_back(Device& device, const T* from, std::size_t count) {
  std::vector<T> values(count);
  device.copy_out(reinterpret_cast<std::byte*>(values.data()),
                  reinterpret_cast<const std::byte*>(from), count * sizeof(T));
  return values;
}

}  // namespace

KeyStatistics::KeyStatistics(const ModelConfig& config) : config_(config) {
  const auto size = static_cast<std::size_t>(config.kv_size());
  layers_.resize(static_cast<std::size_t>(config.num_layers()),
                 {std::vector<double>(size), std::vector<double>(size), 0});
}

void KeyStatistics::add(int layer, const float* q, const float* k,
                        std::span<const std::int32_t> positions, Device* device) {
  if (device != nullptr) {
    const std::size_t rows = positions.size();
    const auto q_rows = read_back(*device, q, rows * static_cast<std::size_t>(config_.q_size()));
    const auto k_rows = read_back(*device, k, rows * static_cast<std::size_t>(config_.kv_size()));
    const auto places = read_back(*device, positions.data(), rows);
    return add(layer, q_rows.data(), k_rows.data(), places);
  }
  Moments& moments = layers_[static_cast<std::size_t>(layer)];
  const int dim = config_.head_dim;
  const int group = config_.num_heads / config_.num_kv_heads;
  for (std::size_t row = 0; row < positions.size(); ++row) {
    if (positions[row] < kFirstPosition) continue;
    ++moments.num_rows;
    const float* q_row = q + row * static_cast<std::size_t>(config_.q_size());
    const float* k_row = k + row * static_cast<std::size_t>(config_.kv_size());
    for (int head = 0; head < config_.num_heads; ++head) {
      for (int i = 0; i < dim; ++i) {
        const double value = q_row[head * dim + i];
        moments.q[static_cast<std::size_t>(head / group * dim + i)] += value * value;
      }
    }
    for (int i = 0; i < config_.kv_size(); ++i) {
      const double value = k_row[i];
      moments.k[static_cast<std::size_t>(i)] += value * value;
    }
  }
}

int KeyStatistics::partner(int i) const {
  const int rope_dim = config_.rope_dim;
  if (i >= rope_dim) return i;
  if (config_.rope_interleaved) return i ^ 1;
  return i < rope_dim / 2 ? i + rope_dim / 2 : i - rope_dim / 2;
}

KeyBasis KeyStatistics::basis_of(const Moments& moments) const {
  const int dim = config_.head_dim;
  const double num_keys = static_cast<double>(std::max<std::int64_t>(1, moments.num_rows));
  const double num_queries = num_keys * (config_.num_heads / config_.num_kv_heads);
  KeyBasis basis;
  for (int head = 0; head < config_.num_kv_heads; ++head) {
    std::vector<double> q, k, balance, importance;
    for (int i = 0; i < dim; ++i) {
      const auto one = static_cast<std::size_t>(head * dim + i);
      const auto other = static_cast<std::size_t>(head * dim + partner(i));
      q.push_back((moments.q[one] + moments.q[other]) / (2 * num_queries));
      k.push_back((moments.k[one] + moments.k[other]) / (2 * num_keys));
    }
    const double least = 1e-6 * *std::ranges::max_element(k) + 1e-30;
    for (std::size_t i = 0; i < q.size(); ++i) {
      balance.push_back(std::pow(q[i] / (k[i] + least), 0.25));
      importance.push_back(q[i] * k[i]);
    }
    const double middle = std::max(median(balance), 1e-30);
    for (const double value : balance) {
      basis.balance.push_back(
          static_cast<float>(std::clamp(value / middle, 1 / kMostBalance, kMostBalance)));
    }
    std::vector<std::int16_t> order(static_cast<std::size_t>(dim));
    std::iota(order.begin(), order.end(), std::int16_t{0});
    std::ranges::stable_sort(order, [&](std::int16_t left, std::int16_t right) {
      return importance[static_cast<std::size_t>(left)] >
             importance[static_cast<std::size_t>(right)];
    });
    basis.order.insert(basis.order.end(), order.begin(), order.end());
  }
  return basis;
}

std::vector<KeyBasis> KeyStatistics::basis() const {
  std::vector<KeyBasis> result;
  for (const Moments& moments : layers_) result.push_back(basis_of(moments));
  return result;
}

namespace {

int blocks_per_group(int num_tokens) { return (num_tokens + kBlockSize - 1) / kBlockSize; }

TransformerLimits calibration_limits(int num_tokens, const OutputSplit& split = {}) {
  return {.max_batch_tokens = kCalibrationBatchTokens, .max_logit_rows = 1, .max_context_len = num_tokens, .split = split};
}

}  // namespace

std::int64_t calibration_size_bytes(const ModelConfig& config, int num_tokens, const ThreadPool& pool,
                                    const Device* device) {
  const KvLayout layout(kv_layer_shapes(config));
  const std::int64_t moment_bytes =
      2 * static_cast<std::int64_t>(sizeof(double)) * config.kv_size() * config.num_layers();
  return blocks_per_group(num_tokens) * layout.num_groups() * layout.block_size_bytes() + (device == nullptr ? moment_bytes : 0) +
         static_cast<std::int64_t>(transformer_scratch_size_bytes(config, calibration_limits(num_tokens), pool, device));
}

std::vector<KeyBasis> calibrate_keys(const ModelConfig& config, const Weights& weights,
                                     const KernelTable& kernels, ThreadPool& pool,
                                     std::span<const TokenId> tokens, Device* device,
                                     ProductPartners* partners, const OutputSplit& split) {
  constexpr int kBatchTokens = kCalibrationBatchTokens;
  CHECK(!tokens.empty());
  const int num_tokens = static_cast<int>(tokens.size());
  const KvLayout layout(kv_layer_shapes(config));
  const int num_blocks = blocks_per_group(num_tokens);
  KvStorage storage(layout, num_blocks * layout.num_groups(), device);
  Transformer model(config, weights, layout, kernels, pool, calibration_limits(num_tokens, split), device, partners);
  KeyStatistics statistics(config);
  model.observe_keys(&statistics);
  // Group g has the blocks from g * num_blocks on.
  std::vector<std::vector<BlockId>> blocks(static_cast<std::size_t>(layout.num_groups()));
  for (std::size_t group = 0; group < blocks.size(); ++group) {
    for (int i = 0; i < num_blocks; ++i)
      blocks[group].push_back(BlockId{static_cast<int>(group) * num_blocks + i});
  }
  for (int begin = 0; begin < num_tokens; begin += kBatchTokens) {
    const int end = std::min(begin + kBatchTokens, num_tokens);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(end - begin));
    std::iota(positions.begin(), positions.end(), begin);
    std::vector<std::vector<std::int64_t>> slots(blocks.size());
    std::vector<AttentionSequence> sequences;
    for (std::size_t group = 0; group < blocks.size(); ++group) {
      for (int position = begin; position < end; ++position) {
        const BlockId block = blocks[group][static_cast<std::size_t>(position / kBlockSize)];
        slots[group].push_back(std::int64_t{to_index(block)} * kBlockSize + position % kBlockSize);
      }
      sequences.push_back({.first_row = 0, .num_tokens = end - begin, .context_len = end,
                           .block_table = blocks[group].data()});
    }
    std::vector<GroupBatch> groups;
    for (std::size_t group = 0; group < blocks.size(); ++group)
      groups.push_back({slots[group], {&sequences[group], 1}});
    model.forward({.tokens = tokens.subspan(static_cast<std::size_t>(begin),
                                            static_cast<std::size_t>(end - begin)),
                   .positions = positions, .sink_positions = {}, .groups = groups,
                   .logit_rows = {}},
                  storage);
  }
  return statistics.basis();
}

}  // namespace larder
