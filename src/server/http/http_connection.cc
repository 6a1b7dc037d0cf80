#include "server/http/http_connection.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/write.hpp>
#include <ctime>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "server/http/http_connection_incoming.h"
#include "server/request_id.h"
#include "server/unix_time.h"

namespace larder {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

// Bytes of requests to come that are kept while one is worked on.
constexpr std::size_t kMaxPipelinedBytes = std::size_t{64} << 10;
constexpr milliseconds kCancelAgain{20};
constexpr milliseconds kPostAgain{10};
constexpr std::size_t kTooFar = 16;  // times what may wait, of a stream that cannot pause, however it is read

// RFC 9110, 5.6.7; not by strftime, whose names are the locale's.
std::string format_date(std::int64_t unix_s) {
  const std::time_t now = unix_s;
  static constexpr std::array<const char*, 7> kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array<const char*, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                          "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays.at(utc.tm_wday), utc.tm_mday,
                     kMonths.at(utc.tm_mon), 1900 + utc.tm_year, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

// One more, as long as it lives.
struct Counted {
  explicit Counted(std::atomic<int>& of) : count(of) { ++count; }
  ~Counted() { --count; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  std::atomic<int>& count;
};

// From another thread to the coroutine that waits for it: without memory for it now, later.
template <class Handler>
void post_back(Socket& socket, const Handler& handler) {
  while (true) {
    try {
      asio::post(socket.get_executor(), handler);
      return;
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(kPostAgain);
    }
  }
}

}  // namespace

HttpConnection::HttpConnection(Socket socket, ConnectionContext& context)
    : socket_(std::move(socket)),
      context_(context),
      limits_(context.config.limits),
      deadline_(socket_.get_executor()),
      event_(socket_.get_executor()),
      buffer_(limits_.max_header_bytes + kMaxPipelinedBytes),
      held_(context_.header_budget),
      reply_share_(context_.reply_budget, limits_.max_total_reply_bytes) {
  ++context_.gauges.num_connections;
  error_code ignored;
  socket_.non_blocking(true, ignored);
}

// However it ends: asio drops a coroutine for want of memory, before its beginning or later.
HttpConnection::~HttpConnection() { context_.on_closed(this); }

void HttpConnection::start() {
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->serve(); },
      asio::detached);
}

void HttpConnection::start_refusing(std::string reason) {
  ApiError error{.status = 503, .code = "too_many_connections"};
  error.message = std::move(reason);
  auto refusing = [](std::shared_ptr<HttpConnection> self, ApiError reply) -> Task<void> {
    try {
      const HttpRequest unread{};
      co_await self->refuse(std::move(reply), unread);
    } catch (const std::exception& failure) {
      spdlog::error("connection: {}", failure.what());
    }
    self->close_socket();
  };
  asio::co_spawn(socket_.get_executor(), refusing(shared_from_this(), std::move(error)),
                 asio::detached);
}

void HttpConnection::drain() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->draining_ = true;
    if (self->idle_) self->close_socket();
  });
}

void HttpConnection::interrupt() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->interrupted_ = true;
    self->notify();
  });
}

void HttpConnection::close() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->disconnected_ = true;
    self->close_socket();
    self->notify();
  });
}

void HttpConnection::wake() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] { self->guard([&] { self->on_wake(); }); });
}

void HttpConnection::poke() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->notify(); });
}

Task<void> HttpConnection::serve() {
  const auto self = shared_from_this();
  try {
    while (co_await wait_for_request()) {
      if (!co_await serve_one()) break;
    }
  } catch (const std::exception& error) {
    fail(error);
  }
  close_socket();
}

// Of memory, most likely: it costs this connection, and no other.
void HttpConnection::fail(const std::exception& error) {
  spdlog::error("connection: {}", error.what());
  disconnected_ = true;
  close_socket();
  notify();
}

// For what runs beside the coroutine.
template <class Function>
void HttpConnection::guard(const Function& function) {
  try {
    function();
  } catch (const std::exception& error) {
    fail(error);
  }
}

