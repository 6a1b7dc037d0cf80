#include "server/report/kv_event_publisher.h"

#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <deque>
#include <exception>
#include <latch>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "base/error.h"
#include "base/port.h"
#include "base/start_thread.h"
#include "kv/cache/prefix_cache.h"
#include "server/unix_time.h"

namespace larder {
namespace {

constexpr int kSubscriberMessages = 10'000;  // kept for one that is slow, some 25 MB; it sees the gap behind them
constexpr int kLingerMs = 100;
constexpr std::int64_t kMaxIncomingBytes = 4096;  // of a frame: a topic or a sequence number
constexpr std::chrono::milliseconds kRetryInterval{1000};
constexpr std::size_t kSequenceBytes = 8;  // big-endian
constexpr std::uint64_t kEndOfReplay = ~std::uint64_t{0};
constexpr const char* kPurpose = "that publishes KV events";

zmq::message_t to_message(std::uint64_t sequence) {
  std::array<std::uint8_t, kSequenceBytes> bytes;
  for (auto byte = bytes.rbegin(); byte != bytes.rend(); ++byte, sequence >>= 8)
    *byte = static_cast<std::uint8_t>(sequence);
  return zmq::message_t(bytes.data(), bytes.size());
}

// frame: of kSequenceBytes.
std::uint64_t to_sequence(const zmq::message_t& frame) {
  std::uint64_t sequence = 0;
  for (std::size_t i = 0; i < kSequenceBytes; ++i) sequence = sequence << 8 | frame.data<std::uint8_t>()[i];
  return sequence;
}

// The content is shared, not copied, where it is of any size.
zmq::message_t shared(zmq::message_t& message) {
  zmq::message_t other;
  other.copy(message);
  return other;
}

// Wakes a poll.
class WakeFile {
 public:
  WakeFile() : file_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (file_ < 0)
      throw Error(
          ErrorKind::kUnavailable,
          fmt::format("--kv-events: no file to wake its thread by: {}; raise the limit of open files (ulimit -n)",
                      std::generic_category().message(errno)));
  }
  WakeFile(const WakeFile&) = delete;
  ~WakeFile() { ::close(file_); }

  int get() const { return file_; }
  void wake() { static_cast<void>(::eventfd_write(file_, 1)); }  // fails only where it is awake already
  void reset() {
    eventfd_t count = 0;
    static_cast<void>(::eventfd_read(file_, &count));
  }

