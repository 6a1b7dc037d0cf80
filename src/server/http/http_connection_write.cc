// How a connection writes, and what becomes of a client that does not read.
#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/completion_condition.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "server/api/generation.h"
#include "server/http/http_connection_incoming.h"
#include "server/sse.h"

namespace larder {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

constexpr std::size_t kWasteBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxLingerBytes = std::size_t{32} << 20;
constexpr milliseconds kLingerTimeout{2000};
constexpr milliseconds kBehindTimeout{1000};

// Of a reader that others' events have overtaken.
ApiError behind() {
  return {.status = 503,
          .code = "reply_memory",
          .message = "there was no room for the events that come next, until they would have been read; the response goes "
                     "on, and can be retrieved without a stream"};
}

}  // namespace

// Runs on the strand whenever the engine has left something.
void HttpConnection::on_wake() {
  if (is_writing_ && streaming_ != nullptr) {
    streaming_->keep_pace();
    if (streaming_->is_behind()) set_deadline(write_timeout());
  }
  notify();
}

// Behind is this thread, too, where it was elsewhere for long: it is the write under way that has to end soon then.
milliseconds HttpConnection::write_timeout() const {
  const bool is_behind = streaming_ != nullptr && streaming_->is_behind();
  return is_behind ? std::min(limits_.stall_timeout, kBehindTimeout) : limits_.stall_timeout;
}

Task<bool> HttpConnection::begin_stream(Incoming& incoming, HttpResponse head) {
  if (std::exchange(incoming.has_begun_stream, true)) co_return true;
  const bool chunked = !incoming.is_http_1_0;
  incoming.keep_alive = chunked && decide_keep_alive(incoming);
  head.headers.emplace_back("Cache-Control", "no-cache");
  head.headers.emplace_back("X-Accel-Buffering", "no");
  context_.router.add_cors(incoming.request, head);
  const std::string bytes = format_head(head, incoming.keep_alive, chunked ? Framing::kChunked : Framing::kUntilClose);
  co_return co_await write(bytes);
}

Task<bool> HttpConnection::stream_events(Incoming& incoming, Reply& reply) {
  EventReader& events = *reply.events;
  reply.response.content_type = kStreamType;
  bool written = !disconnected_ && co_await begin_stream(incoming, std::move(reply.response));
  auto ping_at = std::chrono::steady_clock::now() + limits_.ping_interval;
  while (written && !disconnected_ && !events.done()) {
    if (events.has_lost()) {
      reply.events.reset();
      co_return co_await end_stream(incoming, error_response(behind()));
    }
    std::string text = events.read(kWriteBytes);
    const auto now = std::chrono::steady_clock::now();
    if (text.empty() && now >= ping_at) text = kSseComment;
    if (!text.empty()) ping_at = now + limits_.ping_interval;
    if (text.empty()) {
      co_await wait_for_event(ping_at);
    } else {
      written = co_await write_events(incoming, std::move(text));
    }
  }
  if (!written || disconnected_) {
    if (timed_out_) context_.metrics.count_dropped_stream();
    co_return false;
  }
  reply.events.reset();  // before its client goes on: what is not read counts
  if (!incoming.is_http_1_0) written = co_await write(kLastChunk);
  co_return written&& incoming.keep_alive;
}

Task<bool> HttpConnection::write_events(const Incoming& incoming, std::string events) {
  if (!incoming.is_http_1_0) events = frame_chunk(events);
  co_return co_await write(events);
}

Task<bool> HttpConnection::end_stream(const Incoming& incoming, const HttpResponse& failure) {
  bool written = co_await write_events(incoming, error_event(failure, incoming.request));
  if (written && !incoming.is_http_1_0) written = co_await write(kLastChunk);
  co_return written&& incoming.keep_alive;
}

