#include "kv/kv_type_names.h"

#include <optional>
#include <string_view>

#include "base/error.h"

namespace larder {
namespace {

struct Name {
  std::string_view text;
  KvType type;
};
constexpr Name kNames[] = {
    {"f16", KvType::kF16},
    {"bf16", KvType::kBF16},
    {"fp8", KvType::kFp8},
    {"int8", KvType::kInt8},
    {"int4", KvType::kInt4},
};

std::optional<KvType> find_type(std::string_view text) {
  for (const Name& name : kNames) {
    if (name.text == text) return name.type;
  }
  return std::nullopt;
}

std::string_view name_of(KvType type) {
  for (const Name& name : kNames) {
    if (name.type == type) return name.text;
  }
  return "?";
}

// Of "k=int8", where prefix is "k=".
std::optional<KvType> find_part(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  return find_type(text.substr(prefix.size()));
}

}  // namespace

KvTypes parse_kv_types(const std::string& text) {
  if (const auto both = find_type(text)) return {*both, *both};
  const std::string_view parts = text;
  const std::size_t comma = parts.find(',');
  if (comma != std::string_view::npos) {
    const auto k = find_part(parts.substr(0, comma), "k=");
    const auto v = find_part(parts.substr(comma + 1), "v=");
    if (k && v) return {*k, *v};
  }
  throw_invalid(
      "--kv-type '{}': write f16, bf16, fp8, int8 or int4, or keys and values apart as k=int8,v=int4", text);
}

std::string format_kv_types(KvTypes types) {
  if (types.k == types.v) return std::string(name_of(types.k));
  return fmt::format("k={},v={}", name_of(types.k), name_of(types.v));
}

}  // namespace larder
