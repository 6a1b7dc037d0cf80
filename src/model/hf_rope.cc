#include "model/hf_rope.h"

#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/printable.h"

namespace larder {
namespace {

constexpr double kDefaultBase = 10000;  // the architectures' own, where a file says none

double positive(const HfObject& object, std::string_view key) {
  const double value = object.number(key);
  if (!(std::isfinite(value) && value > 0)) object.fail(key, "is not a positive number");
  return value;
}

void add_float(GgufBuilder& metadata, const std::string& key, double value) {
  metadata.add(key, GgufType::kFloat64, value);
}

// Older files say "type", newer ones "rope_type", some both.
std::string type_of(const HfObject& rope) {
  const auto type = rope.find_string("rope_type"), old = rope.find_string("type");
  if (type && old && *type != *old) rope.fail("type", "is not the rope_type");
  return type.value_or(old.value_or("default"));
}

// What each frequency is divided by: nothing where a turn is short, `factor` where it is longer than the context that
// the model was first trained for, and a mixture between.
std::vector<float> llama3_divisors(const HfObject& rope, double base, int head_dim) {
  const double factor = positive(rope, "factor");
  const double low = positive(rope, "low_freq_factor"), high = positive(rope, "high_freq_factor");
  const auto original_len = static_cast<double>(rope.size("original_max_position_embeddings"));
  if (high <= low) rope.fail("high_freq_factor", "is not more than low_freq_factor");
  std::vector<float> divisors;
  for (int i = 0; i < head_dim; i += 2) {
    const double wavelength = 2 * M_PI * std::pow(base, static_cast<double>(i) / head_dim);
    const double smooth = std::min(std::max((original_len / wavelength - low) / (high - low), 0.0), 1.0);
    divisors.push_back(static_cast<float>(1 / ((1 - smooth) / factor + smooth)));
  }
  return divisors;
}

// What cos and sin are multiplied by, where it is not what follows from the factor alone.
std::optional<double> yarn_magnitude(const HfObject& rope, double factor) {
  if (rope.find("attention_factor")) return positive(rope, "attention_factor");
  const double of_mscale = rope.find_number("mscale").value_or(0);
  const double of_all = rope.find_number("mscale_all_dim").value_or(0);
  if (of_mscale == 0 || of_all == 0) return std::nullopt;
  const auto scale = [&](double by) { return factor > 1 ? 0.1 * by * std::log(factor) + 1 : 1; };
  return scale(of_mscale) / scale(of_all);
}

void add_yarn(const HfObject& rope, const std::string& prefix, GgufBuilder& metadata) {
  const double factor = positive(rope, "factor");
  metadata.add_string(prefix + ".rope.scaling.type", "yarn");
  add_float(metadata, prefix + ".rope.scaling.factor", factor);
  if (const auto length = rope.find_size("original_max_position_embeddings"))
    metadata.add_uint(prefix + ".rope.scaling.original_context_length", static_cast<std::uint32_t>(*length));
  if (const auto magnitude = yarn_magnitude(rope, factor))
    add_float(metadata, prefix + ".rope.scaling.yarn_attn_factor", *magnitude);
  for (const char* beta : {"beta_fast", "beta_slow"})
    if (rope.find(beta)) add_float(metadata, prefix + ".rope.scaling.yarn_" + beta, positive(rope, beta));
  metadata.add_bool("larder.rope.yarn_truncate", rope.find_bool("truncate").value_or(true));
}

// scaling: the same object as rope, or one beside rope_theta.
std::vector<float> add_scaling(const HfObject& scaling, double base, const std::string& prefix, int head_dim,
                               GgufBuilder& metadata) {
  const std::string type = type_of(scaling);
  std::vector<float> divisors;
  if (type == "llama3") {
    divisors = llama3_divisors(scaling, base, head_dim);
  } else if (type == "yarn") {
    add_yarn(scaling, prefix, metadata);
  } else if (type == "linear") {
    metadata.add_string(prefix + ".rope.scaling.type", "linear");
    add_float(metadata, prefix + ".rope.scaling.factor", positive(scaling, "factor"));
  } else if (type != "default") {
    scaling.fail("rope_type", fmt::format("'{}' is not supported; default, linear, llama3 and yarn are", printable(type)));
  }
  if (scaling.find_number("partial_rotary_factor").value_or(1) != 1)
    scaling.fail("partial_rotary_factor", "values other than 1 are not supported");
  (void)scaling.find("rope_theta");
  // Some files state it for all types; where it changes something, it was asked for above.
  constexpr std::string_view kHarmless[] = {"original_max_position_embeddings"};
  scaling.refuse_others(kHarmless);
  return divisors;
}

}  // namespace

std::vector<float> read_hf_rope(const HfObject& config, const std::string& prefix, int head_dim, GgufBuilder& metadata) {
  const bool is_gemma3 = prefix == "gemma3";
  const auto parameters = config.find_object("rope_parameters");
  auto full = parameters;
  double local_base = config.find_number("rope_local_base_freq").value_or(kDefaultBase);
  if (parameters && parameters->find("full_attention")) {
    full = parameters->find_object("full_attention");
    if (const auto local = parameters->find_object("sliding_attention")) {
      local->expect_string("rope_type", "default");
      local_base = positive(*local, "rope_theta");
      local->refuse_others({});
    }
    parameters->refuse_others({});
  }
  double base = kDefaultBase;
  if (full && full->find("rope_theta"))
    base = positive(*full, "rope_theta");
  else if (config.find("rope_theta"))
    base = positive(config, "rope_theta");
  else if (is_gemma3)
    base = 1e6;
  add_float(metadata, prefix + ".rope.freq_base", base);
  if (is_gemma3) add_float(metadata, prefix + ".rope.freq_base_swa", local_base);
  const auto scaling = full ? full : config.find_object("rope_scaling");
  (void)config.find("rope_scaling");  // files with both say the same twice
  if (!scaling) return {};
  return add_scaling(*scaling, base, prefix, head_dim, metadata);
}

}  // namespace larder
