// How a connection has the upstream answer, and passes the reply on.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/http_connection_incoming.h"
#include "server/upstream/upstream.h"
#include "server/upstream/upstream_exchange.h"

namespace larder {
namespace {

constexpr const char* kReplyMemory = "reply_memory";
constexpr const char* kServerEnds = "the server ends, and the answer is not complete; try again";

// An error that breaks into a stream has to stand between two events.
class EventEnds {
 public:
  // The next bytes, of which the two line ends may come one by one.
  void add(std::string_view bytes) {
    last_ += bytes.substr(bytes.size() - std::min(bytes.size(), kMost));
    last_.erase(0, last_.size() - std::min(last_.size(), kMost));
  }
  bool is_between() const {
    return last_.empty() || last_.ends_with("\n\n") || last_.ends_with("\n\r\n") || last_.ends_with("\r\r");
  }

 private:
  static constexpr std::size_t kMost = 3;
  std::string last_;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

HttpResponse head_of(const UpstreamHead& head) {
  return {.status = head.status, .content_type = head.content_type, .headers = head.headers};
}

// What a careless upstream says of our key stays here.
void hide_key(const std::string& key, std::string& body) {
  constexpr std::string_view kShown = "***";
  if (key.empty()) return;
  std::string shown;
  std::size_t begin = 0;
  for (auto at = body.find(key); at != body.npos; at = body.find(key, begin)) {
    shown.append(body, begin, at - begin).append(kShown);
    begin = at + key.size();
  }
  if (begin > 0) body = shown.append(body, begin);
}

}  // namespace

// While it is there the connection's end ends the exchange, too.
struct HttpConnection::OpenExchange {
  OpenExchange(HttpConnection& of, Incoming& incoming, std::shared_ptr<UpstreamExchange> with)
      : connection(of), exchange(std::move(with)) {
    // The upstream may think for minutes, and others' requests want the room.
    exchange->set_on_body_sent([&incoming] { incoming.drop_body(); });
    connection.upstream_ = exchange.get();
    connection.notify();
  }
  ~OpenExchange() {
    connection.upstream_ = nullptr;
    exchange->close();
  }
  OpenExchange(const OpenExchange&) = delete;
  OpenExchange& operator=(const OpenExchange&) = delete;

