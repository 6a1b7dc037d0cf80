#include "server/http/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/spare_memory.h"
#include "server/api/background_response.h"
#include "server/http/endpoint.h"
#include "server/http/heap_trim.h"
#include "server/http/http_connection.h"
#include "server/http/io_threads.h"
#include "server/report/stats_log.h"
#include "server/upstream/upstream.h"

namespace larder {
namespace {

using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr int kBacklog = 4096;
constexpr int kSendBufferBytes = 128 << 10;  // the kernel doubles it: 256 KiB a stream
constexpr milliseconds kTick{500};
constexpr milliseconds kAcceptPause{100};
constexpr milliseconds kFarewell{300};
constexpr milliseconds kLastMoment{2000};  // for closed connections to end
// For a disk tier's segments, the model, the log, the listener, beside the upstream's; half of all where there are few.
constexpr int kReservedFiles = 128;
constexpr int kMaxRefused = 16;  // connections beyond the limit that are told so, at once

// Else no request of the largest size could ever be read.
ServerConfig with_room_for_a_body(ServerConfig config) {
  ServerLimits& limits = config.limits;
  limits.max_total_body_bytes = std::max(limits.max_total_body_bytes, limits.max_body_bytes);
  return config;
}

// As under nohup: what its terminal does is nothing to it.
bool ignores_hangups() {
  struct sigaction action {};
  return ::sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// As many files as the system lets us have. Returns that number.
rlim_t raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) getrlimit(RLIMIT_NOFILE, &limit);
  }
  return limit.rlim_cur;
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(ServerConfig config, const ServedModel& model, BoundEndpoint place);
  ~Impl() {
    model_.engine.set_after_updates({});
    router_.backgrounds().drop();
    is_ended_ = true;
    if (Upstream* const upstream = router_.upstream()) upstream->connections().close_all();
  }

  int port() const { return port_; }
  void run();
  void shutdown(bool drain);

 private:
  // Of one thread and without a strand, which needs memory to have something done: for want of it a strand drops what has
  // come, and may do nothing any more.
  using Control = asio::io_context::executor_type;
  using Acceptor = asio::basic_socket_acceptor<tcp, Control>;
  using ControlTimer = asio::basic_waitable_timer<std::chrono::steady_clock,
                                                  asio::wait_traits<std::chrono::steady_clock>, Control>;

  void listen(BoundEndpoint place);
  void await_client();
  void accept_one();
  void admit(Socket socket);
  void await_signal();
  void tick();
  void tell_of_memory();
  void announce_end();
  void begin_drain();
  void interrupt();
  void end_now();
  BackgroundHost host_of_backgrounds();
  std::vector<std::shared_ptr<HttpConnection>> connections();
  void forget(HttpConnection* connection);
  void finish_if_empty();

  const ServerConfig config_;
  const ServedModel& model_;
  int max_connections_ = 0;
  ServerMetrics metrics_;
  ServerGauges gauges_;
  const Router router_;
  bool is_accepting_ = false;  // of control_io_
  MemoryBudget body_budget_;
  MemoryBudget header_budget_;
  MemoryBudget reply_budget_;
  WakeQueue wakes_;
  ConnectionContext context_;
  std::mutex mutex_;
  std::unordered_map<HttpConnection*, std::weak_ptr<HttpConnection>> connections_;  // by mutex_
  std::atomic<bool> is_ended_ = false;  // nothing runs any more
  // Destroyed in the opposite order, coroutines that are left with io_: jobs of prepare_threads_ end before the sockets
  // that they answer to.
  asio::io_context io_;
  asio::io_context prepare_io_;
  PrepareQueue prepares_;
  IoThreads prepare_threads_;
  asio::io_context control_io_{1};  // of run()'s thread, which owns everything below but the connections' table
  IoThreads control_thread_;
  Acceptor acceptor_;
  asio::basic_signal_set<Control> signals_;
  ControlTimer ticker_;
  ControlTimer accept_pause_;
  int port_ = 0;
  std::optional<std::chrono::steady_clock::time_point> drain_at_;  // announced
  bool ending_ = false;
  bool interrupted_ = false;
  std::chrono::steady_clock::time_point drain_deadline_;
  std::optional<std::chrono::steady_clock::time_point> last_moment_;  // of closed connections
  std::chrono::steady_clock::time_point last_line_;
  std::uint64_t num_spares_told_ = 0;
  StatsLog log_;
  HeapTrim heap_trim_;
};

