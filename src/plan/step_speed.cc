#include "plan/step_speed.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kv/cache/kv_cache.h"

namespace larder {
namespace {

constexpr double kMaxRows = 8192;

double active_layer_parameters(const ModelShape& shape) {
  const std::int64_t output = shape.num_output_parameters > 0 ? shape.num_output_parameters
                                                              : shape.num_embedding_parameters;
  return static_cast<double>(shape.num_active_parameters() - output);
}

// One layer's bytes of a token.
double layer_kv_bytes(const Deployment& deployment) {
  const KvLayout layout = deployment.device_layout();
  return static_cast<double>(layout.bytes_per_token()) / layout.num_layers();
}

}  // namespace

double seen_by_decodes(std::span<const KvLayerShape> layers, double num_tokens) {
  double sum = 0;
  for (const KvLayerShape& layer : layers)
    sum += layer.window > 0 ? std::min<double>(layer.window, num_tokens) : num_tokens;
  return sum;
}

double seen_by_prompts(std::span<const KvLayerShape> layers, double num_tokens) {
  return seen_by_decodes(layers.first(layers.size() - 1), num_tokens);
}

double StepCurve::seconds(double num_rows) const {
  CHECK(!samples.empty());
  if (num_rows <= samples.front().num_rows) return samples.front().seconds;
  for (std::size_t i = 1; i < samples.size(); ++i) {
    const Sample& low = samples[i - 1];
    const Sample& high = samples[i];
    if (num_rows > high.num_rows) continue;
    const double part = (num_rows - low.num_rows) / (high.num_rows - low.num_rows);
    return low.seconds + part * (high.seconds - low.seconds);
  }
  return samples.back().seconds * num_rows / samples.back().num_rows;
}

KvLayout Deployment::device_layout() const {
  std::vector<KvLayerShape> layers = shape.kv_layers;
  for (KvLayerShape& layer : layers)
    layer.num_kv_heads = (layer.num_kv_heads + num_devices - 1) / num_devices;
  return KvLayout(layers, kv_types);
}

double Deployment::num_seen(double num_tokens) const {
  if (attention.window == 0) return num_tokens;
  return std::min<double>(num_tokens, attention.window + attention.num_sinks);
}

std::int64_t Deployment::num_held(std::int64_t num_tokens) const {
  if (attention.window == 0) return num_tokens;
  return std::min(num_tokens, KvCache::num_endless_tokens(attention, max_batch_tokens));
}

double Deployment::request_bytes(std::int64_t num_tokens) const {
  return static_cast<double>(
      kv_bytes_for(device_layout(), num_held(num_tokens), max_batch_tokens));
}

int Deployment::num_cached(int prompt_len, double share) const {
  // Whole blocks are found, the last token never, and nothing that comes after a full window.
  const int found = static_cast<int>(share * prompt_len) / kBlockSize * kBlockSize;
  return std::min({found, prompt_len - 1, attention.num_shareable()});
}

StepSpeed roofline(const Deployment& deployment) {
  const ModelShape& shape = deployment.shape;
  const double peak = deployment.machine.peak(deployment.weights.ops) * deployment.num_devices;
  const double bandwidth = deployment.machine.read_bytes_per_s * deployment.num_devices;
  const auto step = [&](double num_rows, double num_logit_rows) {
    const double layers = active_layer_parameters(shape);
    const double output = static_cast<double>(shape.num_active_parameters()) - layers;
    const double ops = 2 * (layers * num_rows + output * num_logit_rows);
    return std::max(step_weights_bytes(shape, deployment.weights, num_rows) / bandwidth,
                    ops / peak);
  };
  StepSpeed speed;
  // Beyond its last sample a curve grows in proportion: that is what taking turns costs.
  const double most = deployment.max_decodes();
  for (double rows = 1; rows <= kMaxRows; rows *= 1.25) {
    if (rows < most) speed.decode.samples.push_back({rows, step(rows, rows)});
    speed.prefill.samples.push_back({rows, step(rows, 1)});
  }
  speed.decode.samples.push_back({most, step(most, most)});
  const double attention_peak =
      deployment.machine.peak(OpsKind::kBF16) * deployment.num_devices;
  // Devices read their own heads at the same time.
  speed.decode_key_seconds =
      std::max(layer_kv_bytes(deployment) / deployment.machine.read_bytes_per_s,
               shape.decode_pair_ops / attention_peak);
  speed.prefill_pair_seconds = shape.prefill_pair_ops / attention_peak;
  return speed;
}

double decode_step_seconds(const StepSpeed& speed, const Deployment& deployment,
                           double num_sequences, double num_tokens) {
  return speed.decode.seconds(num_sequences) +
         num_sequences *
             seen_by_decodes(deployment.shape.kv_layers, deployment.num_seen(num_tokens)) *
             speed.decode_key_seconds;
}

double prefill_seconds(const StepSpeed& speed, const Deployment& deployment, int num_tokens,
                       int num_cached) {
  double seconds = 0;
  for (int begin = num_cached; begin < num_tokens; begin += deployment.max_batch_tokens) {
    const double rows = std::min(deployment.max_batch_tokens, num_tokens - begin);
    // Keys before the chunk are seen by all of its rows, those within by half of them.
    seconds += speed.prefill.seconds(rows) +
               rows *
                   seen_by_prompts(deployment.shape.kv_layers,
                                   deployment.num_seen(begin + rows / 2)) *
                   speed.prefill_pair_seconds;
  }
  return seconds;
}

StepSpeed scaled_speed(const StepSpeed& measured, const Deployment& from, const Deployment& to) {
  const StepSpeed before = roofline(from);
  const StepSpeed after = roofline(to);
  const auto scale = [](const StepCurve& curve, const StepCurve& old, const StepCurve& changed) {
    StepCurve scaled = curve;
    for (StepCurve::Sample& sample : scaled.samples)
      sample.seconds *= changed.seconds(sample.num_rows) / old.seconds(sample.num_rows);
    return scaled;
  };
  return {scale(measured.decode, before.decode, after.decode),
          scale(measured.prefill, before.prefill, after.prefill),
          measured.decode_key_seconds * after.decode_key_seconds / before.decode_key_seconds,
          measured.prefill_pair_seconds * after.prefill_pair_seconds / before.prefill_pair_seconds};
}

}  // namespace larder
