// What connections that wait for each other's words have in common.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace larder {

// The other end is asked whether it is there after so many seconds of silence, and again at intervals.
struct KeepAlive {
  int idle_s;
  int interval_s;
  int num_probes;

  int total_s() const { return idle_s + interval_s * num_probes; }
};

inline void set_socket_option(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); }

// And small messages go out at once.
inline void set_tcp_options(int fd, const KeepAlive& keep_alive) {
  set_socket_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_socket_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_socket_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, keep_alive.idle_s);
  set_socket_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, keep_alive.interval_s);
  set_socket_option(fd, IPPROTO_TCP, TCP_KEEPCNT, keep_alive.num_probes);
}

}  // namespace larder
