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

// Of the form "name number" a line, in a file.
std::int64_t read_field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string key;
  for (std::int64_t value = 0; file >> key >> value;)
    if (key == name) return value;
  return 0;
}

// A container's memory: its limit, and what it uses less the files that it could let go.
struct MemoryLimit {
  std::int64_t limit_bytes = 0;  // 0 = none
  std::int64_t used_bytes = 0;
};

MemoryLimit memory_limit() {
  const std::string folder = "/sys/fs/cgroup/";
  MemoryLimit limit;
  // Version 2 of control groups, then version 1, where no limit is a number near 2^63.
  limit.limit_bytes = read_number(folder + "memory.max", 0);
  limit.used_bytes = read_number(folder + "memory.current", 0) -
                     read_field(folder + "memory.stat", "inactive_file");
  if (limit.limit_bytes == 0) {
    limit.limit_bytes = read_number(folder + "memory/memory.limit_in_bytes", 0);
    limit.used_bytes = read_number(folder + "memory/memory.usage_in_bytes", 0) -
                       read_field(folder + "memory/memory.stat", "total_inactive_file");
  }
  constexpr std::int64_t kNone = std::int64_t{1} << 60;
  if (limit.limit_bytes >= kNone) limit.limit_bytes = 0;
  return limit;
}

}  // namespace

std::int64_t memory_limit_bytes() { return memory_limit().limit_bytes; }

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
  const MemoryLimit limit = memory_limit();
  if (limit.limit_bytes == 0) return available_bytes;
  return std::min(available_bytes,
                  std::max<std::int64_t>(limit.limit_bytes - limit.used_bytes, 0));
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