 private:
  const int file_;
};

// libzmq aborts where it gets no thread: its two and ours are tried before.
void try_threads() {
  std::latch all_tried(1);
  std::vector<std::thread> threads;
  const auto end = [&] {
    all_tried.count_down();
    for (std::thread& thread : threads) thread.join();
  };
  try {
    for (int i = 0; i < 3; ++i) threads.push_back(start_thread(kPurpose, [&] { all_tried.wait(); }));
  } catch (...) {
    end();
    throw;
  }
  end();
}

[[noreturn]] void throw_not_bound(const char* option, const std::string& address, int error) {
  const bool is_taken = error == EADDRINUSE;
  const bool is_wrong = error == EINVAL || error == ENODEV || error == EADDRNOTAVAIL || error == EPROTONOSUPPORT;
  const char* fix = is_wrong ? "give an IP address of this machine and a port, as in tcp://127.0.0.1:5557, or "
                               "tcp://*:5557 for all of its addresses"
                    : is_taken && address.starts_with("tcp://") ? "choose another port"
                                                                : "choose another address";
  throw Error(is_wrong ? ErrorKind::kInvalidArgument : ErrorKind::kUnavailable,
              fmt::format("{} {}: cannot listen there: {}; {}", option, address, ::zmq_strerror(error), fix));
}

// libzmq takes 99999 for 34463, and 5557x for 5557.
bool has_port(std::string_view address) { return parse_port(address.substr(address.rfind(':') + 1)).has_value(); }

void check_address(const char* option, const std::string& address) {
  const bool is_tcp = address.starts_with("tcp://");
  if (!is_tcp && !address.starts_with("ipc://"))
    throw_invalid("{} {}: is no address; give tcp://HOST:PORT, as in tcp://*:5557, or ipc://PATH", option, address);
  if (is_tcp && !has_port(address))
    throw_invalid("{} {}: must end with a port, a whole number up to 65535, as in tcp://*:5557", option, address);
}

// Whether somebody listens at an ipc:// address: libzmq takes its path from anyone.
bool is_path_taken(std::string_view address) {
  constexpr std::string_view kScheme = "ipc://";
  sockaddr_un there{.sun_family = AF_UNIX, .sun_path = {}};
  if (!address.starts_with(kScheme) || address.size() - kScheme.size() >= sizeof there.sun_path) return false;
  address.substr(kScheme.size()).copy(there.sun_path, sizeof there.sun_path - 1);
  const int file = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (file < 0) return false;
  const bool is_accepted = ::connect(file, reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0;
  const bool is_taken = is_accepted || errno == EAGAIN || errno == EPROTOTYPE;  // busy; of another kind
  ::close(file);
  return is_taken;
}

// Returns the address with the port that was chosen.
std::string bind(zmq::socket_t& socket, const char* option, const std::string& address) {
  socket.set(zmq::sockopt::linger, kLingerMs);
  socket.set(zmq::sockopt::maxmsgsize, kMaxIncomingBytes);
  // So that what is kept for a subscriber whose machine is gone is given up.
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  // With it * is all addresses of both kinds; an IPv4 address would be told as an IPv6 one.
  socket.set(zmq::sockopt::ipv6, address.find_first_of("[*") != std::string::npos);
  if (is_path_taken(address)) throw_not_bound(option, address, EADDRINUSE);
  try {
    socket.bind(address);
  } catch (const zmq::error_t& error) {
    throw_not_bound(option, address, error.num());
  }
  return socket.get(zmq::sockopt::last_endpoint);
}

// Signals are for the other threads: here they would end a wait in libzmq as an error.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

class KvEventPublisher::Impl {
 public:
  explicit Impl(KvEventPublisherConfig config);
  ~Impl();

  void push(KvEvents events);
  Stats stats() const;

  std::string endpoint_;  // as bound; not written any more once the thread runs
  std::string replay_endpoint_;

 private:
  struct Message {
    std::uint64_t sequence;
    zmq::message_t payload;
  };

  // Of the thread.
  void run();
  // False once all is sent and no more will come.
  bool send_queued();
  void send_batch(const KvEvents& events);
  void send_clear();
  void greet();
  void send(const std::vector<std::uint8_t>& payload);
  void send(zmq::message_t kept);
  void keep(zmq::message_t payload);
  void wait();
  void read_subscriptions();
  void answer_replay();
  bool send_again(zmq::message_t& client, std::uint64_t sequence, zmq::message_t payload);

  const KvEventPublisherConfig config_;
  const Digest plain_salt_ = salt_digest(config_.plain_salt);
  WakeFile wake_;
  std::optional<zmq::context_t> context_;  // outlives its sockets, and waits for what lingers in them

  std::mutex mutex_;  // of what follows
  std::vector<KvEvents> queue_;
  std::size_t num_queued_ = 0;  // events
  bool has_dropped_ = false;    // since the thread looked last
  bool is_ending_ = false;

  std::atomic<std::uint64_t> num_messages_{0};
  std::atomic<std::uint64_t> num_events_stored_{0};
  std::atomic<std::uint64_t> num_events_removed_{0};
  std::atomic<std::uint64_t> num_dropped_{0};

  // The thread's, once it runs.
  std::optional<zmq::socket_t> publisher_;
  std::optional<zmq::socket_t> replay_;
  std::vector<KvEvents> taken_;
  std::deque<Message> buffer_;  // the latest, for replays
  std::size_t buffered_bytes_ = 0;
  std::uint64_t next_sequence_ = config_.first_sequence;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  bool has_warned_ = false;
  // Routers may believe in blocks whose removal they were not told of. Once they are cleared, they do not know what
  // is still there until it is stored anew: that loses hits, and a hit believed in vain would lose more.
  bool must_clear_ = true;
  // Who subscribes later is told all again where all is kept, since some routers ask for no replay, or take only a whole
  // one, and what is stored behind a block they do not know counts for nothing. Else it learns by an empty message that
  // it has missed those before.
  bool must_greet_ = false;
  std::uint64_t begins_ = config_.first_sequence;  // the first message of all that is to be known; it clears
  std::chrono::steady_clock::time_point may_greet_ = begin_;
  bool is_replay_asked_ = false;

  std::thread thread_;
};

KvEventPublisher::Impl::Impl(KvEventPublisherConfig config) : config_(std::move(config)) {
  check(config_);
  // A batch has an event at least, so that a push finds room.
  queue_.reserve(kMaxQueuedEvents);
  taken_.reserve(kMaxQueuedEvents);
  try_threads();
  try {
    context_.emplace(1);
    publisher_.emplace(*context_, zmq::socket_type::xpub);
    publisher_->set(zmq::sockopt::xpub_verbose, 1);  // tells of each subscription
    publisher_->set(zmq::sockopt::sndhwm, kSubscriberMessages);
    endpoint_ = bind(*publisher_, "--kv-events", config_.endpoint);
    if (!config_.replay_endpoint.empty()) {
      replay_.emplace(*context_, zmq::socket_type::router);
      // All that is kept, at once. A client that asks for more than it reads hears so by the end that is missing.
      replay_->set(zmq::sockopt::sndhwm, static_cast<int>(kMaxBufferedMessages) + 1);
      replay_->set(zmq::sockopt::router_mandatory, 1);
      replay_endpoint_ = bind(*replay_, "--kv-events-replay", config_.replay_endpoint);
    }
  } catch (const zmq::error_t& error) {
    throw Error(ErrorKind::kUnavailable,
                fmt::format("--kv-events {}: cannot open a socket: {}", config_.endpoint, error.what()));
  }
  thread_ = start_thread(kPurpose, [this] { run(); });
}

KvEventPublisher::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  wake_.wake();
  thread_.join();
}

void KvEventPublisher::Impl::push(KvEvents events) {
  if (events.empty()) return;
  bool is_waking = false;
  {
    const std::lock_guard lock(mutex_);
    is_waking = queue_.empty() && !has_dropped_;  // else who was before does it
    if (num_queued_ + events.size() > kMaxQueuedEvents) {
      num_dropped_.fetch_add(num_queued_ + events.size(), std::memory_order_relaxed);
      queue_.clear();
      num_queued_ = 0;
      has_dropped_ = true;  // the thread logs it: a log may wait
    } else {
      num_queued_ += events.size();
      queue_.push_back(std::move(events));
    }
  }
  if (is_waking) wake_.wake();
}

KvEventPublisher::Stats KvEventPublisher::Impl::stats() const {
  return {.num_messages = num_messages_.load(std::memory_order_relaxed),
          .num_events_stored = num_events_stored_.load(std::memory_order_relaxed),
          .num_events_removed = num_events_removed_.load(std::memory_order_relaxed),
          .num_dropped = num_dropped_.load(std::memory_order_relaxed)};
}

void KvEventPublisher::Impl::run() {
  block_signals();
  for (;;) {
    try {
      // First, so that a process's first message is this one alone.
      if (must_clear_) send_clear();
      if (!send_queued()) return;
      greet();
      // After what was pushed before it was asked for.
      if (is_replay_asked_) answer_replay();
    } catch (const std::exception& error) {  // memory: what was to be sent is lost
      must_clear_ = true;
      spdlog::error("KV events: {}", error.what());
      const std::lock_guard lock(mutex_);
      if (is_ending_) return;
    }
    wait();
  }
}

bool KvEventPublisher::Impl::send_queued() {
  bool has_dropped = false;
  bool is_ending = false;
  taken_.clear();  // what an error has left
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(queue_);
    num_queued_ = 0;
    has_dropped = std::exchange(has_dropped_, false);
    is_ending = is_ending_;
  }
  if (has_dropped) {
    must_clear_ = true;
    if (!std::exchange(has_warned_, true))
      spdlog::warn(
          "KV events: more than {} waited to be sent and were dropped; routers are told to forget this "
          "server's blocks (said once)",
          kMaxQueuedEvents);
    send_clear();
  }
  for (const KvEvents& events : taken_) send_batch(events);
  taken_.clear();
  return !is_ending;
}