HttpServer::Impl::Impl(ServerConfig config, const ServedModel& model, BoundEndpoint place)
    : config_(with_room_for_a_body(std::move(config))),
      model_(model),
      metrics_(model.name, model.max_model_len),
      router_(config_, model_, metrics_, gauges_),
      body_budget_(config_.limits.max_total_body_bytes),
      header_budget_(config_.limits.max_total_header_bytes),
      reply_budget_(config_.limits.max_total_reply_bytes),
      wakes_(io_),
      context_{.config = config_,
               .router = router_,
               .metrics = metrics_,
               .gauges = gauges_,
               .prepares = prepares_,
               .wakes = wakes_,
               .body_budget = body_budget_,
               .header_budget = header_budget_,
               .reply_budget = reply_budget_,
               .on_closed = [this](HttpConnection* connection) { forget(connection); }},
      io_(std::max(config_.num_io_threads, 1)),
      prepares_(prepare_io_),
      prepare_threads_(prepare_io_, std::max(config_.num_prepare_threads, 1),
                       "that prepares requests"),
      control_thread_(control_io_, 0, "that listens"),
      acceptor_(control_io_.get_executor()),
      signals_(control_io_.get_executor()),
      ticker_(control_io_.get_executor()),
      accept_pause_(control_io_.get_executor()) {
  const auto num_files = static_cast<long long>(std::min<rlim_t>(raise_file_limit(), 1 << 20));
  const int num_upstream = config_.upstream ? config_.upstream->max_connections : 0;
  const auto num_reserved = std::min<long long>(kReservedFiles + num_upstream, num_files / 2);
  max_connections_ = static_cast<int>(std::clamp<long long>(
      num_files - num_reserved, 1, std::max(config_.limits.max_connections, 1)));
  listen(std::move(place));
  // From now on, so that whoever reads that the server is ready may end it: run() hears of it then.
  signals_.add(SIGINT);
  signals_.add(SIGTERM);
  if (!ignores_hangups()) signals_.add(SIGHUP);
  router_.backgrounds().serve_by(host_of_backgrounds());
  model_.engine.set_after_updates([this] { wakes_.flush(); });
}

BackgroundHost HttpServer::Impl::host_of_backgrounds() {
  const auto prepare = [this](std::unique_ptr<NextTurn> turn) {
    try {
      prepares_.post_idle([this, kept = std::shared_ptr<NextTurn>(std::move(turn))] {
        router_.prepare_next_turn(std::move(*kept));
      });
    } catch (const std::exception&) {
      // Without memory nothing is done ahead.
    }
  };
  return {.replies = &reply_budget_,
          .num_generations = &gauges_.num_generations,
          .wake_later = [this](std::weak_ptr<Wakeable> who) { wakes_.push(std::move(who)); },
          .wake_now = [this] { wakes_.flush(); },
          .prepare = prepare};
}

void HttpServer::Impl::listen(BoundEndpoint place) {
  try {
    acceptor_.assign(place.protocol(), place.socket());
    place.release();
    acceptor_.set_option(asio::socket_base::reuse_address(true));  // so that its connections, ending, keep no later server out
    acceptor_.listen(kBacklog);
    acceptor_.non_blocking(true);  // who has come may have gone again: that is told, not waited out
    acceptor_.set_option(asio::socket_base::enable_connection_aborted(true));
    port_ = acceptor_.local_endpoint().port();
  } catch (const boost::system::system_error& error) {
    fail_to_listen(config_, error.code());
  }
}

void HttpServer::Impl::run() {
  IoThreads threads(io_, std::max(config_.num_io_threads, 1), "that serves connections");
  await_signal();
  last_line_ = std::chrono::steady_clock::now();
  await_client();
  tick();
  control_thread_.finish();
  threads.finish();
  prepare_threads_.finish();
}

