// Keys of a GGUF file's metadata, read with limits. For the sources of model_config.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"
#include "model/families.h"
#include "model/gguf.h"

namespace larder {

inline constexpr std::uint64_t kMaxConfigSize = 1 << 24;  // of any dimension
inline constexpr std::uint64_t kMaxLayers = 1024;
inline constexpr std::uint64_t kMaxContextLen = std::uint64_t{1} << 30;

// The file's keys under "<architecture>.", with limits, and what its family has that it does not say.
class ConfigReader {
 public:
  ConfigReader(const GgufFile& gguf, const Family& family) : gguf_(gguf), family_(family) {}

  const GgufFile& gguf() const { return gguf_; }
  const Family& family() const { return family_; }
  std::string key(std::string_view name) const {
    asked_.emplace(name);
    return fmt::format("{}.{}", family_.name, name);
  }
  bool has(std::string_view name) const { return gguf_.find(key(name)) != nullptr; }
  // Whether YaRN's ramp is between whole pairs.
  bool rounds_ramp() const { return gguf_.find_bool("larder.rope.yarn_truncate").value_or(family_.rounds_ramp); }

  std::optional<int> find_size(std::string_view name, std::uint64_t max = kMaxConfigSize) const {
    const auto value = gguf_.find_uint(key(name));
    if (!value) return std::nullopt;
    if (*value < 1 || *value > max)
      throw_invalid("GGUF: {}: {} is not in [1, {}]", key(name), *value, max);
    return static_cast<int>(*value);
  }

  int size(std::string_view name, std::uint64_t max = kMaxConfigSize) const {
    const auto value = find_size(name, max);
    if (!value) throw_invalid("GGUF: {}: the key is missing", key(name));
    return *value;
  }

  // A size that some files state once and others per layer.
  int uniform_size(std::string_view name, int num_layers) const {
    const GgufValue* value = gguf_.find(key(name));
    if (!value || value->type != GgufType::kArray) return size(name);
    if (value->count != static_cast<std::uint64_t>(num_layers))
      throw_invalid("GGUF: {}: {} values for {} layers", key(name), value->count, num_layers);
    const auto sizes = *gguf_.find_ints(key(name));
    if (std::ranges::any_of(sizes, [&](std::int64_t other) { return other != sizes[0]; }))
      throw_invalid("GGUF: {}: layers of different sizes are not supported", key(name));
    if (sizes[0] < 1 || sizes[0] > static_cast<std::int64_t>(kMaxConfigSize))
      throw_invalid("GGUF: {}: {} is not in [1, {}]", key(name), sizes[0], kMaxConfigSize);
    return static_cast<int>(sizes[0]);
  }

  // More than 0, and a normal number of FP32.
  std::optional<double> find_positive(std::string_view name) const {
    const auto value = gguf_.find_float(key(name));
    if (value && !(std::isnormal(static_cast<float>(*value)) && *value > 0))
      throw_invalid("GGUF: {}: {} is not a positive number of FP32", key(name), *value);
    return value;
  }

  // 0 says that there is none.
  std::optional<double> find_positive_or_none(std::string_view name) const {
    return gguf_.find_float(key(name)) == 0.0 ? std::nullopt : find_positive(name);
  }

  // Something that changes what the model computes, and that Larder does not compute.
  void refuse_nonzero(std::string_view name) const {
    const GgufValue* value = gguf_.find(key(name));
    if (!value) return;
    const bool is_float = value->type == GgufType::kFloat32 || value->type == GgufType::kFloat64;
    const double number = is_float ? *gguf_.find_float(key(name)) : static_cast<double>(*gguf_.find_uint(key(name)));
    if (number != 0) throw_invalid("GGUF: {} is {}: this feature is not supported", key(name), number);
  }

  // Refuses keys that nobody asked for and that are not known to change nothing. "name." stands for all below it.
  void refuse_others(std::span<const std::string_view> harmless) const {
    for (const std::string_view key : gguf_.keys_below(fmt::format("{}.", family_.name))) {
      const std::string_view name = key.substr(family_.name.size() + 1);
      const auto covers = [&](std::string_view other) { return name == other || (other.ends_with('.') && name.starts_with(other)); };
      if (!asked_.contains(name) && std::ranges::none_of(harmless, covers))
        throw_invalid("GGUF: {}: the key is unknown, and it might change what is computed", printable(key));
    }
  }

 private:
  const GgufFile& gguf_;
  const Family& family_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace larder
