#include "kv/tiers/remote_connection.h"

#include <fmt/format.h>
#include <hiredis/read.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/printable.h"
#include "base/tcp_options.h"
#include "kv/tiers/remote_request.h"

namespace larder {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{256} << 10;
constexpr std::size_t kMaxPiecesAtOnce = 64;
constexpr std::int64_t kStopPollMs = 50;
constexpr std::int64_t kMaxHandshakeBytes = 4096;

constexpr KeepAlive kKeepAlive{.idle_s = 30, .interval_s = 10, .num_probes = 3};

// What hiredis parses goes straight to the exchange's callback, so nothing is allocated for it.
struct ReplySink {
  const RemoteExchange* exchange;
  int index = 0;
};

// Any pointer but null means success.
char parsed_object;

RemoteReply::Kind kind_of(int type) {
  if (type == REDIS_REPLY_STATUS) return RemoteReply::Kind::kStatus;
  return type == REDIS_REPLY_ERROR ? RemoteReply::Kind::kError : RemoteReply::Kind::kString;
}

void* deliver(const redisReadTask* task, const RemoteReply& reply) {
  auto* sink = static_cast<ReplySink*>(task->privdata);
  sink->exchange->on_reply(sink->index, reply);
  return &parsed_object;
}

void* on_string(const redisReadTask* task, char* text, std::size_t size) {
  return deliver(task,
                 {.kind = kind_of(task->type), .bytes = std::as_bytes(std::span(text, size))});
}

// No command that is sent has an array for an answer.
void* on_array(const redisReadTask*, int) { return nullptr; }

void* on_integer(const redisReadTask* task, long long value) {
  return deliver(task, {.kind = RemoteReply::Kind::kInteger, .bytes = {}, .integer = value});
}

void* on_nil(const redisReadTask* task) { return deliver(task, {}); }

void on_free(void*) {}

redisReplyObjectFunctions reply_functions = {on_string, on_array, on_integer, on_nil, on_free};

}  // namespace

// READONLY: it was demoted; MASTERDOWN: it follows one that is gone.
bool RemoteReply::is_of_another() const {
  return kind == Kind::kError && (text().starts_with("READONLY") || text().starts_with("MASTERDOWN"));
}

struct RemoteConnection::Progress {
  explicit Progress(const RemoteExchange& exchange)
      : sink{.exchange = &exchange},
        buffer(new char[kBufferBytes]),
        reader(redisReaderCreateWithFunctions(&reply_functions), redisReaderFree) {
    if (!reader) throw std::bad_alloc();
    reader->maxbuf = 0;  // keep what has grown to a batch's size
    reader->privdata = &sink;
  }

  std::size_t piece = 0;         // the first that is not sent
  std::size_t piece_offset = 0;  // and how much of it is
  std::int64_t received_bytes = 0;
  ReplySink sink;
  const std::unique_ptr<char[]> buffer;  // between the socket and the parser
  const std::unique_ptr<redisReader, void (*)(redisReader*)> reader;
};

RemoteConnection::RemoteConnection(RemoteUrl url, RemoteHost& host, const std::atomic<bool>& stop, const RemoteTls* tls)
    : url_(std::move(url)), host_(host), stop_(stop), tls_(tls) {}

RemoteConnection::~RemoteConnection() { close(); }

bool RemoteConnection::is_fresh(std::int64_t max_idle_ns) const {
  return is_open() && steady_now_ns() - used_ns_ < max_idle_ns;
}