// Accepted only once it is there: the place for a socket, too, wants memory.
void HttpServer::Impl::await_client() {
  if (is_accepting_ || !acceptor_.is_open()) return;
  acceptor_.async_wait(Acceptor::wait_read, [this](error_code) {
    is_accepting_ = false;
    accept_one();
  });
  is_accepting_ = true;
}

void HttpServer::Impl::accept_one() {
  if (!acceptor_.is_open()) return;
  error_code error;
  try {
    Socket socket = acceptor_.accept(asio::make_strand(io_), error);
    if (!error) admit(std::move(socket));
  } catch (const std::exception&) {
    error = asio::error::no_memory;
  }
  // No file descriptors, no memory: the connections that are open go first.
  const bool has_gone = error == asio::error::connection_aborted || error == asio::error::would_block ||
                        error == boost::system::errc::protocol_error;
  const bool is_refused = error && !has_gone;
  // Since the last tick, so that it is not over: what it has given out may be kept for long.
  const SpareStats spare = spare_stats();
  const bool is_short = spare.num_taken != num_spares_told_ && spare.used_bytes > kSpareBytes / 8;
  if (!is_refused && !is_short) return await_client();
  if (is_refused) spdlog::warn("cannot accept: {}", error.message());
  accept_pause_.expires_after(kAcceptPause);
  accept_pause_.async_wait([this](error_code ended) {
    if (!ended) await_client();
  });
}

void HttpServer::Impl::admit(Socket socket) {
  if (ending_) return;
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
  const int num_open = gauges_.num_connections.load();
  const bool full = num_open >= max_connections_;
  if (full) metrics_.count_rejection("too_many_connections");
  // Each stays for a while, with a file that the tiers may need: so many, and the rest just go.
  if (num_open >= max_connections_ + kMaxRefused) return;
  const auto connection = std::make_shared<HttpConnection>(std::move(socket), context_);
  {
    const std::lock_guard lock(mutex_);
    connections_.emplace(connection.get(), connection);
  }
  // On the connections' threads: a coroutine without memory for its beginning may end the thread that begins it.
  asio::post(io_, [this, connection, full] {
    if (!full) return connection->start();
    connection->start_refusing(
        fmt::format("there are {} connections, as many as are allowed; close idle ones, raise "
                    "--max-connections or the limit of open files",
                    max_connections_));
  });
}

void HttpServer::Impl::await_signal() {
  signals_.async_wait([this](error_code error, int number) {
    if (error) return;
    await_signal();  // first: the end takes it away again
    const bool is_second = gauges_.is_leaving;
    spdlog::info("signal {}: {}", number, is_second ? "ending now" : "ending after the running requests");
    is_second ? interrupt() : announce_end();
  });
}

void HttpServer::Impl::shutdown(bool drain) {
  asio::post(control_io_, [this, drain] { drain ? announce_end() : end_now(); });
}

// Who sends requests here looks at /health from time to time: until it has, what it sends is answered, by connections that
// close behind it. A connection that is closed while a request is on its way to it would lose that.
void HttpServer::Impl::announce_end() {
  if (gauges_.is_leaving.exchange(true)) return;
  if (config_.drain_delay.count() == 0) return begin_drain();
  drain_at_ = std::chrono::steady_clock::now() + config_.drain_delay;
}

void HttpServer::Impl::begin_drain() {
  if (ending_) return;
  ending_ = gauges_.is_leaving = true;
  drain_deadline_ = std::chrono::steady_clock::now() + config_.drain_timeout;
  error_code ignored;
  acceptor_.close(ignored);
  for (const auto& connection : connections()) connection->drain();
  finish_if_empty();
}

// Who is still answered hears why the answer ends, and has a moment to read it.
void HttpServer::Impl::interrupt() {
  if (std::exchange(interrupted_, true)) return end_now();
  begin_drain();
  drain_deadline_ = std::chrono::steady_clock::now() + kFarewell;
  router_.backgrounds().interrupt();  // first: connections may stream what it tells
  for (const auto& connection : connections()) connection->interrupt();
  finish_if_empty();  // this signal may have asked for one more after the end
}

