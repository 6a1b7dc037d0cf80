#include "plan/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "kv/kv_storage.h"
#include "model/forward/weights.h"

namespace larder {
namespace {

constexpr int kShortContext = 64;      // before the steps that are held against longer ones
constexpr int kLongContext = 1536;
constexpr int kMaxTries = 31;
constexpr double kMaxSeconds = 0.4;  // of one figure, unless one try takes longer
// That decode behind a long context: one alone leaves most of a GPU without work.
constexpr int kSequencesOnDevice = 16;

// Some layers of the model, and steps through them.
class Probe {
 public:
  Probe(const ModelConfig& config, int num_layers, const Weights& weights,
        const CalibrationOptions& options, const TransformerLimits& limits, ThreadPool& pool)
      : config_(first_layers(config, num_layers)),
        layout_(kv_layer_shapes(config_), options.kv_types),
        num_deep_(options.device == nullptr ? 1 : std::min(kSequencesOnDevice, limits.max_logit_rows)),
        blocks_per_group_(blocks_per_group(limits)),
        storage_(layout_, layout_.num_groups() * blocks_per_group_, options.device),
        transformer_(config_, weights, layout_,
                     options.device == nullptr ? select_kernels() : options.device->kernels(), pool,
                     limits, options.device) {}

  // One step: so many tokens of each sequence behind context_len others. Logits of each sequence's
  // last. The median of a few tries: what the machine does as it is now, others' work included.
  double seconds(int num_sequences, int num_tokens, int context_len) {
    build(num_sequences, num_tokens, context_len);
    std::vector<GroupBatch> groups;
    for (std::size_t g = 0; g < slots_.size(); ++g) groups.push_back({slots_[g], sequences_[g]});
    const ForwardBatch batch{.tokens = tokens_,
                             .positions = positions_,
                             .groups = groups,
                             .logit_rows = logit_rows_};
    std::vector<double> times;
    double sum = 0;
    while (times.size() < kMaxTries && (times.size() < 2 || sum < kMaxSeconds)) {
      const auto begin = std::chrono::steady_clock::now();
      (void)transformer_.forward(batch, storage_);
      const double time =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      times.push_back(time);
      sum += time;
    }
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  }

  std::vector<KvLayerShape> layers() const { return kv_layer_shapes(config_); }
  // Sequences to decode behind contexts of several lengths.
  int num_deep() const { return num_deep_; }

 private:
  static ModelConfig first_layers(ModelConfig config, int num_layers) {
    config.layers.resize(static_cast<std::size_t>(num_layers));
    return config;
  }

  // Room for the longest context, and for the sequences of a decode step.
  int blocks_per_group(const TransformerLimits& limits) const {
    const int longest = (kLongContext + limits.max_batch_tokens) / kBlockSize + 2;
    return std::max({longest, num_deep_ * (kLongContext / kBlockSize + 1),
                     limits.max_logit_rows * (kShortContext / kBlockSize + 1)});
  }

  void build(int num_sequences, int num_tokens, int context_len) {
    const int end = context_len + num_tokens;
    const int num_blocks = (end + kBlockSize - 1) / kBlockSize;
    const auto num_groups = static_cast<std::size_t>(layout_.num_groups());
    const auto num_rows = static_cast<std::size_t>(num_sequences * num_tokens);
    tokens_.clear();
    positions_.clear();
    logit_rows_.clear();
    tables_.assign(num_groups, {});
    slots_.assign(num_groups, {});
    sequences_.assign(num_groups, {});
    for (std::size_t row = 0; row < num_rows; ++row) {
      const auto [sequence, token] = std::div(static_cast<int>(row), num_tokens);
      tokens_.push_back(static_cast<TokenId>(row * 7919 % static_cast<std::size_t>(
                                                              config_.vocab_size)));
      positions_.push_back(context_len + token);
      if (token + 1 == num_tokens) logit_rows_.push_back(static_cast<std::int32_t>(row));
      for (std::size_t g = 0; g < num_groups; ++g) {
        const int block = first_block(g) + sequence * num_blocks;
        slots_[g].push_back(std::int64_t{block} * kBlockSize + context_len + token);
      }
    }
    for (std::size_t g = 0; g < num_groups; ++g) {
      for (int i = 0; i < num_sequences * num_blocks; ++i)
        tables_[g].push_back(BlockId{first_block(g) + i});
      for (int i = 0; i < num_sequences; ++i)
        sequences_[g].push_back({.first_row = i * num_tokens,
                                 .num_tokens = num_tokens,
                                 .context_len = end,
                                 .block_table = tables_[g].data() + i * num_blocks});
    }
  }

