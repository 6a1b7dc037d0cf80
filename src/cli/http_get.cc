#include "cli/http_get.h"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdint>

#include "base/error.h"

namespace larder {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;

constexpr std::chrono::seconds kPatience{10};
constexpr std::uint64_t kMaxBodyBytes = std::uint64_t{256} << 20;

struct Place {
  std::string authority;  // as the URL has it
  std::string host, port;
};

Place parse_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme))
    throw_invalid("{}: only http://HOST:PORT is read; put a proxy before it for TLS", url);
  std::string rest = url.substr(kScheme.size());
  rest = rest.substr(0, rest.find('/'));
  const auto colon = rest.rfind(':');
  const bool has_port = colon != std::string::npos && rest.find(']', colon) == std::string::npos;
  Place place{rest, has_port ? rest.substr(0, colon) : rest, has_port ? rest.substr(colon + 1) : "80"};
  if (place.host.starts_with('[') && place.host.ends_with(']'))
    place.host = place.host.substr(1, place.host.size() - 2);
  if (place.host.empty()) throw_invalid("{}: the host is missing", url);
  return place;
}

}  // namespace

std::string http_get(const std::string& url, const std::string& path, const std::string& api_key) {
  const Place place = parse_url(url);
  boost::asio::io_context context;
  beast::tcp_stream stream(context);
  http::request<http::empty_body> request(http::verb::get, path, 11);
  request.set(http::field::host, place.authority);
  request.set(http::field::connection, "close");
  if (!api_key.empty()) request.set(http::field::authorization, "Bearer " + api_key);
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxBodyBytes);
  beast::flat_buffer buffer;
  beast::error_code error;
  boost::asio::ip::tcp::resolver resolver(context);
  const auto found = resolver.resolve(place.host, place.port, error);
  if (!error) {
    // Each in turn, so that the time limit holds: it counts for asynchronous calls only.
    const auto run = [&](auto start) {
      stream.expires_after(kPatience);
      start([&](beast::error_code result, auto&&...) { error = result; });
      context.restart();
      context.run();
      return !error;
    };
    const bool has_answer =
        run([&](auto done) { stream.async_connect(found, done); }) &&
        run([&](auto done) { http::async_write(stream, request, done); }) &&
        run([&](auto done) { http::async_read(stream, buffer, parser, done); });
    if (has_answer && parser.get().result_int() == 200) return std::move(parser.get().body());
    if (has_answer)
      throw Error(ErrorKind::kUnavailable,
                  fmt::format("{}{}: the server says {}: {}", url, path, parser.get().result_int(),
                              parser.get().body().substr(0, 200)));
  }
  throw Error(ErrorKind::kUnavailable, fmt::format("{}: {}", url, error.message()));
}

}  // namespace larder
