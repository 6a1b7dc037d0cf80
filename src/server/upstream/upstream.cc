#include "server/upstream/upstream.h"

#include <spdlog/spdlog.h>

#include <boost/asio/ssl/context.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "server/request_id.h"

namespace larder {
namespace {

namespace ssl = boost::asio::ssl;

constexpr std::size_t kWaitingPerSlot = 4;

std::unique_ptr<ssl::context> make_tls(const UpstreamConfig& config) {
  if (!config.url.is_tls) return nullptr;
  try {
    auto tls = std::make_unique<ssl::context>(ssl::context::tls_client);
    tls->set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
    tls->set_default_verify_paths();  // the system's; SSL_CERT_FILE and SSL_CERT_DIR name others
    tls->set_verify_mode(ssl::verify_peer);
    return tls;
  } catch (const boost::system::system_error& error) {
    throw Error(ErrorKind::kUnavailable, fmt::format("--upstream: TLS cannot be set up: {}", error.what()));
  }
}

}  // namespace

std::int64_t Upstream::most_bytes(const UpstreamConfig& config) {
  // Measured: 43 and 134 KiB.
  constexpr std::int64_t kBytes = std::int64_t{64} << 10, kTlsBytes = std::int64_t{160} << 10;
  return config.max_connections * (config.url.is_tls ? kTlsBytes : kBytes);
}

Upstream::Upstream(const UpstreamConfig& config)
    : config_(config),
      id_(make_request_id().substr(0, 16)),
      tls_(make_tls(config)),
      slots_(config.max_connections, kWaitingPerSlot * static_cast<std::size_t>(config.max_connections)),
      connections_(config.idle_timeout, static_cast<std::size_t>(config.max_connections)) {}

Upstream::~Upstream() = default;

void Upstream::warn(const std::string& message) {
  const std::int64_t now_ns = steady_now_ns();
  std::int64_t next_ns = next_line_ns_.load();
  if (now_ns < next_ns || !next_line_ns_.compare_exchange_strong(next_ns, now_ns + kNsPerSecond)) return;
  spdlog::warn("{}", message);
}

}  // namespace larder
