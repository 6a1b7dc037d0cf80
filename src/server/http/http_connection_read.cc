// How a connection reads requests, and what it says of those that it cannot read.
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "server/http/http_connection_incoming.h"
#include "server/url.h"

namespace larder {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

constexpr int kMaxSkippedBytes = 8;
constexpr std::size_t kBodyReadBytes = std::size_t{64} << 10;
constexpr std::size_t kSmallBodyBytes = std::size_t{64} << 10;
constexpr std::size_t kLeastPaceBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxChunkHead = std::size_t{16} << 10;  // with its extensions; all of a body's trailer
constexpr std::size_t kFreeBytes = std::size_t{4} << 10;      // that count nowhere

std::string to_string(boost::beast::string_view text) { return {text.data(), text.size()}; }

// Of a header that may be there several times, with commas between.
std::string join_values(const http::fields& fields, boost::beast::string_view name) {
  std::string joined;
  const auto [begin, end] = fields.equal_range(name);
  for (auto field = begin; field != end; ++field) joined += (joined.empty() ? "" : ",") + to_string(field->value());
  return joined;
}

// Beast's keep_alive() reads the first of several Connection headers.
bool says_close(const http::fields& head) {
  const auto [begin, end] = head.equal_range(http::field::connection);
  return std::any_of(begin, end, [](const auto& field) {
    return http::token_list(field.value()).exists("close");
  });
}

}  // namespace

Task<bool> HttpConnection::wait_for_request() {
  if (draining_ || disconnected_) co_return false;
  num_skipped_bytes_ = 0;
  while (!has_begun_request()) {
    if (draining_) co_return false;
    shrink_buffer();
    idle_ = true;
    set_deadline(limits_.idle_timeout);
    error_code error;
    // Waits without a buffer: most connections are idle most of the time.
    co_await socket_.async_wait(Socket::wait_read, asio::redirect_error(kUseTask, error));
    idle_ = false;
    if (!error) error = read_ready(kReadBytes);
    clear_deadline();
    if (error) co_return false;
  }
  co_return true;
}

// Some clients end a body with an empty line that they do not count, and RFC 9112 has it passed over.
bool HttpConnection::has_begun_request() {
  while (buffer_.size() > 0) {
    const char next = *static_cast<const char*>(buffer_.data().data());
    const bool is_skipped = (next == '\r' || next == '\n') && num_skipped_bytes_ < kMaxSkippedBytes;
    if (!is_skipped) return true;
    buffer_.consume(1);
    ++num_skipped_bytes_;
  }
  return false;
}

// As Beast's own, but what the parser throws comes to the caller: of Beast 1.74 it would end in a handler
// between, and the coroutine never go on. A slow client's connection waits with what is not understood yet, and no more.
Task<boost::system::error_code> HttpConnection::read_some(Incoming& incoming) {
  auto& parser = incoming.parser;
  const std::string& body = incoming.request.body;
  const std::size_t size_before = body.size();
  error_code error;
  while (true) {
    if (buffer_.size() > 0) {
      error = parse_some(incoming, buffer_);
      if (error != http::error::need_more) co_return error;
      error = {};
      if (body.size() > size_before) co_return error;
    }
    if (parser.is_header_done() && buffer_.size() > kMaxChunkHead) co_return http::error::bad_chunk;
    if (buffer_.size() == buffer_.max_size()) co_return http::error::buffer_overflow;
    if (buffer_.size() == 0) shrink_buffer();
    co_await socket_.async_wait(Socket::wait_read, asio::redirect_error(kUseTask, error));
    if (!error) {
      const std::size_t size = room_to_read(body.size() > kSmallBodyBytes ? kBodyReadBytes : kReadBytes);
      const bool is_head = !parser.is_header_done() || buffer_.size() > 0;  // a chunk's, too
      if (is_head && !may_hold(size)) co_return asio::error::no_memory;
      error = read_ready(size);
    }
    if (error == asio::error::eof) {
      if (!parser.got_some()) co_return http::error::end_of_stream;
      error = {};
      parser.put_eof(error);
    }
    if (error || parser.is_done()) co_return error;
  }
}

// What is of the body goes where it stays.
error_code HttpConnection::parse_some(Incoming& incoming, boost::beast::flat_buffer& buffer) {
  auto& parser = incoming.parser;
  std::string& body = incoming.request.body;
  auto& target = parser.get().body();
  const std::size_t size_before = body.size();
  if (parser.is_header_done()) {
    body.resize(size_before + buffer.size());
    target.data = body.data() + size_before;
    target.size = buffer.size();
  }
  error_code error;
  try {
    buffer.consume(parser.put(buffer.data(), error));
  } catch (const std::length_error&) {  // a field of 64 KiB
    error = http::error::header_limit;
  }
  body.resize(body.size() - std::exchange(target.size, 0));
  target.data = nullptr;
  return error;
}

