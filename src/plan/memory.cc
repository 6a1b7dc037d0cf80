// What the machine has, what the process takes, and how both are written.
#include <sys/resource.h>
#include <sys/sysinfo.h>
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

// A control group's memory: its limit, and what it uses less the files that it could let go.
struct MemoryLimit {
  std::int64_t limit_bytes = 0;  // 0 = none
  std::int64_t used_bytes = 0;

  std::int64_t left_bytes() const { return std::max<std::int64_t>(limit_bytes - used_bytes, 0); }
};

// What the two versions of control groups call the same.
struct GroupFiles {
  std::string folder;  // of the root, below MemoryFolders::cgroup
  std::string limit, used, droppable;
};
const GroupFiles kVersion2{"", "memory.max", "memory.current", "inactive_file"};
const GroupFiles kVersion1{"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                           "total_inactive_file"};

// folder: with the slash. No such folder, no limit.
MemoryLimit read_group(const std::string& folder, const GroupFiles& files) {
  // Of version 1, no limit is a number near 2^63.
  constexpr std::int64_t kNone = std::int64_t{1} << 60;
  MemoryLimit limit;
  limit.limit_bytes = read_number(folder + files.limit, 0);
  limit.used_bytes =
      read_number(folder + files.used, 0) - read_field(folder + "memory.stat", files.droppable);
  if (limit.limit_bytes >= kNone) limit.limit_bytes = 0;
  return limit;
}

// Where this process stands below the root, "/a/b"; "" = in the root, or not to be seen from here.
std::string group_path(const MemoryFolders& folders, bool is_version_2) {
  std::ifstream groups(folders.proc + "/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t names = line.find(':') + 1;
    const std::size_t path = names == 0 ? 0 : line.find(':', names) + 1;
    if (path == 0) continue;
    const std::string controllers = ',' + line.substr(names, path - 1 - names) + ',';
    const bool is_it = is_version_2 ? line.starts_with("0::")
                                    : controllers.find(",memory,") != std::string::npos;
    if (!is_it) continue;
    const std::string text = line.substr(path);
    // Above the root of a container's own name space: its files are out of reach.
    const bool is_below = text.starts_with('/') && text.find("/..") == std::string::npos;
    return is_below && text != "/" ? text : "";
  }
  return "";
}

// A group may take what all above it leave. A container often sees its own as the root and is told a
// path from outside, which does not exist here.
MemoryLimit memory_limit(const MemoryFolders& folders) {
  MemoryLimit least;
  for (const GroupFiles* files : {&kVersion2, &kVersion1}) {
    std::string path = group_path(folders, files == &kVersion2);
    for (;;) {
      const MemoryLimit limit = read_group(folders.cgroup + files->folder + path + '/', *files);
      const bool is_less = least.limit_bytes == 0 || limit.left_bytes() < least.left_bytes();
      if (limit.limit_bytes > 0 && is_less) least = limit;
      if (path.empty()) break;
      path.erase(path.rfind('/'));
    }
  }
  return least;
}

struct OwnMemory {
  std::int64_t mapped_bytes = 0, resident_bytes = 0;
};

OwnMemory own_memory(const MemoryFolders& folders) {
  std::ifstream statm(folders.proc + "/self/statm");
  std::int64_t size_pages = 0, resident_pages = 0;
  statm >> size_pages >> resident_pages;
  const std::int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  return {size_pages * page_bytes, resident_pages * page_bytes};
}

// What `ulimit -v` leaves.
std::int64_t address_space_left_bytes(const MemoryFolders& folders) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::numeric_limits<std::int64_t>::max();
  const auto limit_bytes = static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<std::int64_t>::max()));
  return std::max<std::int64_t>(0, limit_bytes - own_memory(folders).mapped_bytes);
}

// Where /proc shows processes alone (systemd's ProcSubset=pid) or is not there, what the kernel calls free: less, as
// caches that it would give up count as taken.
std::int64_t machine_memory_bytes(const MemoryFolders& folders) {
  std::ifstream meminfo(folders.proc + "/meminfo");
  for (std::string key; meminfo >> key;) {
    std::int64_t kib = 0;
    if (key == "MemAvailable:" && meminfo >> kib) return kib * 1024;
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) return 0;
  return static_cast<std::int64_t>(info.freeram + info.bufferram) * info.mem_unit;
}

struct AvailableMemory {
  std::int64_t bytes = 0;
  const char* bound = "";
};

AvailableMemory available_memory(const MemoryFolders& folders) {
  AvailableMemory least{.bytes = machine_memory_bytes(folders)};
  const MemoryLimit group = memory_limit(folders);
  if (group.limit_bytes != 0 && group.left_bytes() < least.bytes) least = {group.left_bytes(), "the control group's limit"};
  const std::int64_t address_space_bytes = address_space_left_bytes(folders);
  if (address_space_bytes < least.bytes) least = {address_space_bytes, "`ulimit -v`"};
  return least;
}

}  // namespace

std::int64_t memory_limit_bytes(const MemoryFolders& folders) {
  return memory_limit(folders).limit_bytes;
}

std::int64_t available_memory_bytes(const MemoryFolders& folders) {
  return available_memory(folders).bytes;
}

std::string memory_bound(const MemoryFolders& folders) {
  return available_memory(folders).bound;
}

std::int64_t resident_memory_bytes() {
  return own_memory({}).resident_bytes;
}

std::string format_bytes(std::int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= std::int64_t{1} << 30) return fmt::format("{:.2f} GiB", value / (1 << 30));
  if (bytes >= std::int64_t{1} << 20) return fmt::format("{:.0f} MiB", value / (1 << 20));
  if (bytes >= std::int64_t{1} << 10) return fmt::format("{:.0f} KiB", value / (1 << 10));
  return fmt::format("{} B", bytes);
}

std::string option_bytes(std::int64_t bytes) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  return fmt::format("{}MiB", (bytes + kMiB - 1) / kMiB);
}

std::int64_t parse_bytes(const char* option, const std::string& text) {
  const auto fail = [&]() -> std::int64_t {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} {}: not a size; write 512MiB, 2G or a number of bytes", option, text));
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
