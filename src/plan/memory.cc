// What the machine has, what the process takes, and how both are written.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

#include "base/error.h"
#include "plan/plan.h"

namespace larder {
namespace {

// The number in the first line of a file, or a fallback where there is none ("max", no such file).
std::int64_t read_number(const std::string& path, std::int64_t fallback) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? value : fallback;
}

}  // namespace

std::int64_t available_memory_bytes() {
  std::int64_t available_bytes = 0;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    std::int64_t kib = 0;
    if (key == "MemAvailable:" && meminfo >> kib) {
      available_bytes = kib * 1024;
      break;
    }
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  const std::int64_t limit = read_number("/sys/fs/cgroup/memory.max", kNone);
  if (limit == kNone) return available_bytes;
  const std::int64_t used = read_number("/sys/fs/cgroup/memory.current", 0);
  return std::min(available_bytes, std::max<std::int64_t>(limit - used, 0));
}

std::int64_t resident_memory_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size_pages = 0, resident_pages = 0;
  statm >> size_pages >> resident_pages;
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

std::string format_bytes(std::int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= std::int64_t{1} << 30) return fmt::format("{:.2f} GiB", value / (1 << 30));
  if (bytes >= std::int64_t{1} << 20) return fmt::format("{:.0f} MiB", value / (1 << 20));
  if (bytes >= std::int64_t{1} << 10) return fmt::format("{:.0f} KiB", value / (1 << 10));
  return fmt::format("{} B", bytes);
}

std::int64_t parse_bytes(const std::string& text) {
  const auto fail = [&]() -> std::int64_t {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("'{}' is not a size: write 512MiB, 2G or a number of bytes", text));
  };
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !(value >= 0)) return fail();
  std::string unit(end, text.data() + text.size());
  std::erase(unit, ' ');
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  constexpr std::string_view kUnits = "kmgt";
  double factor = 1;
  if (!unit.empty() && unit != "b") {
    const std::size_t power = kUnits.find(unit[0]);
    const std::string rest = unit.substr(1);
    if (power == std::string_view::npos || (!rest.empty() && rest != "b" && rest != "ib"))
      return fail();
    factor = std::pow(1024.0, static_cast<double>(power + 1));
  }
  if (value * factor > 9e18) return fail();
  return static_cast<std::int64_t>(value * factor);
}

}  // namespace larder