// For what an errand leaves. A stream that has waited for long begins before there is anything to tell, lest somebody
// between takes it for dead.
Task<void> HttpConnection::wait_for_errand(Incoming& incoming) {
  if (!incoming.awaits_stream || disconnected_) co_return co_await wait_for_event();
  co_await wait_for_event(std::min(incoming.ping_at, std::chrono::steady_clock::now() + kLookAgain));
  if (disconnected_ || std::chrono::steady_clock::now() < incoming.ping_at) co_return;
  const bool is_anthropic = style_of(incoming.request.path) == ApiStyle::kAnthropic;
  HttpResponse head{.content_type = kStreamType};
  bool written = co_await begin_stream(incoming, std::move(head));
  std::string ping;
  if (is_anthropic)
    append_ping_event(ping);
  else
    ping = kSseComment;
  if (written) written = co_await write_events(incoming, std::move(ping));
  if (!written) disconnected_ = true;
  incoming.ping_at = std::chrono::steady_clock::now() + limits_.ping_interval;
}

bool HttpConnection::decide_keep_alive(Incoming& incoming) const {
  return incoming.keep_alive = incoming.keep_alive && !draining_ && !context_.gauges.is_leaving;
}

Task<bool> HttpConnection::write_response(HttpResponse response, bool keep_alive, bool with_body) {
  const std::string head = format_head(response, keep_alive, Framing::kLength);
  const std::string_view body = with_body ? std::string_view(response.body) : "";
  // A large one has its room already.
  if (body.size() <= kFreeReplyBytes || body.size() > kSmallReplyBytes) co_return co_await write(body, head);
  const std::optional<std::size_t> num_written = write_at_once(body, head);
  if (!num_written) co_return false;
  const std::size_t num_of_head = std::min(*num_written, head.size());
  const std::string_view rest = body.substr(*num_written - num_of_head);
  if (rest.empty()) co_return true;
  // Its reader is behind. With the head on its way there is no other reply any more.
  if (!reply_share_.grow_to(body.size())) {
    context_.metrics.count_rejection("reply_memory");
    co_return false;
  }
  co_return co_await write(rest, std::string_view(head).substr(num_of_head));
}

std::optional<std::size_t> HttpConnection::write_at_once(std::string_view bytes, std::string_view head) {
  const std::array<asio::const_buffer, 2> buffers = {asio::const_buffer(head.data(), head.size()),
                                                     asio::const_buffer(bytes.data(), bytes.size())};
  error_code error;
  const std::size_t num_written = asio::write(socket_, buffers, asio::transfer_all(), error);
  if (error && error != asio::error::would_block) return std::nullopt;
  return num_written;
}

Task<bool> HttpConnection::write(std::string_view bytes, std::string_view head) {
  while (!head.empty() || !bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kWriteBytes);
    const std::array<asio::const_buffer, 2> buffers = {
        asio::const_buffer(head.data(), head.size()),
        asio::const_buffer(piece.data(), piece.size())};
    set_deadline(write_timeout());
    is_writing_ = true;
    error_code error;
    co_await asio::async_write(socket_, buffers, asio::redirect_error(kUseTask, error));
    is_writing_ = false;
    clear_deadline();
    if (error) co_return false;
    head = {};
    bytes.remove_prefix(piece.size());
  }
  co_return true;
}

// Closing with unread bytes would reset the connection, and the client would never see the reply:
// reads them away for a while.
Task<void> HttpConnection::linger() {
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  set_deadline(kLingerTimeout);
  const auto waste = std::make_unique_for_overwrite<std::array<char, kWasteBytes>>();
  std::size_t num_read = 0;
  while (!error && num_read < kMaxLingerBytes) {
    num_read += co_await socket_.async_read_some(asio::buffer(*waste),
                                                 asio::redirect_error(kUseTask, error));
  }
  clear_deadline();
}

std::string error_event(const HttpResponse& error, const HttpRequest& request) {
  std::string event = error_style_of(request) == ApiStyle::kAnthropic ? "event: error\ndata: " : "data: ";
  for (const char c : error.body) {
    event += c;
    if (c == '\n') event += "data: ";  // an upstream's
  }
  event += "\n\n";
  return event;
}

}  // namespace larder
