#include "plan/machines.h"

#include <algorithm>

#include "base/error.h"
#include "plan/name_key.h"

namespace larder {
namespace {

constexpr double kTera = 1e12;

std::int64_t gib(int count) { return std::int64_t{count} << 30; }

// Peaks of dense products, in 10^12 a second: FP32 outside tensor cores, BF16 (and FP16), FP8.
Machine machine(const char* name, std::int64_t memory_bytes, double read_bytes_per_s,
                std::array<double, 3> peaks) {
  return {name,
          memory_bytes,
          read_bytes_per_s,
          {peaks[0] * kTera, peaks[1] * kTera, peaks[2] * kTera, peaks[1] * kTera, peaks[1] * kTera}};
}

}  // namespace

const std::vector<Machine>& named_machines() {
  static const std::vector<Machine> kMachines = {
      machine("H100 SXM", gib(80), 3.35e12, {67, 989, 1979}),
      machine("H200", gib(141), 4.8e12, {67, 989, 1979}),
      machine("A100 80G", gib(80), 2.039e12, {19.5, 312, 312}),
      machine("L4", gib(24), 300e9, {30.3, 121, 242}),
      machine("RTX 4090", gib(24), 1008e9, {82.6, 165.2, 330.3}),
  };
  return kMachines;
}

const Machine& find_machine(std::string_view name) {
  const std::string key = key_of(name);
  std::string names;
  for (const Machine& known : named_machines()) {
    // "h100" is enough for "H100 SXM", and "4090" for "RTX 4090".
    const std::string known_key = key_of(known.name);
    if (key.size() >= 2 && (known_key.starts_with(key) || known_key.ends_with(key))) return known;
    names += ", " + known.name;
  }
  throw_invalid("--machine '{}': known are this{}", name, names);
}

}  // namespace larder
