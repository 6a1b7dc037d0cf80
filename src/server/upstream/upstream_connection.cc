#include "server/upstream/upstream_connection.h"

#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace larder {

bool UpstreamConnection::is_quiet() {
  if (!socket.is_open()) return false;
  // What TLS has read ahead: Asio hands all of it to the BIO.
  if (tls) {
    SSL* const ssl = tls->native_handle();
    if (SSL_has_pending(ssl) == 1 || BIO_pending(SSL_get_rbio(ssl)) > 0) return false;
  }
  char next = 0;
  const auto num_bytes = ::recv(socket.native_handle(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
  return num_bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

std::unique_ptr<UpstreamConnection> UpstreamConnections::take(TimePoint now) {
  close_old(now);
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return nullptr;
  auto latest = std::move(idle_.back());
  idle_.pop_back();
  return latest;
}

void UpstreamConnections::keep(std::unique_ptr<UpstreamConnection> connection, TimePoint now) {
  connection->idle_since = now;
  const std::lock_guard lock(mutex_);
  if (idle_.size() < idle_.capacity()) idle_.push_back(std::move(connection));
}

void UpstreamConnections::close_old(TimePoint now) {
  const std::lock_guard lock(mutex_);
  std::erase_if(idle_, [&](const auto& connection) {
    return now - connection->idle_since >= idle_timeout_ || !connection->is_quiet();
  });
}

void UpstreamConnections::close_all() {
  const std::lock_guard lock(mutex_);
  idle_.clear();
}

std::size_t UpstreamConnections::size() const {
  const std::lock_guard lock(mutex_);
  return idle_.size();
}

}  // namespace larder