void KvEventPublisher::Impl::send_batch(const KvEvents& events) {
  const std::vector<std::uint8_t> payload = encode_kv_events(events, exact_unix_time_s(), config_.format, plain_salt_);
  const auto count = [&](KvEvent::Kind kind) {
    return static_cast<std::uint64_t>(std::ranges::count(events, kind, &KvEvent::kind));
  };
  num_events_stored_.fetch_add(count(KvEvent::Kind::kStored), std::memory_order_relaxed);
  num_events_removed_.fetch_add(count(KvEvent::Kind::kRemoved), std::memory_order_relaxed);
  send(payload);
}

void KvEventPublisher::Impl::send_clear() {
  send(encode_kv_clear(exact_unix_time_s(), config_.format));
  must_clear_ = false;
}

// Seldom, so that who comes and goes takes neither the network nor what is kept.
void KvEventPublisher::Impl::greet() {
  const auto now = std::chrono::steady_clock::now();
  if (!must_greet_ || now < may_greet_) return;
  must_greet_ = false;
  may_greet_ = now + config_.greet_interval;
  // More would not wait for a subscriber that is slow.
  const bool has_all = !buffer_.empty() && buffer_.front().sequence == begins_ && buffer_.size() <= kSubscriberMessages / 2;
  if (!has_all) return send(encode_kv_events({}, exact_unix_time_s(), config_.format, plain_salt_));
  std::deque<Message> all = std::exchange(buffer_, {});
  buffered_bytes_ = 0;
  begins_ = next_sequence_;
  for (Message& message : all) send(std::move(message.payload));
}

void KvEventPublisher::Impl::send(const std::vector<std::uint8_t>& payload) {
  send(zmq::message_t(payload.data(), payload.size()));
}

