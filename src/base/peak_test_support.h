// The most memory that this process has had.
#pragma once

#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "base/heap_test_support.h"

namespace larder {

// In bytes.
inline std::int64_t peak_of_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

// Of this process, from now on; nullopt: the system does not tell, or the heap is one that keeps what is freed, as
// sanitizers' do.
inline std::optional<std::int64_t> begin_peak_of_memory() {
  if (!is_heap_known()) return std::nullopt;
  ::malloc_trim(0);
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;
  if (!reset) return std::nullopt;
  return peak_of_memory();
}

}  // namespace larder
