#include "server/upstream/upstream_exchange.h"

#include <fmt/format.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <limits>
#include <stdexcept>

#include "server/json_reader.h"

namespace larder {
namespace {

namespace http = boost::beast::http;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr std::size_t kWriteBytes = std::size_t{64} << 10;  // what write_timeout is for
constexpr std::size_t kRepeatedBytes = std::size_t{64} << 10;  // of a body that is held until the reply begins
constexpr std::size_t kReadBytes = std::size_t{16} << 10;
constexpr std::uint32_t kMaxHeadBytes = std::uint32_t{64} << 10;
constexpr std::size_t kMaxChunkHead = std::size_t{16} << 10;                   // with its extensions; all of a trailer
constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();  // Beast 1.74 reads none as 0
const std::string kAnthropicVersion = "2023-06-01";                             // of who names none
constexpr int kMaxInterim = 8;                                                 // replies of 1xx before the reply

std::string to_string(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

bool passes_upstream_header(std::string_view name) {
  const auto is = [&](std::string_view other) {
    return boost::beast::iequals({name.data(), name.size()}, {other.data(), other.size()});
  };
  const auto begins_with = [&](std::string_view prefix) {
    return name.size() > prefix.size() &&
           boost::beast::iequals({name.data(), prefix.size()}, {prefix.data(), prefix.size()});
  };
  if (is("x-larder-route")) return false;  // this server says its own
  // Whose key it is, which clients need not know.
  if (is("anthropic-organization-id") || is("openai-organization") || is("openai-project")) return false;
  return is("retry-after") || is("retry-after-ms") || is("x-should-retry") || is("x-request-id") || is("request-id") || begins_with("openai-") ||
         begins_with("anthropic-") || begins_with("x-larder-");
}

UpstreamExchange::UpstreamExchange(Strand strand, Upstream& upstream)
    : upstream_(upstream),
      config_(upstream.config()),
      strand_(strand),
      deadline_(strand),
      found_(strand),
      buffer_(kMaxHeadBytes + kReadBytes) {}

void UpstreamExchange::close() {
  is_closed_ = true;
  clear_deadline();
  close_socket();
  found_.cancel();
}

void UpstreamExchange::release() {
  const bool is_whole = is_sent_ && !is_closed_ && !timed_out_ && parser_ && parser_->is_done() &&
                        parser_->keep_alive() && buffer_.size() == 0;
  if (is_whole && connection_->is_quiet()) upstream_.connections().keep(std::move(connection_), steady_clock::now());
  close();
}

void UpstreamExchange::close_socket() {
  ErrorCode ignored;
  if (connection_) socket().close(ignored);
}

void UpstreamExchange::set_deadline(nanoseconds timeout) {
  timed_out_ = false;
  deadline_.expires_after(timeout);
  deadline_.async_wait([weak = weak_from_this(), number = ++deadline_number_](ErrorCode error) {
    const auto self = weak.lock();
    if (error || self == nullptr || number != self->deadline_number_) return;
    self->timed_out_ = true;
    self->close_socket();
    self->found_.cancel();
  });
}

void UpstreamExchange::clear_deadline() {
  ++deadline_number_;
  deadline_.cancel();
}

ApiError UpstreamExchange::failure(std::string_view what) const {
  if (timed_out_) {
    return {.status = 504,
            .code = "upstream_timeout",
            .message = fmt::format("the upstream {} did not answer in time: {}", config_.url.authority, what)};
  }
  return {.status = 502,
          .code = "upstream_failed",
          .message = fmt::format("the upstream {} failed: {}", config_.url.authority, what)};
}

ApiError UpstreamExchange::failure(std::string_view what, ErrorCode error) const {
  if (timed_out_ || is_closed_) return failure(what);
  const bool has_ended = error == http::error::end_of_stream || error == http::error::partial_message ||
                         error == asio::error::eof || error == asio::ssl::error::stream_truncated;
  return failure(fmt::format("{}: {}", what, has_ended ? std::string("it ended the connection") : error.message()));
}

// By a thread of Asio's own. A look-up cannot be taken back: who does not wait for it any more leaves it behind.
Task<UpstreamExchange::ErrorCode> UpstreamExchange::resolve(Endpoints& found) {
  using Resolver = asio::ip::basic_resolver<asio::ip::tcp, Strand>;
  struct Lookup {
    explicit Lookup(const Strand& strand) : resolver(strand) {}
    Resolver resolver;
    Endpoints found;
    ErrorCode error;
    bool is_done = false;
  };
  const auto lookup = std::make_shared<Lookup>(strand_);
  lookup->resolver.async_resolve(
      config_.url.host, config_.url.port, Resolver::numeric_service,
      [lookup, weak = weak_from_this()](ErrorCode error, const Resolver::results_type& results) {
        lookup->error = error;
        for (const auto& entry : results) lookup->found.push_back(entry.endpoint());
        lookup->is_done = true;
        if (const auto self = weak.lock()) self->found_.cancel();
      });
  while (!lookup->is_done && !timed_out_ && !is_closed_) {
    ErrorCode ignored;
    found_.expires_after(config_.connect_timeout);
    co_await found_.async_wait(asio::redirect_error(kUseTask, ignored));
  }
  if (!lookup->is_done) {
    lookup->resolver.cancel();  // where it has not begun; those that come later wait behind it
    co_return asio::error::operation_aborted;
  }
  found = std::move(lookup->found);
  co_return lookup->error;
}

// Each address in turn, with half of the time that is left: the first one may lead nowhere.
Task<UpstreamExchange::ErrorCode> UpstreamExchange::connect(const Endpoints& endpoints) {
  const auto end = steady_clock::now() + config_.connect_timeout;
  ErrorCode error = asio::error::host_not_found;
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    const nanoseconds left = end - steady_clock::now();
    if (left <= nanoseconds::zero()) break;
    close_socket();
    set_deadline(i + 1 < endpoints.size() ? left / 2 : left);
    co_await socket().async_connect(endpoints[i], asio::redirect_error(kUseTask, error));
    clear_deadline();
    if (is_closed_) co_return asio::error::operation_aborted;
    if (error || timed_out_) continue;
    ErrorCode ignored;
    socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    co_return ErrorCode{};
  }
  co_return error ? error : asio::error::timed_out;
}

Task<std::optional<ApiError>> UpstreamExchange::open() {
  connection_ = std::make_unique<UpstreamConnection>(strand_);
  Endpoints endpoints;
  set_deadline(config_.connect_timeout);
  ErrorCode error = co_await resolve(endpoints);
  clear_deadline();
  if (error) co_return failure("its name cannot be looked up", error);
  if (is_closed_) co_return failure("no connection");
  error = co_await connect(endpoints);
  if (error) co_return failure("no connection", error);
  upstream_.metrics().count_connection();
  if (upstream_.tls() == nullptr) co_return std::nullopt;
  co_return co_await secure();
}

Task<std::optional<ApiError>> UpstreamExchange::secure() {
  auto& tls = connection_->tls.emplace(socket(), *upstream_.tls());
  SSL* const ssl = tls.native_handle();
  const std::string& host = config_.url.host;
  ErrorCode no_address;
  asio::ip::make_address(host, no_address);
  // The certificate must be of this name; servers of several choose it by what is asked for.
  SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  const bool is_set = no_address
                          ? SSL_set_tlsext_host_name(ssl, host.c_str()) == 1 && SSL_set1_host(ssl, host.c_str()) == 1
                          : X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1;
  if (!is_set) co_return failure("its name is none that a certificate can have");
  set_deadline(config_.connect_timeout);
  ErrorCode error;
  co_await tls.async_handshake(asio::ssl::stream_base::client, asio::redirect_error(kUseTask, error));
  clear_deadline();
  if (!error && !timed_out_) co_return std::nullopt;
  const long verified = SSL_get_verify_result(ssl);
  if (verified != X509_V_OK && !timed_out_)
    co_return failure(fmt::format("its certificate is not trusted: {}", X509_verify_cert_error_string(verified)));
  co_return failure("no TLS connection", error);
}

std::string UpstreamExchange::format_request(const UpstreamCall& call, std::size_t body_size) const {
  std::string head = fmt::format(
      "POST {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: larder/{}\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"
      "Content-Type: application/json\r\nContent-Length: {}\r\n",
      config_.url.path, call.path, config_.url.authority, LARDER_VERSION, body_size);
  head += fmt::format("x-larder-via: {}{}{}\r\n", call.passed, call.passed.empty() ? "" : ", ", upstream_.id());
  if (call.style == ApiStyle::kAnthropic) {
    if (!config_.key.empty()) head += "x-api-key: " + config_.key + "\r\n";
    head += "anthropic-version: " + (call.version.empty() ? kAnthropicVersion : call.version) + "\r\n";
    if (!call.beta.empty()) head += "anthropic-beta: " + call.beta + "\r\n";
  } else if (!config_.key.empty()) {
    head += "Authorization: Bearer " + config_.key + "\r\n";
  }
  return head + "\r\n";
}

Task<UpstreamExchange::ErrorCode> UpstreamExchange::write(std::string_view bytes) {
  ErrorCode error;
  while (!bytes.empty() && !error) {
    const std::string_view piece = bytes.substr(0, kWriteBytes);
    const asio::const_buffer buffer(piece.data(), piece.size());
    set_deadline(config_.write_timeout);
    if (connection_->tls) {
      co_await asio::async_write(*connection_->tls, buffer, asio::redirect_error(kUseTask, error));
    } else {
      co_await asio::async_write(socket(), buffer, asio::redirect_error(kUseTask, error));
    }
    clear_deadline();
    bytes.remove_prefix(piece.size());
  }
  co_return error;
}

Task<UpstreamExchange::ErrorCode> UpstreamExchange::write_request(const UpstreamCall& call, std::string_view body) {
  const BodyEdit& edit = call.edit;
  const std::size_t size = edit.new_size(body.size());
  std::string head = format_request(call, size);
  if (size <= kWriteBytes) {
    head += apply_edit(body, edit);
    co_return co_await write(head);
  }
  const std::array<std::string_view, 4> parts = {head, body.substr(0, edit.begin), edit.replacement,
                                                 body.substr(edit.end)};
  ErrorCode error;
  for (std::size_t i = 0; i < parts.size() && !error; ++i) error = co_await write(parts[i]);
  co_return error;
}

Task<std::optional<ApiError>> UpstreamExchange::send(const UpstreamCall& call, std::string_view body) {
  // One that is kept gives way in any case: there are never more than those that may be under way.
  auto kept = upstream_.connections().take(steady_clock::now());
  if (body.size() <= kRepeatedBytes) connection_ = std::move(kept);
  kept.reset();
  if (connection_) {
    auto failed = co_await ask(call, body, false);
    if (!failed || has_come_ || timed_out_ || is_closed_) co_return failed;
  }
  if (auto refusal = co_await open()) co_return refusal;
  co_return co_await ask(call, body, true);
}

// is_last: the body is not wanted once more.
Task<std::optional<ApiError>> UpstreamExchange::ask(const UpstreamCall& call, std::string_view body, bool is_last) {
  const ErrorCode write_error = co_await write_request(call, body);
  if (is_last && on_body_sent_) on_body_sent_();
  is_sent_ = !write_error;
  if (timed_out_) co_return failure("it does not take the request");
  // One that will not have all of it may have said why.
  const ErrorCode error = co_await read_head();
  if (error) co_return failure("no reply", write_error ? write_error : error);
  co_return take_head();
}

Task<UpstreamExchange::ErrorCode> UpstreamExchange::read_head() {
  ErrorCode error;
  set_deadline(config_.read_timeout);
  for (int i = 0; i <= kMaxInterim; ++i) {
    parser_.emplace();
    parser_->header_limit(kMaxHeadBytes);
    parser_->body_limit(kNoLimit);  // what reads the body has one
    while (!error && !parser_->is_header_done()) error = co_await read_some();
    if (error || parser_->get().result_int() >= 200) break;
    if (i == kMaxInterim) error = http::error::bad_status;
  }
  clear_deadline();
  co_return timed_out_ ? ErrorCode(asio::error::timed_out) : error;
}

bool UpstreamExchange::says_key(std::string_view text) const {
  return !config_.key.empty() && text.find(config_.key) != text.npos;
}

// What the reply's head says, and whether it can be passed on.
std::optional<ApiError> UpstreamExchange::take_head() {
  const auto& message = parser_->get();
  head_.status = static_cast<int>(message.result_int());
  if (head_.status >= 300 && head_.status < 400)
    return failure(
        fmt::format("it answers {}, a redirection; give --upstream the address that it leads to", head_.status));
  const auto coding = message[http::field::content_encoding];
  const auto transfer = message[http::field::transfer_encoding];
  if ((!coding.empty() && !boost::beast::iequals(coding, "identity")) ||
      (!transfer.empty() && !boost::beast::iequals(transfer, "chunked")))
    return failure("its reply is compressed, which was not asked for");
  head_.content_type = to_string(message[http::field::content_type]);
  if (says_key(head_.content_type)) head_.content_type.clear();
  // An error's is read in whole, to see what it says.
  head_.is_stream =
      head_.status < 400 &&
      boost::beast::iequals(head_.content_type.substr(0, head_.content_type.find_first_of("; ")), "text/event-stream");
  if (const auto length = parser_->content_length()) head_.num_bytes = *length;
  for (const auto& field : message) {
    std::string name = to_string(field.name_string());
    std::string value = to_string(field.value());
    if (!passes_upstream_header(name)) continue;
    if (says_key(value)) continue;
    std::ranges::transform(name, name.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    head_.headers.emplace_back(std::move(name), std::move(value));
  }
  parser_->eager(true);
  return std::nullopt;
}

Task<std::size_t> UpstreamExchange::read_socket(ErrorCode& error) {
  const auto space = buffer_.prepare(std::min(kReadBytes, buffer_.max_size() - buffer_.size()));
  std::size_t num_bytes = 0;
  if (connection_->tls) {
    num_bytes = co_await connection_->tls->async_read_some(space, asio::redirect_error(kUseTask, error));
  } else {
    num_bytes = co_await socket().async_read_some(space, asio::redirect_error(kUseTask, error));
  }
  has_come_ |= num_bytes > 0;
  co_return num_bytes;
}

// Until the parser has come on: to the end of the head, by bytes of the body, to the end. As HttpConnection's, but a
// byte of the body that is there waits for no more.
Task<UpstreamExchange::ErrorCode> UpstreamExchange::read_some() {
  ErrorCode error;
  while (true) {
    if (buffer_.size() > 0) {
      try {
        buffer_.consume(parser_->put(buffer_.data(), error));
      } catch (const std::length_error&) {  // a field of 64 KiB
        co_return http::error::header_limit;
      }
      const bool has_body = piece_ != nullptr && parser_->get().body().size < kPieceBytes;
      if (error != http::error::need_more) co_return error;
      if (has_body) co_return ErrorCode{};
      error = {};
    }
    if (parser_->is_header_done() && buffer_.size() > kMaxChunkHead) co_return http::error::bad_chunk;
    if (buffer_.size() == buffer_.max_size()) co_return http::error::buffer_overflow;
    const std::size_t num_bytes = co_await read_socket(error);
    if (error == asio::error::eof) {
      if (!parser_->got_some()) co_return http::error::end_of_stream;
      error = {};
      parser_->put_eof(error);
      co_return error;
    }
    if (error) co_return error;
    buffer_.commit(num_bytes);
  }
}

Task<std::optional<ApiError>> UpstreamExchange::read(std::string& out) {
  if (piece_ == nullptr) piece_ = std::make_unique_for_overwrite<char[]>(kPieceBytes);
  auto& target = parser_->get().body();
  std::size_t num_bytes = 0;
  set_deadline(config_.read_timeout);
  while (num_bytes == 0 && !parser_->is_done()) {
    target.data = piece_.get();
    target.size = kPieceBytes;
    ErrorCode error = co_await read_some();
    if (error == http::error::need_buffer) error = {};
    num_bytes = kPieceBytes - target.size;
    out.append(piece_.get(), num_bytes);
    if (!error) continue;
    clear_deadline();
    co_return failure("its reply broke off", error);
  }
  clear_deadline();
  co_return std::nullopt;
}

}  // namespace larder
