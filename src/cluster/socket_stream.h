// A TCP connection on which nothing waits for ever.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "kv/tiers/remote_host.h"

namespace larder {

// Waits end where they take longer than the caller allows, and where `stop` is set. After a failure it is
// closed and error() says why. No allocation while it goes well. Thread: one at a time.
class SocketStream {
 public:
  // Takes the socket over; -1 = closed. stop must outlive it.
  SocketStream(int fd, const std::atomic<bool>& stop);
  ~SocketStream();
  SocketStream(SocketStream&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), stop_(other.stop_), error_(std::move(other.error_)) {}
  SocketStream(const SocketStream&) = delete;

  // Any of the host's addresses.
  bool connect(RemoteHost& host, std::int64_t deadline_ns);
  bool is_open() const { return fd_ >= 0; }
  void close();
  int fd() const { return fd_; }  // to poll; -1 = closed

  // All of the pieces, in order, within patience_ns.
  bool send(std::initializer_list<std::span<const std::byte>> pieces, std::int64_t patience_ns);
  // As many bytes as there is room for, likewise.
  bool receive(std::span<std::byte> bytes, std::int64_t patience_ns);
  // What has come already, at most as much as there is room for: 0 = nothing yet, or it failed.
  std::size_t receive_now(std::span<std::byte> bytes);
  // Until something has come, however long that takes. false: closed, or told to stop.
  bool wait_for_message();

  const std::string& error() const { return error_; }
  // Closes it for this reason. false.
  bool fail(std::string error);

 private:
  bool wait(short events, std::int64_t deadline_ns);
  bool try_connect(const RemoteHost::Address& address, std::int64_t deadline_ns);
  void set_options();

  int fd_;
  const std::atomic<bool>* stop_;
  std::string error_;
};

// A socket that listens there. Throws Error{kUnavailable} naming the address.
int listen_at(const std::string& host, int port);
// Its port.
int port_of_socket(int fd);

}  // namespace larder