  int first_block(std::size_t group) const { return static_cast<int>(group) * blocks_per_group_; }

  ModelConfig config_;
  KvLayout layout_;
  int num_deep_;
  int blocks_per_group_;
  KvStorage storage_;
  Transformer transformer_;
  std::vector<TokenId> tokens_;
  std::vector<std::int32_t> positions_, logit_rows_;
  std::vector<std::vector<BlockId>> tables_;
  std::vector<std::vector<std::int64_t>> slots_;
  std::vector<std::vector<AttentionSequence>> sequences_;
};

// Without the attention over what lies before: the cost of that is a line through two contexts.
StepSpeed measure(Probe& probe, const TransformerLimits& limits) {
  StepSpeed speed;
  const std::vector<KvLayerShape> layers = probe.layers();
  const int num_deep = probe.num_deep();
  const double short_step = probe.seconds(num_deep, 1, kShortContext);
  const double long_step = probe.seconds(num_deep, 1, kLongContext);
  const double more_seen =
      seen_by_decodes(layers, kLongContext) - seen_by_decodes(layers, kShortContext);
  speed.decode_key_seconds =
      std::max(0.0, long_step - short_step) / (num_deep * std::max(1.0, more_seen));
  for (const int count : {1, 4, 16, limits.max_logit_rows}) {
    if (count > limits.max_logit_rows ||
        (!speed.decode.samples.empty() && count <= speed.decode.samples.back().num_rows))
      continue;
    const double seconds = count == num_deep ? short_step : probe.seconds(count, 1, kShortContext);
    speed.decode.samples.push_back(
        {static_cast<double>(count),
         seconds - count * seen_by_decodes(layers, kShortContext) * speed.decode_key_seconds});
  }
  const int chunk = limits.max_batch_tokens;
  const double first_chunk = probe.seconds(1, chunk, 0);
  const double later_chunk = probe.seconds(1, chunk, kLongContext);
  const double more_keys =
      seen_by_prompts(layers, kLongContext + chunk / 2.0) - seen_by_prompts(layers, chunk / 2.0);
  speed.prefill_pair_seconds =
      std::max(0.0, later_chunk - first_chunk) / std::max(1.0, chunk * more_keys);
  for (const int count : {1, 16, 128, chunk}) {
    if (count > chunk ||
        (!speed.prefill.samples.empty() && count <= speed.prefill.samples.back().num_rows))
      continue;
    const double seconds = count == chunk ? first_chunk : probe.seconds(1, count, 0);
    speed.prefill.samples.push_back(
        {static_cast<double>(count),
         seconds - count * seen_by_prompts(layers, count / 2.0) * speed.prefill_pair_seconds});
  }
  return speed;
}

// To all layers, from what `more` layers take beyond `fewer`.
void extrapolate(StepCurve& curve, const StepCurve& fewer, double factor) {
  for (std::size_t i = 0; i < curve.samples.size(); ++i)
    curve.samples[i].seconds +=
        factor * std::max(0.0, curve.samples[i].seconds - fewer.samples[i].seconds);
}

}  // namespace

StepSpeed calibrate(const ModelConfig& config, const GgufFile& gguf,
                    const CalibrationOptions& options, ThreadPool& pool) {
  TransformerLimits limits = options.limits;
  limits.max_context_len = kLongContext + limits.max_batch_tokens;
  const double layer_bytes =
      static_cast<double>(weights_size_bytes(config, gguf)) / config.num_layers();
  int num_layers = static_cast<int>(options.layer_bytes / layer_bytes) + 2;
  // The cost of a context shows in layers that see all of it, a prompt's not in the last.
  for (int i = 0; i < config.num_layers(); ++i) {
    if (config.layers[static_cast<std::size_t>(i)].window > 0) continue;
    num_layers = std::max(num_layers, i + 2);
    break;
  }
  num_layers = std::min(num_layers, config.num_layers());
  const Weights weights(config, gguf, pool, {}, options.device, num_layers);
  Probe probe(config, num_layers, weights, options, limits, pool);
  StepSpeed speed = measure(probe, limits);
  if (num_layers == config.num_layers()) return speed;
  Probe one_layer(config, 1, weights, options, limits, pool);
  const StepSpeed of_one = measure(one_layer, limits);
  const double factor = static_cast<double>(config.num_layers() - num_layers) / (num_layers - 1);
  extrapolate(speed.decode, of_one.decode, factor);
  extrapolate(speed.prefill, of_one.prefill, factor);
  return speed;
}

}  // namespace larder