// Before it would have to grow.
std::size_t HttpConnection::room_to_read(std::size_t most) const {
  const std::size_t spare = buffer_.capacity() - buffer_.size();
  return std::min({most, spare > 0 ? spare : most, buffer_.max_size() - buffer_.size()});
}

error_code HttpConnection::read_ready(std::size_t size) {
  error_code error;
  buffer_.commit(socket_.read_some(buffer_.prepare(size), error));
  return error == asio::error::would_block ? error_code() : error;
}

Task<bool> HttpConnection::read_head(Incoming& incoming) {
  auto& parser = incoming.parser;
  parser.header_limit(static_cast<std::uint32_t>(limits_.max_header_bytes));
  parser.body_limit(limits_.max_body_bytes);
  set_deadline(limits_.header_timeout);
  error_code error;
  while (!error && !parser.is_header_done()) error = co_await read_some(incoming);
  clear_deadline();
  const auto& message = parser.get();
  HttpRequest& request = incoming.request;
  // Known also where the body is refused by its length.
  const RequestTarget target = split_target({message.target().data(), message.target().size()});
  request.path = target.path;
  request.origin = to_string(message[http::field::origin]);
  request.method = to_string(message.method_string());
  if (error == asio::error::no_memory) context_.metrics.count_rejection("header_memory");
  if (error) co_return co_await refuse(describe_unreadable(error), request);

  request.query = target.query;
  request.authorization = to_string(message[http::field::authorization]);
  request.api_key = to_string(message["x-api-key"]);
  request.content_type = to_string(message[http::field::content_type]);
  request.content_encoding = to_string(message[http::field::content_encoding]);
  request.host = target.authority.empty() ? to_string(message[http::field::host])
                                          : std::string(target.authority);
  request.asked_route = to_string(message["x-larder-route"]);
  request.passed = to_string(message["x-larder-via"]);
  request.anthropic_version = to_string(message["anthropic-version"]);
  request.anthropic_beta = join_values(message, "anthropic-beta");
  request.asked_headers = to_string(message[http::field::access_control_request_headers]);
  incoming.is_http_1_0 = message.version() < 11;
  incoming.is_head = message.method() == http::verb::head;
  incoming.keep_alive = message.keep_alive() && !says_close(message) && !draining_;
  // A coding that we do not undo, or one that a proxy in front may read otherwise.
  const bool bad_coding =
      message.count(http::field::transfer_encoding) > 0 &&
      (message.count(http::field::transfer_encoding) > 1 || incoming.is_http_1_0 ||
       message.count(http::field::content_length) > 0 ||
       !boost::beast::iequals(message[http::field::transfer_encoding], "chunked"));
  const std::size_t num_hosts = message.count(http::field::host);
  incoming.awaits_continue = !incoming.is_http_1_0 &&  // which knows of no such reply
                             boost::beast::iequals(message[http::field::expect], "100-continue");
  incoming.drop_headers();
  shrink_buffer();
  if (bad_coding) {
    co_return co_await refuse(describe_unreadable(http::error::bad_transfer_encoding), request);
  }
  if (num_hosts > 1 || (num_hosts == 0 && !incoming.is_http_1_0)) {  // RFC 9112, 3.2
    ApiError wrong{.status = 400, .code = "bad_request", .param = "Host"};
    wrong.message = fmt::format("Host: the request has {} headers of this name; send one", num_hosts);
    co_return co_await refuse(std::move(wrong), request);
  }
  co_return true;
}

// A large body that has come on by less than that since it was looked at, where others have little room.
bool HttpConnection::holds_others_up(std::size_t size, std::size_t size_before) const {
  return size > kSmallBodyBytes && size - size_before < kLeastPaceBytes &&
         context_.body_budget.used() > limits_.max_total_body_bytes / 2;
}