void RemoteConnection::close() {
  tls_stream_ = nullptr;
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

RemoteOutcome RemoteConnection::fail(RemoteOutcome outcome, std::string error) {
  error_ = std::move(error);
  close();
  return outcome;
}

RemoteOutcome RemoteConnection::open(std::int64_t deadline_ns) {
  close();
  if (const RemoteOutcome outcome = connect(deadline_ns); outcome != RemoteOutcome::kOk)
    return outcome;
  if (const RemoteOutcome outcome = begin_tls(deadline_ns); outcome != RemoteOutcome::kOk) return outcome;
  std::string request;
  RemoteExchange handshake;
  if (!url_.password.empty()) {
    if (url_.user.empty()) append_command(request, {"AUTH", url_.password});
    else append_command(request, {"AUTH", url_.user, url_.password});
    ++handshake.num_replies;
  }
  if (url_.db != 0) {
    append_command(request, {"SELECT", std::to_string(url_.db)});
    ++handshake.num_replies;
  }
  append_command(request, {"PING"});
  ++handshake.num_replies;
  handshake.pieces = {std::as_bytes(std::span(request))};
  handshake.max_reply_bytes = kMaxHandshakeBytes;
  std::string refusal;
  handshake.on_reply = [&](int, const RemoteReply& reply) {
    if (reply.kind == RemoteReply::Kind::kStatus || !refusal.empty()) return;
    if (reply.is_of_another()) host_.forget();
    // It cannot save its data and takes no writes, and says so to PING, too; it reads all the same.
    if (reply.kind == RemoteReply::Kind::kError && reply.text().starts_with("MISCONF")) return;
    refusal = reply.kind == RemoteReply::Kind::kError ? printable(reply.text())
                                                      : "not an answer to AUTH, SELECT or PING";
  };
  const std::int64_t start_ns = steady_now_ns();
  const RemoteOutcome outcome = exchange(handshake, deadline_ns);
  if (outcome != RemoteOutcome::kOk) return outcome;
  round_trip_ns_ = steady_now_ns() - start_ns;
  return refusal.empty() ? RemoteOutcome::kOk : fail(RemoteOutcome::kFailed, refusal);
}

RemoteOutcome RemoteConnection::connect(std::int64_t deadline_ns) {
  const RemoteHost::Found found = host_.find(deadline_ns, stop_);
  if (found.addresses.empty())
    return fail(found.is_late ? RemoteOutcome::kTimeout : RemoteOutcome::kFailed, found.error);
  const RemoteOutcome outcome = connect_to_any(found.addresses, deadline_ns);
  // A lookup may have left it little time: what it brought is tried once more.
  if (outcome != RemoteOutcome::kOk && found.was_known) host_.forget();
  return outcome;
}

RemoteOutcome RemoteConnection::connect_to_any(std::span<const RemoteHost::Address> addresses,
                                               std::int64_t deadline_ns) {
  auto num_left = static_cast<std::int64_t>(addresses.size());
  RemoteOutcome outcome = RemoteOutcome::kFailed;
  for (const RemoteHost::Address& address : addresses) {
    const std::int64_t num_to_try = num_left--;
    fd_ = ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) {
      error_ = std::strerror(errno);
      continue;
    }
    set_tcp_options(fd_, kKeepAlive);
    int error = 0;
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0)
      error = errno;
    if (error == EINPROGRESS) {
      // One that does not answer leaves the others their time.
      const std::int64_t start_ns = steady_now_ns();
      outcome = wait(POLLOUT, start_ns + (deadline_ns - start_ns) / num_to_try);
      if (outcome != RemoteOutcome::kOk) continue;
      socklen_t size = sizeof error;
      if (::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    }
    if (error == 0) return RemoteOutcome::kOk;
    outcome = fail(RemoteOutcome::kFailed, std::strerror(error));
  }
  return outcome;
}

RemoteOutcome RemoteConnection::begin_tls(std::int64_t deadline_ns) {
  if (tls_ == nullptr) return RemoteOutcome::kOk;
  tls_stream_ = std::make_unique<TlsStream>(*tls_, fd_, url_.names);
  while (tls_stream_->shake_hands() != 1) {
    if (errno != EAGAIN) return fail(RemoteOutcome::kFailed, io_error());
    const RemoteOutcome outcome = wait(tls_stream_->wants_to_send() ? POLLOUT : POLLIN, deadline_ns);
    if (outcome != RemoteOutcome::kOk) return fail(outcome, error_ + " (TLS)");  // one without it waits, too
  }
  return RemoteOutcome::kOk;
}

RemoteOutcome RemoteConnection::exchange(const RemoteExchange& exchange, std::int64_t deadline_ns) {
  CHECK(is_open());
  // What nobody asked for would be taken for the answer; and a server that is gone shows here.
  char unasked;
  const ssize_t size = receive_bytes({&unasked, 1});
  if (size > 0) return fail(RemoteOutcome::kFailed, "an answer that nobody asked for");
  if (size == 0) return fail(RemoteOutcome::kFailed, "closed by the server");
  Progress progress(exchange);
  return run(exchange, progress, deadline_ns);
}