  HttpConnection& connection;
  const std::shared_ptr<UpstreamExchange> exchange;
};

void HttpConnection::notify() {
  event_.cancel();
  if (upstream_ != nullptr && (disconnected_ || interrupted_)) upstream_->close();
}

Task<bool> HttpConnection::answer_from_upstream(Incoming& incoming, const UpstreamCall& call) {
  Upstream& upstream = *context_.router.upstream();
  auto place = upstream.slots().enter([weak = weak_from_this()] {
    try {
      if (const auto self = weak.lock()) self->poke();
    } catch (const std::exception&) {
      // Without memory: it looks again at the end of its wait.
    }
  });
  const auto end = std::chrono::steady_clock::now() + upstream.config().slot_timeout;
  while (place && !place->has_slot() && !disconnected_ && !interrupted_ && std::chrono::steady_clock::now() < end) {
    co_await wait_for_event(std::min(end, std::chrono::steady_clock::now() + kLookAgain));
  }
  if (disconnected_) co_return false;
  if (!place || !place->has_slot()) co_return co_await refuse_for_upstream(incoming);
  const std::string& body = incoming.request.body;
  upstream.metrics().count_request(call.reason, call.edit.new_size(body.size()));
  const auto begin = std::chrono::steady_clock::now();
  const OpenExchange open(*this, incoming, std::make_shared<UpstreamExchange>(socket_.get_executor(), upstream));
  UpstreamExchange& exchange = *open.exchange;
  std::optional<ApiError> failure = co_await exchange.send(call, body);
  incoming.drop_body();
  if (!failure) upstream.metrics().observe_first_byte(seconds_since(begin));
  if (!failure && exchange.head().is_stream) co_return co_await stream_from_upstream(incoming, exchange);
  HttpResponse response;
  if (!failure) failure = co_await read_from_upstream(exchange, response);
  // However long the client takes to read it.
  exchange.release();
  place.reset();
  if (disconnected_) co_return false;
  if (failure) response = error_response(describe_upstream(std::move(*failure)), incoming.request);
  co_return co_await write_from_upstream(incoming, std::move(response));
}

// All of its connections are taken.
Task<bool> HttpConnection::refuse_for_upstream(Incoming& incoming) {
  incoming.drop_body();
  context_.metrics.count_rejection("upstream_busy");
  ApiError busy{.status = 503, .code = "upstream_busy"};
  busy.message = fmt::format("all {} connections to the upstream are taken; try again, or raise --upstream-connections",
                             context_.router.upstream()->config().max_connections);
  co_return co_await write_from_upstream(incoming, error_response(busy, incoming.request));
}

// What the client is told, and the log.
ApiError HttpConnection::describe_upstream(ApiError failure) const {
  if (interrupted_) return {.status = 503, .code = "server_stopped", .message = kServerEnds};
  const bool is_theirs = failure.code != kReplyMemory;
  if (!disconnected_ && is_theirs) {
    context_.router.upstream()->metrics().count_failure();
    context_.router.upstream()->warn(failure.message);
  }
  return failure;
}

Task<std::optional<ApiError>> HttpConnection::read_from_upstream(UpstreamExchange& exchange, HttpResponse& response) {
  Upstream& upstream = *context_.router.upstream();
  const std::size_t most = upstream.config().max_reply_bytes;
  response = head_of(exchange.head());
  std::string& body = response.body;
  bool is_too_large = exchange.head().num_bytes.value_or(0) > most;
  while (!is_too_large && !exchange.done()) {
    const std::size_t size_before = body.size();
    auto failure = co_await exchange.read(body);
    upstream.metrics().count_received(body.size() - size_before);
    if (failure) co_return failure;
    is_too_large = body.size() > most;
    if (reply_share_.may_hold(body.size())) continue;
    context_.metrics.count_rejection(kReplyMemory);
    co_return ApiError{
        .status = 503,
        .code = kReplyMemory,
        .message = "replies that their clients have not read yet leave no room for the upstream's; try again"};
  }
  if (is_too_large) {
    co_return ApiError{.status = 502,
                       .code = "upstream_failed",
                       .message = fmt::format("the upstream {} failed: its reply is over {} bytes; stream it",
                                              upstream.config().url.authority, most)};
  }
  if (response.status >= 400) hide_key(upstream.config().key, body);
  // The client will think that its own is meant.
  if (response.status == 401)
    upstream.warn(fmt::format("the upstream {} refuses its key", upstream.config().url.authority));
  co_return std::nullopt;
}

Task<bool> HttpConnection::write_from_upstream(Incoming& incoming, HttpResponse response) {
  if (incoming.has_begun_stream) co_return co_await end_stream(incoming, response);
  response.headers.emplace_back("x-larder-route", "upstream");
  context_.router.add_cors(incoming.request, response);
  co_return co_await write_response(std::move(response), decide_keep_alive(incoming), true);
}

// As it comes: no more is read than the client takes.
Task<bool> HttpConnection::stream_from_upstream(Incoming& incoming, UpstreamExchange& exchange) {
  HttpResponse head = head_of(exchange.head());
  head.headers.emplace_back("x-larder-route", "upstream");
  bool written = co_await begin_stream(incoming, std::move(head));
  EventEnds ends;
  std::optional<ApiError> failure;
  while (written && !failure && !exchange.done()) {
    std::string bytes;
    failure = co_await exchange.read(bytes);
    if (disconnected_) co_return false;
    context_.router.upstream()->metrics().count_received(bytes.size());
    ends.add(bytes);
    if (failure) {
      const HttpResponse told = error_response(describe_upstream(std::move(*failure)), incoming.request);
      const std::string error = error_event(told, incoming.request);
      if (!ends.is_between()) co_return false;  // half an event: an end without an end says that it broke off
      bytes += error;
    }
    if (bytes.empty()) continue;
    written = co_await write_events(incoming, std::move(bytes));
  }
  if (!failure && exchange.done()) exchange.release();
  if (!written && timed_out_) context_.metrics.count_dropped_stream();
  if (!written || disconnected_) co_return false;
  if (!incoming.is_http_1_0) written = co_await write(kLastChunk);
  co_return written&& incoming.keep_alive && !failure;
}

}  // namespace larder
