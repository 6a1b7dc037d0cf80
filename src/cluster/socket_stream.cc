#include "cluster/socket_stream.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/tcp_options.h"

namespace larder {
namespace {

constexpr std::int64_t kStopPollNs = 50 * kNsPerMs;
// An answer is often as good as there: to sleep and be woken takes longer than to look again.
constexpr std::int64_t kSpinNs = 40'000;
// A peer whose machine has gone says nothing: it is asked after so many seconds of silence. Nobody is asked while what
// was sent waits to be acknowledged, which has the same time.
constexpr KeepAlive kKeepAlive{.idle_s = 10, .interval_s = 5, .num_probes = 3};
constexpr int kBacklog = 16;
constexpr std::size_t kMaxPieces = 4;

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

SocketStream::SocketStream(int fd, const std::atomic<bool>& stop) : fd_(fd), stop_(&stop) {
  if (fd_ >= 0) set_options();
}

SocketStream::~SocketStream() { close(); }

void SocketStream::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void SocketStream::set_options() {
  set_tcp_options(fd_, kKeepAlive);
  set_socket_option(fd_, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * kKeepAlive.total_s());
}

bool SocketStream::fail(std::string error) {
  error_ = std::move(error);
  close();
  return false;
}

bool SocketStream::wait(short events, std::int64_t deadline_ns) {
  while (true) {
    if (stop_->load(std::memory_order_relaxed)) return fail("stopped");
    const std::int64_t left_ns = deadline_ns - steady_now_ns();
    if (left_ns <= 0) return fail("no answer in time");
    pollfd entry{.fd = fd_, .events = events, .revents = 0};
    const auto wait_ms = static_cast<int>((std::min(left_ns, kStopPollNs) + kNsPerMs - 1) / kNsPerMs);
    const int num = ::poll(&entry, 1, wait_ms);
    if (num > 0) return true;  // errors show when it is used
    if (num < 0 && errno != EINTR) return fail(std::strerror(errno));
  }
}

bool SocketStream::connect(RemoteHost& host, std::int64_t deadline_ns) {
  close();
  const RemoteHost::Found found = host.find(deadline_ns, *stop_);
  error_ = found.error;
  auto num_left = static_cast<std::int64_t>(found.addresses.size());
  for (const RemoteHost::Address& address : found.addresses) {
    // One that does not answer leaves the others their time.
    const std::int64_t now_ns = steady_now_ns();
    if (try_connect(address, now_ns + (deadline_ns - now_ns) / num_left--)) return true;
  }
  if (found.was_known) host.forget();
  return false;
}

bool SocketStream::try_connect(const RemoteHost::Address& address, std::int64_t deadline_ns) {
  fd_ = ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return fail(std::strerror(errno));
  set_options();
  int error = 0;
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) error = errno;
  if (error == EINPROGRESS) {
    if (!wait(POLLOUT, deadline_ns)) return false;
    socklen_t size = sizeof error;
    if (::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  }
  return error == 0 ? true : fail(std::strerror(error));
}

bool SocketStream::send(std::initializer_list<std::span<const std::byte>> pieces, std::int64_t patience_ns) {
  if (!is_open()) return false;
  const std::int64_t deadline_ns = steady_now_ns() + patience_ns;
  CHECK(pieces.size() <= kMaxPieces, pieces.size());
  std::array<iovec, kMaxPieces> vectors;
  std::size_t count = 0;
  for (const std::span<const std::byte> piece : pieces)
    if (!piece.empty())
      vectors[count++] = {.iov_base = const_cast<std::byte*>(piece.data()), .iov_len = piece.size()};
  std::size_t first = 0;
  while (first < count) {
    msghdr message{};
    message.msg_iov = vectors.data() + first;
    message.msg_iovlen = count - first;
    const ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (!would_block(errno)) return fail(std::strerror(errno));
      if (!wait(POLLOUT, deadline_ns)) return false;
      continue;
    }
    auto left = static_cast<std::size_t>(sent);
    while (first < count && left >= vectors[first].iov_len) left -= vectors[first++].iov_len;
    if (first == count) break;
    vectors[first].iov_base = static_cast<std::byte*>(vectors[first].iov_base) + left;
    vectors[first].iov_len -= left;
  }
  return true;
}

bool SocketStream::receive(std::span<std::byte> bytes, std::int64_t patience_ns) {
  if (!is_open()) return false;
  std::int64_t progress_ns = steady_now_ns();
  const std::int64_t deadline_ns = progress_ns + patience_ns;
  while (!bytes.empty()) {
    const ssize_t received = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (received == 0) return fail("closed by the other end");
    if (received > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(received));
      progress_ns = steady_now_ns();
      continue;
    }
    if (!would_block(errno)) return fail(std::strerror(errno));
    if (steady_now_ns() - progress_ns < kSpinNs) continue;
    if (!wait(POLLIN, deadline_ns)) return false;
  }
  return true;
}

std::size_t SocketStream::receive_now(std::span<std::byte> bytes) {
  if (!is_open() || bytes.empty()) return 0;
  const ssize_t received = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (received > 0) return static_cast<std::size_t>(received);
  if (received == 0) fail("closed by the other end");
  if (received < 0 && !would_block(errno)) fail(std::strerror(errno));
  return 0;
}

bool SocketStream::wait_for_message() {
  const std::int64_t begin_ns = steady_now_ns();
  char next;
  while (is_open()) {
    const ssize_t received = ::recv(fd_, &next, 1, MSG_DONTWAIT | MSG_PEEK);
    if (received > 0) return true;
    if (received == 0) return fail("closed by the other end");
    if (!would_block(errno)) return fail(std::strerror(errno));
    if (steady_now_ns() - begin_ns < kSpinNs) continue;
    if (!wait(POLLIN, std::numeric_limits<std::int64_t>::max())) return false;
  }
  return false;
}

int listen_at(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (const int error = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found))
    throw Error(ErrorKind::kUnavailable, fmt::format("{}: {}", host, ::gai_strerror(error)));
  std::string why = "no address";
  int fd = -1;
  for (const addrinfo* one = found; one != nullptr && fd < 0; one = one->ai_next) {
    fd = ::socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      why = std::strerror(errno);
      continue;
    }
    set_socket_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (::bind(fd, one->ai_addr, one->ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0) break;
    why = std::strerror(errno);
    ::close(fd);
    fd = -1;
  }
  ::freeaddrinfo(found);
  if (fd < 0) throw Error(ErrorKind::kUnavailable, fmt::format("{} port {}: {}", host, port, why));
  return fd;
}

int port_of_socket(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace larder
