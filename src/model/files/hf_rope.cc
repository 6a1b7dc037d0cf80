#include "model/files/hf_rope.h"

#include <cmath>
#include <initializer_list>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "base/printable.h"

namespace larder {
namespace {

struct HfRopeShape {
  const HfClass& hf_class;
  std::string prefix;  // of GGUF's keys
  int rope_dim = 0;
  double base = 0;
};

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
std::vector<float> llama3_divisors(const HfObject& rope, double base, int rope_dim) {
  const double factor = positive(rope, "factor");
  const double low = positive(rope, "low_freq_factor"), high = positive(rope, "high_freq_factor");
  const auto original_len = static_cast<double>(rope.size("original_max_position_embeddings"));
  if (high <= low) rope.fail("high_freq_factor", "is not more than low_freq_factor");
  std::vector<float> divisors;
  for (int i = 0; i < rope_dim; i += 2) {
    const double wavelength = 2 * M_PI * std::pow(base, static_cast<double>(i) / rope_dim);
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

void add_yarn(const HfObject& rope, const HfRopeShape& shape, GgufBuilder& metadata) {
  const std::string& prefix = shape.prefix;
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
  if (!shape.hf_class.family().has_temperature) return;
  (void)rope.find("max_position_embeddings");
  if (rope.find("llama_4_scaling_beta"))
    add_float(metadata, prefix + ".attention.temperature_scale", positive(rope, "llama_4_scaling_beta"));
}

// Of each pair.
std::vector<float> read_divisors(const HfObject& rope, std::string_view key, int rope_dim) {
  const nlohmann::json* list = rope.find(key);
  const auto count = static_cast<std::size_t>(rope_dim / 2);
  if (!list || !list->is_array() || list->size() != count) rope.fail(key, fmt::format("is not a list of {} numbers", count));
  std::vector<float> divisors;
  for (const auto& value : *list) {
    if (!value.is_number() || !(value.get<double>() > 0)) rope.fail(key, "one is not a positive number");
    divisors.push_back(value.get<float>());
  }
  return divisors;
}

// LongRoPE (arXiv:2402.13753). config: that has the length before it was stretched, unless the rope has it.
HfRope add_longrope(const HfObject& config, const HfObject& rope, const HfRopeShape& shape, GgufBuilder& metadata) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const auto own = rope.find_size(kOriginal), given = config.find_size(kOriginal);
  if (own && given && *own != *given) rope.fail(kOriginal, "is not that beside it");
  if (!own && !given) config.fail(kOriginal, "missing");
  const auto original_len = static_cast<double>(own ? *own : *given);
  double factor = static_cast<double>(config.size("max_position_embeddings")) / original_len;
  if (rope.find("factor")) factor = positive(rope, "factor");
  double magnitude = factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(original_len)) : 1;
  if (rope.find("attention_factor")) magnitude = positive(rope, "attention_factor");
  if (!std::isfinite(magnitude)) config.fail(kOriginal, "1 cannot be stretched");
  metadata.add_string(shape.prefix + ".rope.scaling.type", "longrope");
  metadata.add_uint(shape.prefix + ".rope.scaling.original_context_length", static_cast<std::uint32_t>(original_len));
  add_float(metadata, shape.prefix + ".rope.scaling.attn_factor", magnitude);
  return {.divisors = {},
          .long_divisors = read_divisors(rope, "long_factor", shape.rope_dim),
          .short_divisors = read_divisors(rope, "short_factor", shape.rope_dim)};
}

// scaling: what config says beside rope_theta, or an object with both.
HfRope add_scaling(const HfObject& config, const HfObject& scaling, const HfRopeShape& shape, GgufBuilder& metadata) {
  const std::string type = type_of(scaling);
  HfRope rope;
  const bool is_old_name = shape.hf_class.has_old_longrope_names && (type == "su" || type == "yarn");
  const bool is_longrope = type == "longrope" || is_old_name;
  if (is_longrope) {
    rope = add_longrope(config, scaling, shape, metadata);
  } else if (type == "llama3") {
    rope.divisors = llama3_divisors(scaling, shape.base, shape.rope_dim);
  } else if (type == "yarn") {
    add_yarn(scaling, shape, metadata);
  } else if (type == "linear") {
    metadata.add_string(shape.prefix + ".rope.scaling.type", "linear");
    add_float(metadata, shape.prefix + ".rope.scaling.factor", positive(scaling, "factor"));
  } else if (type != "default") {
    scaling.fail("rope_type", fmt::format("'{}' is not supported; default, linear, llama3, yarn and longrope are", printable(type)));
  }
  (void)scaling.find("rope_theta");
  // Some files state it for all types; where it changes something, it was asked for above.
  constexpr std::string_view kHarmless[] = {"original_max_position_embeddings"};
  scaling.refuse_others(kHarmless);
  return rope;
}

// Files may say it in both forms, of which readers take either. Nothing said is nothing else.
bool says_the_same(const HfObject& rope, const HfObject& old) {
  const auto told = [](const HfObject& object) {
    nlohmann::json members = object.value();
    members["rope_type"] = type_of(object);
    for (const char* key : {"type", "rope_theta", "partial_rotary_factor"}) members.erase(key);
    for (auto member = members.begin(); member != members.end();) member = member->is_null() ? members.erase(member) : std::next(member);
    return members;
  };
  return old.value().empty() || told(rope) == told(old);
}

// nullptr: there is no such object.
std::optional<double> read_base(std::initializer_list<const HfObject*> places) {
  constexpr const char* kKey = "rope_theta";
  std::optional<double> base;
  for (const HfObject* place : places) {
    if (!place || !place->find(kKey)) continue;
    const double value = positive(*place, kKey);
    if (base && *base != value) place->fail(kKey, "is another one elsewhere");
    base = value;
  }
  return base;
}

// How much of a head rotates.
int read_rope_dim(const HfObject& config, const std::optional<HfObject>& rope, const HfClass& hf_class, int head_dim) {
  constexpr const char* kFactor = "partial_rotary_factor";
  double factor = config.find_number(kFactor).value_or(hf_class.turned_part);
  if (rope && rope->find(kFactor)) {
    if (config.find(kFactor) && rope->number(kFactor) != factor) config.fail(kFactor, "is not that of rope_parameters");
    factor = rope->number(kFactor);
  }
  if (factor != 1 && !hf_class.may_turn_part) config.fail(kFactor, "values other than 1 are not supported");
  const double rope_dim = head_dim * factor;
  if (!(rope_dim >= 2 && rope_dim <= head_dim) || static_cast<int>(rope_dim) % 2 != 0)
    config.fail(kFactor, fmt::format("{} of a head of {} is not an even number of dimensions", factor, head_dim));
  return static_cast<int>(rope_dim);
}

}  // namespace

HfRope read_hf_rope(const HfObject& config, const HfClass& hf_class, int head_dim, GgufBuilder& metadata) {
  const Family& family = hf_class.family();
  const std::string prefix(family.name);
  const auto parameters = config.find_object("rope_parameters");
  auto full = parameters;
  std::optional<double> local_base;
  if (family.local_base > 0) local_base = config.find_number("rope_local_base_freq").value_or(family.local_base);
  if (parameters && parameters->find("full_attention")) {
    full = parameters->find_object("full_attention");
    if (const auto local = parameters->find_object("sliding_attention")) {
      if (!family.has_local_rope) parameters->fail("sliding_attention", "not supported");
      local->expect_string("rope_type", "default");
      local_base = positive(*local, "rope_theta");
      local->refuse_others({});
    }
    parameters->refuse_others({});
  }
  const auto old = config.find_object("rope_scaling");
  if (full && old && !says_the_same(*full, *old))
    config.fail("rope_scaling", "is not what rope_parameters says; leave out the one that does not hold");
  const double base = read_base({full ? &*full : nullptr, old ? &*old : nullptr, &config}).value_or(hf_class.base);
  add_float(metadata, prefix + ".rope.freq_base", base);
  if (family.has_local_rope) add_float(metadata, prefix + ".rope.freq_base_swa", local_base.value_or(base));
  const auto& scaling = full ? full : old;
  if (hf_class.may_say_original_len) (void)config.find("original_max_position_embeddings");
  const int rope_dim = read_rope_dim(config, scaling, hf_class, head_dim);
  metadata.add_uint(prefix + ".rope.dimension_count", static_cast<std::uint32_t>(rope_dim));
  if (!scaling) return {};
  return add_scaling(config, *scaling, {hf_class, prefix, rope_dim, base}, metadata);
}

}  // namespace larder