// Returns whether the connection can take another request.
Task<bool> HttpConnection::serve_one() {
  const auto owned = std::make_shared<Incoming>(context_.body_budget);
  Incoming& incoming = *owned;
  if (!co_await read_head(incoming)) co_return false;
  if (std::optional<HttpResponse> refusal = context_.router.check_head(incoming.request)) {
    // A body that nobody wants is not read.
    const bool keep_alive = decide_keep_alive(incoming) && incoming.parser.is_done();
    context_.router.add_cors(incoming.request, *refusal);
    const bool written =
        co_await write_response(std::move(*refusal), keep_alive, !incoming.is_head);
    if (written && !keep_alive) co_await linger();
    co_return written&& keep_alive;
  }
  if (incoming.request.method == "POST") {
    if (!co_await read_body(incoming)) co_return false;
    co_return co_await answer(incoming);
  }
  // Nothing else takes a body, which would take room from those that are read.
  const bool has_body = !incoming.parser.is_done();
  if (has_body) incoming.keep_alive = false;
  const bool goes_on = co_await answer(incoming);
  if (has_body && !disconnected_ && !overrun_) co_await linger();
  co_return goes_on;
}

// Has the router work on another thread; the reply comes back through the strand.
void HttpConnection::start_routing(Incoming& incoming) {
  auto route = [self = shared_from_this(), owned = incoming.shared_from_this(),
                reply = std::make_shared<Reply>()] {
    const auto wake = [weak = self->weak_from_this(), &wakes = self->context_.wakes] {
      wakes.push(weak);
    };
    std::exception_ptr failure;
    try {
      *reply = self->context_.router.route(owned->request, wake);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    post_back(self->socket_, [self, reply, failure] {
      self->guard([&] {
        if (failure) std::rethrow_exception(failure);
      });
      self->reply_ = std::move(*reply);
      self->notify();
    });
  };
  context_.prepares.post(std::move(route));
}

Task<bool> HttpConnection::answer(Incoming& incoming) {
  if (context_.router.is_quick(incoming.request)) {
    reply_ = context_.router.route(incoming.request, [] {});  // /health must not wait for encoders
  } else {
    keep_watching_ = true;
    incoming.ping_at = std::chrono::steady_clock::now() + limits_.ping_interval;
    watch();
    start_routing(incoming);
  }
  while (!reply_) co_await wait_for_event();
  while (reply_->errand && !disconnected_) co_await run_errand(incoming);
  Reply reply = take_reply();
  if (!reply.upstream) incoming.drop_body();

  bool written = false;
  if (reply.upstream) {
    written = !disconnected_ && co_await answer_from_upstream(incoming, *reply.upstream);
  } else if (reply.generation != nullptr) {
    const Counted counted(context_.gauges.num_generations);
    written = co_await answer_from_engine(incoming, reply.generation);
    prepare_next_turn(*reply.generation);
  } else if (reply.events != nullptr) {
    written = co_await stream_events(incoming, reply);
  } else if (!disconnected_ && incoming.has_begun_stream) {
    written = co_await end_stream(incoming, reply.response);
  } else if (!disconnected_) {
    HttpResponse response = std::move(reply.response);
    charge(incoming.request, response);
    context_.router.add_cors(incoming.request, response);
    written = co_await write_response(std::move(response), decide_keep_alive(incoming), !incoming.is_head);
  }
  reply_share_.release();
  co_await stop_watching();
  if (written && overrun_) co_await linger();
  co_return written&& incoming.keep_alive && !draining_;
}

// On another thread, once no request waits for one, and nobody hears of it.
void HttpConnection::prepare_next_turn(Generation& generation) {
  const std::shared_ptr<NextTurn> turn = generation.take_next_turn();
  if (turn == nullptr || draining_) return;
  context_.prepares.post_idle([&router = context_.router, turn] { router.prepare_next_turn(std::move(*turn)); });
}

// Has the engine answer what routing wanted to know, and routes again. A client that leaves meanwhile
// takes the question with it.
Task<void> HttpConnection::run_errand(Incoming& incoming) {
  HttpRequest& request = incoming.request;
  {
    const Reply asked = take_reply();
    const Counted counted(context_.gauges.num_generations);
    incoming.awaits_stream = asked.errand->is_for_stream;
    std::string body;
    while (!disconnected_) {
      body += advance(*asked.generation);
      if (asked.generation->has_large_reply()) body = co_await write_elsewhere(asked.generation);
      if (asked.generation->done()) break;
      co_await wait_for_errand(incoming);
    }
    if (disconnected_ || asked.generation->failed()) {
      reply_.emplace();  // which nobody reads if the client has gone
      // The writer that asked is not of the API that the client speaks.
      if (!disconnected_)
        reply_->response = error_response(asked.generation->failure(), request);
      co_return;
    }
    request.answers[asked.errand->key] = std::move(body);
  }
  start_routing(incoming);
  while (!reply_) co_await wait_for_errand(incoming);
}

std::string HttpConnection::advance(Generation& generation) const {
  return interrupted_ ? generation.interrupt() : generation.advance(kWriteBytes);
}

Reply HttpConnection::take_reply() {
  Reply reply = std::move(*reply_);
  reply_.reset();
  return reply;
}

// Large replies wait for clients that may never read them: no more of them are held than the budget has
// room for. What a request has changed is told in any case, so that nobody repeats it. Small ones: see write_response().
void HttpConnection::charge(const HttpRequest& request, HttpResponse& response) {
  if (reply_share_.may_hold(response.body.size())) return;
  reply_share_.release();
  if (context_.router.only_reads(request)) {
    response = refuse_reply(request);
  } else if (!response.brief.empty()) {
    response = {.status = response.status, .body = std::move(response.brief), .headers = std::move(response.headers)};
  } else {
    HttpResponse refusal = refuse_answer(request);
    // Under which an answer that was stored is found.
    for (auto& header : response.headers) {
      if (header.first == "x-request-id") refusal.headers.push_back(std::move(header));
    }
    response = std::move(refusal);
  }
}

ApiError HttpConnection::no_room_for_reply() const {
  context_.metrics.count_rejection("reply_memory");
  ApiError busy{.status = 503, .code = "reply_memory"};
  busy.message = fmt::format("replies that are not complete, or that their clients have not read yet, have {} bytes, {} at "
                             "most; try again",
                             context_.reply_budget.used(), limits_.max_total_reply_bytes);
  return busy;
}

HttpResponse HttpConnection::refuse_reply(const HttpRequest& request) const {
  return error_response(no_room_for_reply(), request);
}

// What it took would be generated once more, and most likely come to nothing again.
HttpResponse HttpConnection::refuse_answer(const HttpRequest& request) const {
  HttpResponse response = refuse_reply(request);
  std::erase_if(response.headers, [](const auto& header) { return header.first == "Retry-After"; });
  response.headers.emplace_back("x-should-retry", "false");  // to the vendors' clients
  return response;
}

Task<bool> HttpConnection::answer_from_engine(Incoming& incoming,
                                              const std::shared_ptr<Generation>& owned) {
  Generation& generation = *owned;
  if (generation.streaming()) co_return co_await stream(incoming, owned);
  std::string body;
  bool is_refused = false;
  while (!disconnected_) {
    body += advance(generation);
    // What is done may have been stored, and is told.
    is_refused = !reply_share_.may_hold(generation.held_bytes()) && !generation.done();
    if (is_refused) break;
    if (generation.has_large_reply()) body = co_await write_elsewhere(owned);
    if (generation.done()) break;
    co_await wait_for_event();
  }
  if (disconnected_) co_return false;
  HttpResponse response{.body = std::move(body), .headers = generation.headers()};
  if (is_refused) response = refuse_answer(incoming.request);
  if (generation.failed()) response = generation.failure_response();
  response.headers.emplace_back("x-larder-route", "local");
  charge(incoming.request, response);
  context_.router.add_cors(incoming.request, response);
  co_return co_await write_response(std::move(response), decide_keep_alive(incoming), true);
}

// By a thread that nobody else's stream waits for, and that may outlast a coroutine that fails.
Task<std::string> HttpConnection::write_elsewhere(const std::shared_ptr<Generation>& generation) {
  struct Written {
    std::string body;
    std::exception_ptr failure;
    bool is_done = false;
  };
  const auto written = std::make_shared<Written>();
  context_.prepares.post([self = shared_from_this(), generation, written] {
    try {
      written->body = generation->write_reply();
    } catch (const std::exception&) {
      written->failure = std::current_exception();
    }
    post_back(self->socket_, [self, written] {
      written->is_done = true;
      self->notify();
    });
  });
  while (!written->is_done) co_await wait_for_event();
  if (written->failure) std::rethrow_exception(written->failure);
  co_return std::move(written->body);
}

Task<bool> HttpConnection::stream(Incoming& incoming, const std::shared_ptr<Generation>& owned) {
  Generation& generation = *owned;
  HttpResponse head{.content_type = kStreamType, .headers = {{"x-larder-route", "local"}}};
  for (auto& header : generation.headers()) head.headers.push_back(std::move(header));
  streaming_ = &generation;
  bool written = co_await begin_stream(incoming, std::move(head));
  auto ping_at = std::chrono::steady_clock::now() + limits_.ping_interval;
  bool too_far_behind = false;  // of a client that reads, but too little
  while (written && !disconnected_ && !too_far_behind) {
    too_far_behind = generation.is_behind(kTooFar);
    std::string events = advance(generation);
    generation.keep_pace();  // by what waits still: of all that came, nothing may be to be told
    const bool has_room = generation.done() || reply_share_.may_hold(generation.held_bytes());
    if (!has_room) events += generation.break_off(no_room_for_reply());
    if (generation.has_large_reply()) events += co_await write_elsewhere(owned);
    const auto now = std::chrono::steady_clock::now();
    if (events.empty() && now >= ping_at) events = generation.ping();
    if (!events.empty() || now >= ping_at) ping_at = now + limits_.ping_interval;
    if (!events.empty()) {
      written = co_await write_events(incoming, std::move(events));
    } else if (generation.done()) {
      break;
    } else {
      co_await wait_for_event(ping_at);
    }
  }
  streaming_ = nullptr;
  if (!written || disconnected_ || too_far_behind) {
    if (timed_out_ || too_far_behind) context_.metrics.count_dropped_stream();
    co_return false;
  }
  if (!incoming.is_http_1_0) written = co_await write(kLastChunk);
  co_return written&& incoming.keep_alive;
}

Task<void> HttpConnection::wait_for_event(Timer::time_point end) {
  error_code error;
  event_.expires_at(end);
  co_await event_.async_wait(asio::redirect_error(kUseTask, error));
}

// Reads while the request is worked on: the end of the stream means that nobody waits for the reply
// any more. Bytes of pipelined requests are kept, or none where they are too many, since the end comes
// behind them: then the reply says "close", and the client knows that they were not begun.
void HttpConnection::watch() {
  auto on_ready = [self = shared_from_this()](error_code error) {
    self->watching_ = false;
    self->guard([&] {
      if (!error && self->keep_watching_) error = self->read_ahead();
      if (!error && self->keep_watching_) return self->watch();
      if (error && error != asio::error::operation_aborted) self->disconnected_ = true;
      self->notify();
    });
  };
  socket_.async_wait(Socket::wait_read, std::move(on_ready));
  watching_ = true;
}

error_code HttpConnection::read_ahead() {
  std::size_t most = std::min(kReadBytes, kMaxPipelinedBytes - std::min(kMaxPipelinedBytes, buffer_.size()));
  if (most == 0 || !may_hold(room_to_read(most))) {
    overrun_ = draining_ = true;
    buffer_.clear();
    most = kReadBytes;
  }
  return read_ready(room_to_read(most));
}

Task<void> HttpConnection::stop_watching() {
  keep_watching_ = false;
  error_code ignored;
  if (watching_) socket_.cancel(ignored);
  while (watching_) co_await wait_for_event();
}

void HttpConnection::set_deadline(milliseconds timeout) {
  timed_out_ = false;
  deadline_.expires_after(timeout);
  await_deadline(++deadline_number_);
}

// Cancels again and again: what has its next bytes already when it is cancelled goes on to read or write.
void HttpConnection::await_deadline(std::uint64_t number) {
  deadline_.async_wait([self = shared_from_this(), number](error_code error) {
    if (error || number != self->deadline_number_) return;
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
    self->deadline_.expires_after(kCancelAgain);
    self->guard([&] { self->await_deadline(number); });
  });
}

void HttpConnection::clear_deadline() {
  ++deadline_number_;
  deadline_.cancel();
}

void HttpConnection::close_socket() {
  clear_deadline();
  error_code ignored;
  socket_.close(ignored);
}

std::string format_head(const HttpResponse& response, bool keep_alive, Framing framing) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nServer: larder\r\nDate: {}\r\n", response.status,
                                 status_text(response.status), format_date(unix_time_s()));
  if (!response.content_type.empty()) head += "Content-Type: " + response.content_type + "\r\n";
  bool has_id = false;
  for (const auto& [name, value] : response.headers) {
    head += name + ": " + value + "\r\n";
    has_id = has_id || name == "x-request-id" || name == "request-id";
  }
  if (!has_id) head += "x-request-id: req_" + make_request_id() + "\r\n";
  if (framing == Framing::kChunked) head += "Transfer-Encoding: chunked\r\n";
  const bool may_have_body = response.status != 204;
  if (framing == Framing::kLength && may_have_body)
    head += fmt::format("Content-Length: {}\r\n", response.body.size());
  head += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

std::string frame_chunk(std::string_view data) {
  return fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

}  // namespace larder
