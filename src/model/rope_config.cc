#include "model/rope_config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/printable.h"

namespace larder {
namespace {

constexpr const char* kDivisors = "rope_freqs.weight";
constexpr const char* kLongDivisors = "rope_factors_long.weight";
constexpr const char* kShortDivisors = "rope_factors_short.weight";

// YaRN: pairs that turn often within the original context keep their frequency, those that turn
// less than once are interpolated, and a ramp lies between.
void apply_yarn(RopeConfig& rope, const ConfigReader& reader, double base, double factor) {
  const double original_len = reader.find_size("rope.scaling.original_context_length", kMaxContextLen)
                                  .value_or(reader.size("context_length", kMaxContextLen));
  const double beta_fast = reader.find_positive("rope.scaling.yarn_beta_fast").value_or(32);
  const double beta_slow = reader.find_positive("rope.scaling.yarn_beta_slow").value_or(1);
  const double num_pairs = static_cast<double>(rope.frequencies.size());
  const auto pair_of_rotations = [&](double rotations) {
    return num_pairs * std::log(original_len / (rotations * 2 * M_PI)) / std::log(base);
  };
  const bool rounds = reader.rounds_ramp();
  const double of_fast = pair_of_rotations(beta_fast), of_slow = pair_of_rotations(beta_slow);
  const double low = std::max(rounds ? std::floor(of_fast) : of_fast, 0.0);
  const double high = std::min(rounds ? std::ceil(of_slow) : of_slow, 2 * num_pairs - 1);
  const double width = high == low ? 0.001 : high - low;
  for (std::size_t i = 0; i < rope.frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
    rope.frequencies[i] *= (1 - ramp) + ramp / factor;
  }
  if (reader.find_positive("rope.scaling.yarn_ext_factor").value_or(1) != 1)
    throw_invalid("GGUF: {}: values other than 1 are not supported", reader.key("rope.scaling.yarn_ext_factor"));
  // yarn_attn_factor is in place of what follows from the factor, attn_factor times it. DeepSeek's models have that
  // on the scores instead, see yarn_score_scale().
  const bool is_on_scores = yarn_score_scale(reader, factor) != 1;
  double of_factor = factor > 1 && !is_on_scores ? 0.1 * std::log(factor) + 1 : 1;
  // Mistral's have both, which leaves nothing where mscale_all_dim, the key, is 1.
  const double all_dim = reader.find_positive_or_none("rope.scaling.yarn_log_multiplier").value_or(0);
  if (reader.family().yarn_multiplier == YarnMultiplier::kOnMagnitude && factor > 1) of_factor /= 0.1 * all_dim * std::log(factor) + 1;
  rope.magnitude = reader.find_positive("rope.scaling.attn_factor").value_or(1) *
                   reader.find_positive("rope.scaling.yarn_attn_factor").value_or(of_factor);
}

// One divisor per pair (Llama 3's way of stretching the low frequencies, and LongRoPE's).
void apply_divisors(RopeConfig& rope, const GgufTensor& tensor) {
  if (tensor.type != GgmlType::kF32 || tensor.num_rows() != 1 ||
      tensor.num_cols() != static_cast<std::int64_t>(rope.frequencies.size()))
    throw_invalid("GGUF: tensor '{}': {} x {} values; F32 and {} x 1 is expected", tensor.name,
                  tensor.num_cols(), tensor.num_rows(), rope.frequencies.size());
  std::vector<float> divisors(rope.frequencies.size());
  dequantize_row(tensor.type, tensor.data.data(), divisors.data(), tensor.num_cols());
  for (std::size_t i = 0; i < divisors.size(); ++i) {
    if (!(std::isfinite(divisors[i]) && divisors[i] > 0))
      throw_invalid("GGUF: tensor '{}': divisor {} is {}", tensor.name, i, divisors[i]);
    rope.frequencies[i] /= divisors[i];
  }
}

// LongRoPE (arXiv:2402.13753): a divisor per pair, others for sequences that are longer than the original context.
// A sequence that grew over it would change its first keys, so one choice is made for all.
void apply_longrope(RopeConfig& rope, const ConfigReader& reader, int longest_len) {
  const GgufTensor* for_long = reader.gguf().find_tensor(kLongDivisors);
  const GgufTensor* for_short = reader.gguf().find_tensor(kShortDivisors);
  if (!for_long || !for_short) throw_invalid("GGUF: tensor '{}' is missing", for_long ? kShortDivisors : kLongDivisors);
  if (reader.find_positive_or_none("rope.scaling.factor").value_or(1) != 1)
    throw_invalid("GGUF: {}: values other than 1 are not supported beside {}", reader.key("rope.scaling.factor"), kLongDivisors);
  RopeConfig long_rope = rope;
  apply_divisors(long_rope, *for_long);
  apply_divisors(rope, *for_short);
  if (longest_len > reader.size("rope.scaling.original_context_length", kMaxContextLen)) rope = long_rope;
  rope.magnitude = reader.find_positive("rope.scaling.attn_factor").value_or(1);
}

}  // namespace

bool is_rope_tensor(std::string_view name) {
  return name == kDivisors || name == kLongDivisors || name == kShortDivisors;
}

std::vector<double> plain_frequencies(double base, int rope_dim) {
  std::vector<double> frequencies;
  for (int i = 0; i < rope_dim; i += 2)
    frequencies.push_back(std::pow(base, -static_cast<double>(i) / rope_dim));
  return frequencies;
}

double yarn_score_scale(const ConfigReader& reader, double factor) {
  if (reader.family().yarn_multiplier != YarnMultiplier::kOnScores) return 1;
  const double multiplier = reader.find_positive_or_none("rope.scaling.yarn_log_multiplier").value_or(0);
  const double scale = factor > 1 ? 1 + multiplier * std::log(factor) : 1;
  return scale * scale;
}

RopeConfig read_global_rope(const ConfigReader& reader, int rope_dim, int longest_len) {
  const double base = reader.find_positive("rope.freq_base").value_or(10000);
  RopeConfig rope{.frequencies = plain_frequencies(base, rope_dim)};
  const auto type = reader.gguf().find_string(reader.key("rope.scaling.type"));
  const bool is_longrope = type == "longrope" || reader.gguf().find_tensor(kLongDivisors) ||
                           reader.gguf().find_tensor(kShortDivisors);
  if (is_longrope) {
    if (type && *type != "longrope")
      throw_invalid("GGUF: {}: '{}' beside tensor '{}'; longrope is expected", reader.key("rope.scaling.type"),
                    printable(*type), kLongDivisors);
    apply_longrope(rope, reader, longest_len);
    return rope;
  }
  double factor = reader.find_positive_or_none("rope.scaling.factor").value_or(1);
  if (!type && !reader.has("rope.scaling.factor"))
    factor = reader.find_positive_or_none("rope.scale_linear").value_or(1);
  if (!type || *type == "linear") {
    for (double& frequency : rope.frequencies) frequency /= factor;
  } else if (*type == "yarn") {
    if (base == 1) throw_invalid("GGUF: {}: 1 cannot be scaled", reader.key("rope.freq_base"));
    apply_yarn(rope, reader, base, factor);
  } else if (*type != "none") {
    throw_invalid("GGUF: {}: '{}' is not supported; none, linear, yarn and longrope are",
                  reader.key("rope.scaling.type"), printable(*type));
  }
  if ((!type || *type != "yarn") && reader.find_positive("rope.scaling.attn_factor").value_or(1) != 1)
    throw_invalid("GGUF: {}: values other than 1 are supported with yarn and longrope only", reader.key("rope.scaling.attn_factor"));
  if (const GgufTensor* divisors = reader.gguf().find_tensor(kDivisors))
    apply_divisors(rope, *divisors);
  return rope;
}

}  // namespace larder
