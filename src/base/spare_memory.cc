#include "base/spare_memory.h"

#include <array>
#include <mutex>
#include <utility>

namespace larder {
namespace {

// Asio's operations have some hundred bytes, coroutines up to two thousand. What is read from clients is more: a buffer
// of theirs that fails costs a connection, an operation the process.
constexpr std::array<std::size_t, 4> kCellBytes = {128, 256, 512, 2048};
constexpr std::size_t kPartBytes = kSpareBytes / kCellBytes.size();  // for the cells of one size

struct Part {
  void* first_free = nullptr;  // holds the next one's address
  std::size_t num_fresh = 0;   // bytes that have been in use
};

struct Spare {
  std::mutex mutex;
  std::array<Part, kCellBytes.size()> parts;
  SpareStats stats;
};

constinit Spare spare;
alignas(64) constinit std::array<std::byte, kSpareBytes> memory{};  // pages that nobody has needed are not there

}  // namespace

void* take_spare(std::size_t size_bytes) noexcept {
  const std::lock_guard lock(spare.mutex);
  for (std::size_t i = 0; i < kCellBytes.size(); ++i) {
    Part& part = spare.parts[i];
    const bool is_full = part.first_free == nullptr && part.num_fresh == kPartBytes;
    if (size_bytes > kCellBytes[i] || is_full) continue;
    ++spare.stats.num_taken;
    spare.stats.used_bytes += kCellBytes[i];
    if (part.first_free != nullptr) return std::exchange(part.first_free, *static_cast<void**>(part.first_free));
    return &memory[i * kPartBytes + std::exchange(part.num_fresh, part.num_fresh + kCellBytes[i])];
  }
  return nullptr;
}

bool give_spare(void* bytes) noexcept {
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(bytes) - reinterpret_cast<std::uintptr_t>(memory.data());
  if (offset >= kSpareBytes) return false;
  const std::lock_guard lock(spare.mutex);
  Part& part = spare.parts[offset / kPartBytes];
  *static_cast<void**>(bytes) = std::exchange(part.first_free, bytes);
  spare.stats.used_bytes -= kCellBytes[offset / kPartBytes];
  return true;
}

SpareStats spare_stats() {
  const std::lock_guard lock(spare.mutex);
  return spare.stats;
}

}  // namespace larder
