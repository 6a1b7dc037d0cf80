// What the sockets of a server and its workers are set to.
#include "cluster/socket_stream.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

namespace larder {
namespace {

int option_of(const SocketStream& stream, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(stream.fd(), level, name, &value, &size), 0);
  return value;
}

// In silence by probes, and in the middle of a message, where none are sent, by what is not acknowledged.
TEST(SocketStream, APeerThatVanishesIsNoticedAfter25SecondsInAnyCase) {
  const std::atomic<bool> stops{false};
  const int listener = listen_at("127.0.0.1", 0);
  RemoteHost host("127.0.0.1", port_of_socket(listener));
  SocketStream caller(-1, stops);
  ASSERT_TRUE(caller.connect(host, steady_now_ns() + 20 * kNsPerSecond)) << caller.error();
  pollfd entry{.fd = listener, .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&entry, 1, 20'000), 1);
  const SocketStream called(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC), stops);
  ::close(listener);
  for (const SocketStream* stream : {&std::as_const(caller), &called}) {
    ASSERT_TRUE(stream->is_open());
    EXPECT_EQ(option_of(*stream, SOL_SOCKET, SO_KEEPALIVE), 1);
    const int silence_s = option_of(*stream, IPPROTO_TCP, TCP_KEEPIDLE) +
                          option_of(*stream, IPPROTO_TCP, TCP_KEEPINTVL) * option_of(*stream, IPPROTO_TCP, TCP_KEEPCNT);
    EXPECT_EQ(silence_s, 25);
    EXPECT_EQ(option_of(*stream, IPPROTO_TCP, TCP_USER_TIMEOUT), 25'000);
  }
}

}  // namespace
}  // namespace larder
