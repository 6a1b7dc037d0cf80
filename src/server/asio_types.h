// Boost.Asio with a strand as the executor of everything: sockets, timers, coroutines.
#pragma once

// clang-format off
#include <utility>  // Boost 1.74's awaitable.hpp forgets it
// clang-format on

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

namespace larder {

namespace asio = boost::asio;

using Strand = asio::strand<asio::io_context::executor_type>;
using Socket = asio::basic_stream_socket<asio::ip::tcp, Strand>;
using Timer = asio::basic_waitable_timer<std::chrono::steady_clock,
                                         asio::wait_traits<std::chrono::steady_clock>, Strand>;
template <class Result>
using Task = asio::awaitable<Result, Strand>;
inline constexpr asio::use_awaitable_t<Strand> kUseTask;

}  // namespace larder
