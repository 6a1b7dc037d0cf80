// One request to the upstream and its reply, over a connection that was kept or a new one.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/asio_types.h"
#include "server/http_message.h"
#include "server/upstream/upstream.h"
#include "server/upstream/upstream_connection.h"
#include "server/upstream/upstream_route.h"

namespace larder {

// The beginning of a reply, with what of its headers is passed on.
struct UpstreamHead {
  int status = 0;
  std::string content_type;
  bool is_stream = false;                  // server-sent events
  std::optional<std::uint64_t> num_bytes;  // of the body, where it says so
  std::vector<std::pair<std::string, std::string>> headers;
};

// send(), then read() until done(). Where one fails it tells how in OpenAI's terms, by the upstream's name and nothing
// secret, and nothing follows. Thread: the strand.
class UpstreamExchange : public std::enable_shared_from_this<UpstreamExchange> {
 public:
  UpstreamExchange(Strand strand, Upstream& upstream);

  // What send() calls once it needs the body no more, where that is before its end.
  void set_on_body_sent(std::function<void()> on_body_sent) { on_body_sent_ = std::move(on_body_sent); }
  // Until the head of the reply is there; nullopt = it is. The body must stay as it is until then, or until it is sent.
  // A connection that was kept and ends before a byte of a reply has most likely ended before the request: it is sent
  // once more, over another. A large one goes over a new connection at once, so that it need not be kept.
  Task<std::optional<ApiError>> send(const UpstreamCall& call, std::string_view body);
  const UpstreamHead& head() const { return head_; }
  // Appends what has come of the reply's body, waiting for a byte of it.
  Task<std::optional<ApiError>> read(std::string& out);
  bool done() const { return parser_->is_done(); }

  // Ends what is pending, which then fails, as all that follows does.
  void close();
  // At the end: keeps the connection for another request where the reply came whole, and closes it else.
  void release();

 private:
  using Parser = boost::beast::http::response_parser<boost::beast::http::buffer_body>;
  using ErrorCode = boost::system::error_code;
  using Endpoints = std::vector<asio::ip::tcp::endpoint>;
  static constexpr std::size_t kPieceBytes = std::size_t{16} << 10;

  Task<ErrorCode> resolve(Endpoints& found);
  Task<ErrorCode> connect(const Endpoints& endpoints);
  Task<std::optional<ApiError>> open();
  Task<std::optional<ApiError>> ask(const UpstreamCall& call, std::string_view body, bool is_last);
  Task<std::optional<ApiError>> secure();
  Task<ErrorCode> write(std::string_view bytes);
  Task<ErrorCode> write_request(const UpstreamCall& call, std::string_view body);
  Task<ErrorCode> read_head();
  Task<ErrorCode> read_some();
  Task<std::size_t> read_socket(ErrorCode& error);
  bool says_key(std::string_view text) const;
  std::optional<ApiError> take_head();
  std::string format_request(const UpstreamCall& call, std::size_t body_size) const;
  ApiError failure(std::string_view what) const;
  ApiError failure(std::string_view what, ErrorCode error) const;

  Socket& socket() { return connection_->socket; }
  void close_socket();
  void set_deadline(std::chrono::nanoseconds timeout);
  void clear_deadline();

  Upstream& upstream_;
  const UpstreamConfig& config_;
  const Strand strand_;
  std::unique_ptr<UpstreamConnection> connection_;  // nullptr: not yet, or not any more
  std::function<void()> on_body_sent_;  // empty: nobody wants to know
  Timer deadline_;  // closes the socket
  Timer found_;     // cancelled to wake who waits for an address
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::unique_ptr<char[]> piece_;  // [kPieceBytes], of the body
  UpstreamHead head_;
  std::uint64_t deadline_number_ = 0;
  bool is_sent_ = false;   // the whole request
  bool has_come_ = false;  // a byte of the reply
  bool timed_out_ = false;
  bool is_closed_ = false;
};

// Whether a header of the upstream's goes on to the client.
bool passes_upstream_header(std::string_view name);

}  // namespace larder
