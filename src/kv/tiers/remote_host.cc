#include "kv/tiers/remote_host.h"

#include <netdb.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/start_thread.h"

namespace larder {
namespace {

constexpr std::int64_t kKnownNs = 60 * kNsPerSecond;
constexpr std::int64_t kStopPollNs = 50 * kNsPerMs;

// Returns "", or why there are none.
std::string look_up(const std::string& name, const std::string& port, int flags,
                    std::vector<RemoteHost::Address>& addresses) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(name.c_str(), port.c_str(), &hints, &found))
    return ::gai_strerror(error);
  for (const addrinfo* one = found; one; one = one->ai_next) {
    RemoteHost::Address address{.storage = {}, .size = one->ai_addrlen};
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    addresses.push_back(address);
  }
  ::freeaddrinfo(found);
  return "";
}

}  // namespace

// Shared with the thread, which may outlive whoever asked.
struct RemoteHost::Lookup {
  std::mutex mutex;  // of all that follows
  std::condition_variable wake;
  bool has_ended = false;
  std::vector<Address> addresses;
  std::string error;
};

RemoteHost::RemoteHost(std::string name, int port)
    : name_(std::move(name)), port_(std::to_string(port)) {}

std::shared_ptr<RemoteHost::Lookup> RemoteHost::begin_lookup() {
  auto lookup = std::make_shared<Lookup>();
  start_thread("that looks up a host", [lookup, name = name_, port = port_] {
    std::vector<Address> addresses;
    std::string error = look_up(name, port, 0, addresses);
    const std::lock_guard lock(lookup->mutex);
    lookup->addresses = std::move(addresses);
    lookup->error = std::move(error);
    lookup->has_ended = true;
    lookup->wake.notify_all();
  }).detach();
  return lookup;
}

RemoteHost::Found RemoteHost::find(std::int64_t deadline_ns, const std::atomic<bool>& stop) {
  Found found;
  // What is an address needs no lookup.
  if (look_up(name_, port_, AI_NUMERICHOST, found.addresses).empty()) return found;
  std::shared_ptr<Lookup> lookup;
  {
    const std::lock_guard lock(mutex_);
    if (!known_.empty() && steady_now_ns() < known_until_ns_)
      return {.addresses = known_, .error = "", .was_known = true};
    try {
      if (!lookup_) lookup_ = begin_lookup();
    } catch (const Error& error) {
      return {.addresses = {}, .error = error.what()};
    }
    lookup = lookup_;
  }
  {
    std::unique_lock lock(lookup->mutex);
    while (!lookup->has_ended) {
      const std::int64_t left_ns = deadline_ns - steady_now_ns();
      if (left_ns <= 0 || stop.load(std::memory_order_relaxed))
        return {.addresses = {}, .error = "its name is still being looked up", .is_late = true};
      lookup->wake.wait_for(lock, std::chrono::nanoseconds(std::min(left_ns, kStopPollNs)));
    }
    found.addresses = lookup->addresses;
    found.error = lookup->error;
  }
  const std::lock_guard lock(mutex_);
  if (lookup_ == lookup) lookup_ = nullptr;
  known_ = found.addresses;
  known_until_ns_ = steady_now_ns() + kKnownNs;
  return found;
}

bool RemoteHost::has_lookup() {
  const std::lock_guard lock(mutex_);
  return lookup_ != nullptr;
}

void RemoteHost::forget() {
  const std::lock_guard lock(mutex_);
  known_.clear();
}

}  // namespace larder
