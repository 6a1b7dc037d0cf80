#include "server/request_id.h"

#include <fmt/format.h>

#include <cstdint>
#include <random>

namespace larder {

std::string make_request_id() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  const std::uint64_t high = generator(), low = generator();
  return fmt::format("{:016x}{:016x}", high, low);
}

}  // namespace larder
