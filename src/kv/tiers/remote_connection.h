// One connection to a Redis or Valkey server, on which nothing takes longer than it may.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/tiers/remote_host.h"
#include "kv/tiers/remote_tls.h"
#include "kv/tiers/remote_url.h"

namespace larder {

enum class RemoteOutcome {
  kOk,
  kTimeout,  // the deadline passed, or the caller's stop was set
  kFailed,   // refused, closed in the middle, not the protocol, longer than asked for
};

struct RemoteReply {
  enum class Kind { kStatus, kString, kInteger, kNil, kError };

  Kind kind = Kind::kNil;
  std::span<const std::byte> bytes;  // of status, string and error; valid in the callback only
  std::int64_t integer = 0;

  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // An error of a server that is not, or no longer, the one to ask.
  bool is_of_another() const;
};

// Commands to send at once, and what to do with their replies.
struct RemoteExchange {
  std::vector<std::span<const std::byte>> pieces;  // of the request, in order
  int num_replies = 0;
  std::int64_t max_reply_bytes = 0;  // of all replies together
  std::function<void(int index, const RemoteReply& reply)> on_reply{};
};

// Sockets that do not block, polled until a deadline; replies are parsed by hiredis as they come,
// and only strings, numbers and errors, of a total that the caller has bounded. After any outcome
// but kOk it is closed. Has no buffers but during an exchange. Thread: one at a time.
class RemoteConnection {
 public:
  // host: url's. stop: ends whatever is under way. tls: null = in the clear. All must outlive the connection.
  RemoteConnection(RemoteUrl url, RemoteHost& host, const std::atomic<bool>& stop, const RemoteTls* tls = nullptr);
  ~RemoteConnection();
  RemoteConnection(const RemoteConnection&) = delete;
  RemoteConnection& operator=(const RemoteConnection&) = delete;

  bool is_open() const { return fd_ >= 0; }
  // Open, and used a short time ago: what lies between may forget one that is idle, and tell nobody.
  bool is_fresh(std::int64_t max_idle_ns) const;
  // Connects, TLS, AUTH, SELECT, PING.
  RemoteOutcome open(std::int64_t deadline_ns);
  RemoteOutcome exchange(const RemoteExchange& exchange, std::int64_t deadline_ns);
  void close();

  // Why the last call did not end well.
  const std::string& error() const { return error_; }
  // How long the last PING took.
  std::int64_t round_trip_ns() const { return round_trip_ns_; }

 private:
  struct Progress;

  RemoteOutcome connect(std::int64_t deadline_ns);
  RemoteOutcome connect_to_any(std::span<const RemoteHost::Address> addresses,
                               std::int64_t deadline_ns);
  RemoteOutcome begin_tls(std::int64_t deadline_ns);
  RemoteOutcome run(const RemoteExchange& exchange, Progress& progress, std::int64_t deadline_ns);
  RemoteOutcome wait(short events, std::int64_t deadline_ns);
  ssize_t send_pieces(std::span<const std::span<const std::byte>> pieces, std::size_t first_offset);
  ssize_t receive_bytes(std::span<char> bytes);
  RemoteOutcome send_some(const RemoteExchange& exchange, Progress& progress);
  RemoteOutcome receive_some(const RemoteExchange& exchange, Progress& progress);
  RemoteOutcome fail(RemoteOutcome outcome, std::string error);
  // What send_pieces() or receive_bytes() has met.
  std::string io_error() const;

  const RemoteUrl url_;
  RemoteHost& host_;
  const std::atomic<bool>& stop_;
  const RemoteTls* const tls_;
  int fd_ = -1;
  std::unique_ptr<TlsStream> tls_stream_;  // null: in the clear, or none yet
  std::string error_;
  std::int64_t round_trip_ns_ = 0;
  std::int64_t used_ns_ = 0;
};

}  // namespace larder