void HttpServer::Impl::end_now() {
  begin_drain();
  if (!last_moment_) last_moment_ = std::chrono::steady_clock::now() + kLastMoment;
  for (const auto& connection : connections()) connection->close();
  finish_if_empty();
}

void HttpServer::Impl::tick() {
  ticker_.expires_after(kTick);  // first: what follows may fail, and what it takes the last tick has just left
  ticker_.async_wait([this](error_code error) {
    if (!error) tick();
  });
  const auto now = std::chrono::steady_clock::now();
  if (drain_at_ && now >= *drain_at_) begin_drain();
  if (ending_ && now >= drain_deadline_) interrupt();
  if (last_moment_ && now >= *last_moment_) {
    // None is known to; but no connection that does is to keep the tiers from being written.
    spdlog::error("{} connections have not ended; the server ends without them", connections().size());
    last_moment_.reset();
    io_.stop();
    control_io_.stop();
  }
  if (!model_.engine.alive()) {
    for (const auto& connection : connections()) connection->poke();
  }
  if (router_.backgrounds().num_under_way() > 0)
    asio::post(io_, [this] { router_.backgrounds().look_again(); });
  if (config_.log_interval.count() > 0 && now - last_line_ >= config_.log_interval) {
    const std::chrono::duration<double> elapsed = now - std::exchange(last_line_, now);
    if (const auto line = log_.line(model_.engine.stats(), elapsed.count()))
      spdlog::info("{}", *line);
  }
  tell_of_memory();
  await_client();  // again, where there was no memory to wait any longer
  if (Upstream* const upstream = router_.upstream()) upstream->connections().close_old(now);
  const bool is_idle = gauges_.num_generations == 0 && body_budget_.used() == 0;
  is_idle ? heap_trim_.run() : heap_trim_.note_use();
  if (ending_) finish_if_empty();
}

void HttpServer::Impl::tell_of_memory() {
  const SpareStats spare = spare_stats();
  if (std::exchange(num_spares_told_, spare.num_taken) == spare.num_taken) return;
  spdlog::warn("memory has run out; of what is set aside for what is small {} of {} bytes are in use", spare.used_bytes,
               kSpareBytes);
}

std::vector<std::shared_ptr<HttpConnection>> HttpServer::Impl::connections() {
  std::vector<std::shared_ptr<HttpConnection>> result;
  const std::lock_guard lock(mutex_);
  result.reserve(connections_.size());  // first: one that went here would want the lock
  for (const auto& [key, weak] : connections_) {
    if (auto connection = weak.lock()) result.push_back(std::move(connection));
  }
  return result;
}

void HttpServer::Impl::forget(HttpConnection* connection) {
  --gauges_.num_connections;
  {
    const std::lock_guard lock(mutex_);
    connections_.erase(connection);
  }
  if (is_ended_) return;
  try {
    asio::post(control_io_, [this] {
      if (ending_) finish_if_empty();
    });
  } catch (const std::exception&) {
    // Without memory: the next tick looks, too.
  }
}

// Takes away the last pending operations, so that run() returns.
void HttpServer::Impl::finish_if_empty() {
  {
    const std::lock_guard lock(mutex_);
    if (!connections_.empty()) return;
  }
  // Nobody hears of these any more: what is stored ends with the server.
  router_.backgrounds().drop();
  error_code ignored;
  signals_.cancel(ignored);
  ticker_.cancel();
  accept_pause_.cancel();
}

HttpServer::HttpServer(ServerConfig config, const ServedModel& model) : HttpServer(config, model, BoundEndpoint(config)) {}
HttpServer::HttpServer(ServerConfig config, const ServedModel& model, BoundEndpoint place)
    : impl_(std::make_unique<Impl>(std::move(config), model, std::move(place))) {}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return impl_->port(); }
void HttpServer::run() { impl_->run(); }
void HttpServer::shutdown(bool drain) { impl_->shutdown(drain); }

}  // namespace larder