void KvEventPublisher::Impl::send(zmq::message_t kept) {
  // All frames before the first is sent: none may be missing behind it.
  zmq::message_t topic(config_.topic.data(), config_.topic.size());
  zmq::message_t sequence = to_message(next_sequence_);
  zmq::message_t sent = shared(kept);
  num_messages_.fetch_add(1, std::memory_order_relaxed);
  publisher_->send(topic, zmq::send_flags::sndmore);
  publisher_->send(sequence, zmq::send_flags::sndmore);
  publisher_->send(sent, zmq::send_flags::none);
  keep(std::move(kept));
}

void KvEventPublisher::Impl::keep(zmq::message_t payload) {
  const std::uint64_t sequence = next_sequence_++;
  if (!replay_) return;
  buffered_bytes_ += payload.size();
  buffer_.push_back({sequence, std::move(payload)});
  while (!buffer_.empty() && (buffered_bytes_ > config_.buffer_bytes || buffer_.size() > kMaxBufferedMessages)) {
    buffered_bytes_ -= buffer_.front().payload.size();
    buffer_.pop_front();
  }
}

void KvEventPublisher::Impl::wait() {
  std::array<zmq::pollitem_t, 3> items = {{{nullptr, wake_.get(), ZMQ_POLLIN, 0},
                                           {publisher_->handle(), 0, ZMQ_POLLIN, 0},
                                           {replay_ ? replay_->handle() : nullptr, 0, ZMQ_POLLIN, 0}}};
  zmq::poll(items.data(), replay_ ? 3 : 2, must_clear_ || must_greet_ ? kRetryInterval : std::chrono::milliseconds(-1));
  if (items[0].revents != 0) wake_.reset();
  if (items[1].revents != 0) read_subscriptions();
  is_replay_asked_ = replay_ && items[2].revents != 0;
}

void KvEventPublisher::Impl::read_subscriptions() {
  for (zmq::message_t message; publisher_->recv(message, zmq::recv_flags::dontwait);) {
    const bool is_new = message.size() > 0 && message.data<std::uint8_t>()[0] == 1;
    if (!is_new) continue;
    const bool may_return = std::chrono::steady_clock::now() < begin_ + config_.return_time;
    must_clear_ = must_clear_ || may_return;
    must_greet_ = must_greet_ || (!may_return && replay_);
  }
}

void KvEventPublisher::Impl::answer_replay() {
  is_replay_asked_ = false;
  std::array<zmq::message_t, 3> frames;  // client, nothing, sequence
  std::size_t num_frames = 0;
  for (bool has_more = true; has_more; ++num_frames) {
    zmq::message_t frame;
    if (!replay_->recv(frame, zmq::recv_flags::dontwait)) return;
    has_more = frame.more();
    if (num_frames < frames.size()) frames[num_frames] = std::move(frame);
  }
  if (num_frames != frames.size() || !frames[1].empty() || frames[2].size() != kSequenceBytes) return;
  const std::uint64_t begin = to_sequence(frames[2]);
  try {
    for (Message& message : buffer_) {
      if (message.sequence < begin) continue;
      if (!send_again(frames[0], message.sequence, shared(message.payload))) return;
    }
    send_again(frames[0], kEndOfReplay, {});
  } catch (const zmq::error_t& error) {
    if (error.num() != EHOSTUNREACH) throw;  // it has gone
  }
}

// False where the client does not read what it has asked for.
bool KvEventPublisher::Impl::send_again(zmq::message_t& client, std::uint64_t sequence, zmq::message_t payload) {
  const auto flags = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
  zmq::message_t to = shared(client);
  if (!replay_->send(to, flags)) return false;
  replay_->send(zmq::message_t(), flags);
  // As vLLM does it since it has events as maps.
  const bool is_end = sequence == kEndOfReplay;
  if (config_.format == KvEventFormat::kMap)
    replay_->send(is_end ? zmq::message_t() : zmq::message_t(config_.topic.data(), config_.topic.size()), flags);
  replay_->send(to_message(sequence), flags);
  replay_->send(payload, zmq::send_flags::dontwait);
  return true;
}

KvEventPublisher::KvEventPublisher(KvEventPublisherConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {}

KvEventPublisher::~KvEventPublisher() = default;

void KvEventPublisher::check(const KvEventPublisherConfig& config) {
  check_address("--kv-events", config.endpoint);
  if (!config.replay_endpoint.empty()) check_address("--kv-events-replay", config.replay_endpoint);
}

void KvEventPublisher::push(KvEvents events) { impl_->push(std::move(events)); }

KvEventPublisher::Stats KvEventPublisher::stats() const { return impl_->stats(); }

const std::string& KvEventPublisher::endpoint() const { return impl_->endpoint_; }

const std::string& KvEventPublisher::replay_endpoint() const { return impl_->replay_endpoint_; }

}  // namespace larder
