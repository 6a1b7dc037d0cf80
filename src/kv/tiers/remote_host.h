// Where a server is, by its name.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace larder {

// The system's resolver knows no deadline, so a name is looked up on a thread of its own, which
// nobody has to wait for: an answer that comes late is there for the next who asks. Thread: any.
class RemoteHost {
 public:
  struct Address {
    sockaddr_storage storage{};
    socklen_t size = 0;
  };
  struct Found {
    std::vector<Address> addresses;  // empty: there are none (yet)
    std::string error;               // then why
    bool is_late = false;            // not known by the deadline, or before the caller was stopped
    bool was_known = false;          // from before this call
  };

  // A name or an address.
  RemoteHost(std::string name, int port);

  Found find(std::int64_t deadline_ns, const std::atomic<bool>& stop);
  // What is known does not answer: the name may mean something else by now.
  void forget();
  // A lookup is under way, or has ended and nobody has asked since: whoever throws this away asks for it anew.
  bool has_lookup();

 private:
  struct Lookup;

  std::shared_ptr<Lookup> begin_lookup();

  const std::string name_;
  const std::string port_;
  std::mutex mutex_;  // of all that follows
  std::vector<Address> known_;
  std::int64_t known_until_ns_ = 0;
  std::shared_ptr<Lookup> lookup_;  // under way, or ended late; null = none
};

}  // namespace larder
