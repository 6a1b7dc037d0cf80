// A request as a connection reads it.
#pragma once

#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <memory>

#include "server/http/http_connection.h"

namespace larder {

// Shared with the thread that routes it, which may outlast a coroutine that fails.
struct HttpConnection::Incoming : std::enable_shared_from_this<Incoming> {
  explicit Incoming(MemoryBudget& budget) : share(budget) {}

  boost::beast::http::request_parser<boost::beast::http::buffer_body> parser;
  HttpRequest request;
  BudgetShare share;  // of the body
  bool keep_alive = false;
  bool is_http_1_0 = false;
  bool is_head = false;
  bool awaits_continue = false;
  bool awaits_stream = false;     // of an answer that takes an errand first
  bool has_begun_stream = false;  // its head is on its way; keep_alive is what that says
  Timer::time_point ping_at;      // unless it hears of something before

  // A header of a byte takes 80 of memory.
  void drop_headers() { parser.get().clear(); }

  void drop_body() {
    std::string().swap(request.body);  // = {} would keep the memory
    share.release();
  }
};

}  // namespace larder