RemoteOutcome RemoteConnection::run(const RemoteExchange& exchange, Progress& progress,
                                    std::int64_t deadline_ns) {
  while (progress.piece < exchange.pieces.size() || progress.sink.index < exchange.num_replies) {
    const bool has_more = progress.piece < exchange.pieces.size();
    const bool sends = has_more || (tls_stream_ && tls_stream_->wants_to_send());
    RemoteOutcome outcome = wait(sends ? POLLIN | POLLOUT : POLLIN, deadline_ns);
    if (outcome == RemoteOutcome::kOk && has_more) outcome = send_some(exchange, progress);
    if (outcome == RemoteOutcome::kOk) outcome = receive_some(exchange, progress);
    if (outcome != RemoteOutcome::kOk) return outcome;
  }
  used_ns_ = steady_now_ns();
  return RemoteOutcome::kOk;
}

RemoteOutcome RemoteConnection::wait(short events, std::int64_t deadline_ns) {
  while (true) {
    const std::int64_t left_ms = (deadline_ns - steady_now_ns()) / kNsPerMs;
    if (left_ms <= 0) return fail(RemoteOutcome::kTimeout, "no answer in time");
    if (stop_.load(std::memory_order_relaxed)) return fail(RemoteOutcome::kTimeout, "stopped");
    if ((events & POLLIN) != 0 && tls_stream_ && tls_stream_->has_received()) return RemoteOutcome::kOk;
    pollfd entry{.fd = fd_, .events = events, .revents = 0};
    const int num = ::poll(&entry, 1, static_cast<int>(std::min(left_ms, kStopPollMs)));
    if (num > 0) return RemoteOutcome::kOk;  // errors show when it is used
    if (num < 0 && errno != EINTR) return fail(RemoteOutcome::kFailed, std::strerror(errno));
  }
}

std::string RemoteConnection::io_error() const {
  return errno == EPROTO && tls_stream_ ? tls_stream_->error() : std::strerror(errno);
}

ssize_t RemoteConnection::receive_bytes(std::span<char> bytes) {
  return tls_stream_ ? tls_stream_->receive(bytes) : ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
}

ssize_t RemoteConnection::send_pieces(std::span<const std::span<const std::byte>> pieces, std::size_t first_offset) {
  if (tls_stream_) return tls_stream_->send(pieces, first_offset);
  std::array<iovec, kMaxPiecesAtOnce> vectors;
  const std::size_t num_vectors = std::min(pieces.size(), vectors.size());
  for (std::size_t i = 0; i < num_vectors; ++i) {
    const std::span<const std::byte> piece = pieces[i].subspan(i == 0 ? first_offset : 0);
    vectors[i] = {.iov_base = const_cast<std::byte*>(piece.data()), .iov_len = piece.size()};
  }
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = num_vectors;
  return ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

RemoteOutcome RemoteConnection::send_some(const RemoteExchange& exchange, Progress& progress) {
  const ssize_t sent = send_pieces(std::span(exchange.pieces).subspan(progress.piece), progress.piece_offset);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return RemoteOutcome::kOk;
    return fail(RemoteOutcome::kFailed, io_error());
  }
  progress.piece_offset += static_cast<std::size_t>(sent);
  while (progress.piece < exchange.pieces.size() &&
         progress.piece_offset >= exchange.pieces[progress.piece].size()) {
    progress.piece_offset -= exchange.pieces[progress.piece].size();
    ++progress.piece;
  }
  return RemoteOutcome::kOk;
}

RemoteOutcome RemoteConnection::receive_some(const RemoteExchange& exchange, Progress& progress) {
  const ssize_t received = receive_bytes({progress.buffer.get(), kBufferBytes});
  if (received < 0) {
    if (errno == EAGAIN || errno == EINTR) return RemoteOutcome::kOk;
    return fail(RemoteOutcome::kFailed, io_error());
  }
  if (received == 0) return fail(RemoteOutcome::kFailed, "closed by the server");
  progress.received_bytes += received;
  if (progress.received_bytes > exchange.max_reply_bytes)
    return fail(RemoteOutcome::kFailed, "an answer longer than asked for");
  redisReader* const reader = progress.reader.get();
  redisReaderFeed(reader, progress.buffer.get(), static_cast<std::size_t>(received));
  while (true) {
    void* parsed = nullptr;
    // A reply too many would be taken for the next exchange's, so the parser sees it only there.
    if (progress.sink.index == exchange.num_replies) {
      if (reader->len > reader->pos) return fail(RemoteOutcome::kFailed, "an answer too many");
      return RemoteOutcome::kOk;
    }
    if (redisReaderGetReply(reader, &parsed) != REDIS_OK)
      return fail(RemoteOutcome::kFailed, fmt::format("not the protocol: {}", reader->errstr));
    if (!parsed) return RemoteOutcome::kOk;
    ++progress.sink.index;
  }
}

}  // namespace larder
