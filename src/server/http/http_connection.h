// One client's socket: reads requests, has them answered, writes the replies.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/api/router.h"
#include "server/api/server_config.h"
#include "server/asio_types.h"
#include "server/http/prepare_queue.h"
#include "server/http/wake_queue.h"
#include "server/http_message.h"
#include "server/memory_budget.h"
#include "server/reply_share.h"
#include "server/wakeable.h"

namespace larder {

class HttpConnection;
class UpstreamExchange;

// What all connections share. Outlives them.
struct ConnectionContext {
  const ServerConfig& config;
  const Router& router;
  ServerMetrics& metrics;
  ServerGauges& gauges;
  PrepareQueue& prepares;  // Router::route, and what it leaves to be done
  WakeQueue& wakes;
  MemoryBudget& body_budget;
  MemoryBudget& header_budget;
  MemoryBudget& reply_budget;
  std::function<void(HttpConnection*)> on_closed;  // of one that is destroyed; must not throw
};

// A coroutine on the socket's strand, which owns all state; a second reader watches for the
// client's going while a request is worked on. Kept alive by its pending operations.
class HttpConnection final : public Wakeable, public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(Socket socket, ConnectionContext& context);
  ~HttpConnection() override;
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Thread of all: any.
  void start();
  // Says 503 and goes.
  void start_refusing(std::string reason);
  // Ends after the running request, or now when there is none.
  void drain();
  // Of one that drains: the running request is answered with an error.
  void interrupt();
  void close();
  // The engine has left something.
  void wake() override;
  // Has it look at its generation again (the engine may have ended).
  void poke();

 private:
  struct Incoming;  // a request being read, see http_connection.cc
  struct OpenExchange;
  static constexpr std::size_t kReadBytes = std::size_t{4} << 10;    // at a time, but for a large body
  static constexpr std::size_t kWriteBytes = std::size_t{64} << 10;  // what stall_timeout is for
  static constexpr std::size_t kFreeReplyBytes = std::size_t{4} << 10;  // that count nowhere
  // Those of a reply that a socket takes at once, unless its reader is behind.
  static constexpr std::size_t kSmallReplyBytes = ReplyShare::kSmallBytes;
  static constexpr std::chrono::seconds kLookAgain{10};
  static constexpr const char* kStreamType = "text/event-stream; charset=utf-8";
  static constexpr std::string_view kLastChunk = "0\r\n\r\n";

  Task<void> serve();
  Task<bool> wait_for_request();
  bool has_begun_request();
  Task<bool> serve_one();
  Task<bool> read_head(Incoming& incoming);
  Task<bool> read_body(Incoming& incoming);
  bool holds_others_up(std::size_t size, std::size_t size_before) const;
  Task<boost::system::error_code> read_some(Incoming& incoming);
  static boost::system::error_code parse_some(Incoming& incoming, boost::beast::flat_buffer& buffer);
  std::size_t room_to_read(std::size_t most) const;
  // What has come, of at most so many bytes.
  boost::system::error_code read_ready(std::size_t size);
  boost::system::error_code read_ahead();
  bool may_hold(std::size_t more);
  void shrink_buffer();
  Task<bool> refuse(ApiError error, const HttpRequest& request);
  ApiError describe_unreadable(boost::system::error_code error) const;
  Task<bool> answer(Incoming& incoming);
  ApiError no_room_for_reply() const;
  HttpResponse refuse_reply(const HttpRequest& request) const;
  HttpResponse refuse_answer(const HttpRequest& request) const;
  void prepare_next_turn(Generation& generation);
  Task<void> run_errand(Incoming& incoming);
  Task<void> wait_for_errand(Incoming& incoming);
  void charge(const HttpRequest& request, HttpResponse& response);
  Task<bool> answer_from_engine(Incoming& incoming, const std::shared_ptr<Generation>& owned);
  Task<bool> answer_from_upstream(Incoming& incoming, const UpstreamCall& call);
  Task<bool> refuse_for_upstream(Incoming& incoming);
  Task<std::optional<ApiError>> read_from_upstream(UpstreamExchange& exchange, HttpResponse& response);
  Task<bool> stream_from_upstream(Incoming& incoming, UpstreamExchange& exchange);
  Task<bool> write_from_upstream(Incoming& incoming, HttpResponse response);
  ApiError describe_upstream(ApiError failure) const;
  Task<std::string> write_elsewhere(const std::shared_ptr<Generation>& generation);
  Task<bool> stream(Incoming& incoming, const std::shared_ptr<Generation>& owned);
  // Of a response that goes on without it, if it leaves.
  Task<bool> stream_events(Incoming& incoming, Reply& reply);
  // Writes the head, unless that was done. Which of it there are cannot change any more.
  Task<bool> begin_stream(Incoming& incoming, HttpResponse head);
  Task<bool> write_events(const Incoming& incoming, std::string events);
  // Of one that has begun and comes to nothing.
  Task<bool> end_stream(const Incoming& incoming, const HttpResponse& failure);
  Task<bool> write_response(HttpResponse response, bool keep_alive, bool with_body);
  // As the head is about to tell: whether the connection stays open behind the answer.
  bool decide_keep_alive(Incoming& incoming) const;
  // What the socket takes of both without waiting; nullopt: it is closed.
  std::optional<std::size_t> write_at_once(std::string_view bytes, std::string_view head);
  // The head goes before the first of the bytes.
  Task<bool> write(std::string_view bytes, std::string_view head = {});
  Task<void> linger();
  // In any case for so long only: a wake can be lost where there is no memory for it.
  Task<void> wait_for_event(Timer::time_point end = std::chrono::steady_clock::now() + kLookAgain);
  Task<void> stop_watching();

  void start_routing(Incoming& incoming);
  void watch();
  void on_wake();
  std::chrono::milliseconds write_timeout() const;
  void fail(const std::exception& error);
  template <class Function>
  void guard(const Function& function);
  void notify();
  void set_deadline(std::chrono::milliseconds timeout);
  void await_deadline(std::uint64_t number);
  void clear_deadline();
  void close_socket();
  Reply take_reply();
  std::string advance(Generation& generation) const;

  Socket socket_;
  ConnectionContext& context_;
  const ServerLimits& limits_;
  Timer deadline_;  // cancels the socket's operations
  Timer event_;     // cancelled to wake the coroutine
  boost::beast::flat_buffer buffer_;
  BudgetShare held_;                 // of what the buffer holds
  ReplyShare reply_share_;           // of what the reply does, until it is written
  std::optional<Reply> reply_;       // of a thread that prepares
  Generation* streaming_ = nullptr;  // while its events are being written
  UpstreamExchange* upstream_ = nullptr;  // while it answers
  std::uint64_t deadline_number_ = 0;
  int num_skipped_bytes_ = 0;  // before the request that comes
  bool timed_out_ = false;
  bool watching_ = false;  // the second reader has a read pending
  bool keep_watching_ = false;
  bool disconnected_ = false;
  bool is_writing_ = false;
  bool idle_ = false;
  bool draining_ = false;
  bool interrupted_ = false;
  bool overrun_ = false;  // by more pipelined bytes than are kept
};

// How a client knows where a body ends.
enum class Framing { kLength, kChunked, kUntilClose };

// The bytes before a reply's body.
std::string format_head(const HttpResponse& response, bool keep_alive, Framing framing);
std::string frame_chunk(std::string_view data);

// What a stream says in place of a reply that is an error, in the style of who asks.
std::string error_event(const HttpResponse& error, const HttpRequest& request);

}  // namespace larder