Task<bool> HttpConnection::read_body(Incoming& incoming) {
  auto& parser = incoming.parser;
  auto& body = incoming.request.body;
  if (parser.is_done()) co_return true;
  parser.eager(true);  // many chunks at once, or those of a byte would keep others waiting
  using SteadyTime = std::chrono::steady_clock;
  set_deadline(limits_.body_timeout);
  if (incoming.awaits_continue && !co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
  const auto end = SteadyTime::now() + limits_.body_timeout;
  auto next_look = SteadyTime::now() + limits_.body_pace_interval;
  std::size_t size_at_look = 0;
  while (!parser.is_done()) {
    const auto now = SteadyTime::now();
    if (now >= next_look) {
      if (holds_others_up(body.size(), size_at_look)) {
        incoming.drop_body();
        ApiError slow{.status = 408, .code = "request_timeout"};
        slow.message = "the body came slowly while others waited for its room; try again";
        co_return co_await refuse(std::move(slow), incoming.request);
      }
      size_at_look = body.size();
      next_look = now + limits_.body_pace_interval;
    }
    set_deadline(std::chrono::ceil<std::chrono::milliseconds>(std::min(next_look, end) - now));
    const std::size_t size_before = body.size();
    error_code error = co_await read_some(incoming);
    if (timed_out_ && SteadyTime::now() < end) {  // time to look
      timed_out_ = false;
      if (error == asio::error::operation_aborted) error = {};
    }
    if (error || timed_out_) {
      co_return co_await refuse(describe_unreadable(error), incoming.request);
    }
    // Large ones, which one client may send slowly, leave room for all that are small.
    const bool is_small = body.size() <= kSmallBodyBytes;
    const std::size_t reserved = is_small ? 0
                                          : std::min(limits_.max_total_body_bytes / 8,
                                                     limits_.max_total_body_bytes - limits_.max_body_bytes);
    if (!incoming.share.grow(body.size() - size_before, reserved)) {
      incoming.drop_body();
      context_.metrics.count_rejection("body_memory");
      ApiError busy{.status = 503, .code = "body_memory"};
      busy.message = fmt::format("the requests being read have {} bytes, {} at most; try again",
                                 context_.body_budget.used(), limits_.max_total_body_bytes);
      co_return co_await refuse(std::move(busy), incoming.request);
    }
  }
  clear_deadline();
  incoming.drop_headers();  // the trailer's
  shrink_buffer();          // it has grown, and is not needed while the request is worked on
  co_return true;
}

// Of what is read ahead of being understood: a head that is not whole, and requests behind the one that is worked on.
bool HttpConnection::may_hold(std::size_t more) {
  const std::size_t size = buffer_.size();
  std::size_t capacity = buffer_.capacity();
  if (size + more > capacity) capacity = std::max(2 * size, size + more);  // as it grows
  return capacity <= kFreeBytes || held_.grow_to(capacity - kFreeBytes);
}

// To what is still to be read of it.
void HttpConnection::shrink_buffer() {
  buffer_.shrink_to_fit();
  held_.shrink_to(buffer_.capacity() - std::min(buffer_.capacity(), kFreeBytes));
}

// Sends an error and ends the connection in a way that lets the client read it. Always returns
// false.
Task<bool> HttpConnection::refuse(ApiError error, const HttpRequest& request) {
  if (error.status == 0) co_return false;
  HttpResponse response = error_response(error, request);
  context_.router.add_cors(request, response);
  if (co_await write_response(std::move(response), false, request.method != "HEAD")) co_await linger();
  co_return false;
}

// status 0: the client went, there is nobody to answer.
ApiError HttpConnection::describe_unreadable(error_code error) const {
  const auto reply = [](int status, const char* code, std::string message) {
    return ApiError{.status = status, .code = code, .message = std::move(message)};
  };
  if (timed_out_) {
    return reply(
        408, "request_timeout",
        fmt::format("the request did not arrive in time: {} ms for headers, {} ms for the body",
                    limits_.header_timeout.count(), limits_.body_timeout.count()));
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return reply(431, "headers_too_large",
                 fmt::format("the headers are over {} bytes; send fewer or shorter ones", limits_.max_header_bytes));
  }
  if (error == http::error::body_limit) {
    return reply(413, "body_too_large",
                 fmt::format("the body is over {} bytes; send less or raise --max-body-bytes",
                             limits_.max_body_bytes));
  }
  if (error == asio::error::no_memory) {
    return reply(503, "header_memory",
                 fmt::format("large headers being read have {} bytes, {} at most; try again, or send less than {}",
                             context_.header_budget.used(), limits_.max_total_header_bytes, kFreeBytes));
  }
  const bool malformed = error.category() == make_error_code(http::error::bad_method).category() &&
                         error != http::error::end_of_stream &&
                         error != http::error::partial_message;
  if (!malformed) return reply(0, "", {});
  return reply(400, "bad_request", "this is not HTTP/1.1 as it should be: " + error.message());
}

}  // namespace larder
