#include "cluster/worker_links.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"

namespace larder {
namespace {

constexpr std::int64_t kConnectNs = 10 * kNsPerSecond;  // at start
constexpr std::int64_t kBusyNs = 5 * kNsPerSecond;      // likewise, where another server may just be going
constexpr std::int64_t kLoadingNs = 60 * kNsPerSecond;  // of a worker's silence while it loads
constexpr std::int64_t kMostLoadingNs = 3600 * kNsPerSecond;
// Where a worker was lost before, a step has a short look for it.
constexpr std::int64_t kLostNs = 2 * kNsPerSecond;
constexpr std::int64_t kRetryNs = 100 * kNsPerMs;
// Shares by speed come in such parts of the whole.
constexpr double kParts = 1000;

}  // namespace

struct WorkerLinks::Link {
  Link(const WorkerAddress& of, const std::atomic<bool>& stop)
      : address(of), host(of.host, of.port), stream(-1, stop) {}

  const WorkerAddress address;
  RemoteHost host;
  MessageStream stream;
  Offer offer;
  int machine = 0;
  bool is_due = false;       // outputs are to come
  bool is_lost = false;      // since a step that failed for it
  bool is_told_lost = false;  // the log has been
  std::atomic<bool> is_up{false};
  std::atomic<std::uint64_t> num_losses{0};
  std::atomic<std::uint64_t> sent_bytes{0};
  std::atomic<std::uint64_t> received_bytes{0};
  std::atomic<std::int64_t> wait_ns{0};
};

WorkerLinks::WorkerLinks(const WorkerLinksConfig& config) : config_(config) {
  for (const WorkerAddress& address : config.workers) {
    links_.push_back(std::make_unique<Link>(address, stops_));
    Link& link = *links_.back();
    link.machine = static_cast<int>(links_.size());
    if (!open_first(link))
      throw Error(ErrorKind::kUnavailable,
                  fmt::format("worker {}: {}", address.display(), link.stream.error()));
  }
  share_out();
}

WorkerLinks::~WorkerLinks() = default;

void WorkerLinks::share_out() {
  std::vector<std::uint32_t> shares = config_.shares;
  if (shares.empty()) {
    double all = config_.own_bytes_per_second;
    for (const auto& link : links_) all += link->offer.bytes_per_second;
    const auto part_of = [&](double speed) {
      return static_cast<std::uint32_t>(std::clamp(std::round(kParts * speed / all), 1.0, kParts));
    };
    shares.push_back(part_of(config_.own_bytes_per_second));
    for (const auto& link : links_) shares.push_back(part_of(link->offer.bytes_per_second));
  }
  CHECK(shares.size() == links_.size() + 1, shares.size());
  split_ = OutputSplit(shares);
}

bool WorkerLinks::open_first(Link& link) {
  const std::int64_t deadline_ns = steady_now_ns() + kBusyNs;
  while (!open(link, steady_now_ns() + kConnectNs)) {
    if (link.stream.error() != kBusyMessage || steady_now_ns() >= deadline_ns) return false;
    wait_before_next_try();
  }
  return true;
}

// Up to the worker's offer.
bool WorkerLinks::open(Link& link, std::int64_t deadline_ns) {
  MessageStream& stream = link.stream;
  const auto left_ns = [&] { return deadline_ns - steady_now_ns(); };
  if (!stream.connect(link.host, deadline_ns)) return false;
  try {
    if (!stream.expect_text(MessageType::kWelcome, left_ns())) return false;
    const Welcome welcome = read_welcome(stream.text());
    if (welcome.protocol != kWorkerProtocol)
      return stream.fail(fmt::format("it speaks protocol {} of workers, this server {}; run the same version of Larder "
                                     "on both",
                                     welcome.protocol, kWorkerProtocol));
    if (welcome.wants_key && config_.key.empty()) return stream.fail("it wants a key; give it by --worker-key-file");
    Hello hello = config_.hello;
    hello.proof = key_proof(welcome.nonce, config_.key);
    if (!stream.send_text(MessageType::kHello, write_text(hello), left_ns())) return false;
    if (!stream.expect_text(MessageType::kOffer, left_ns())) return false;
    link.offer = read_offer(stream.text());
  } catch (const Error& error) {
    return stream.fail(error.what());
  }
  return true;
}

void WorkerLinks::assign(const StageLimits& limits) {
  limits_ = limits;
  for (const auto& link : links_) {
    const Assign assign{{split_.shares().begin(), split_.shares().end()}, link->machine, limits_};
    // Where that fails await_ready() will see it.
    static_cast<void>(link->stream.send_text(MessageType::kAssign, write_text(assign), kConnectNs));
  }
}

bool WorkerLinks::await_ready(Link& link, std::int64_t patience_ns) {
  MessageHeader header;
  const std::int64_t deadline_ns = steady_now_ns() + kMostLoadingNs;
  do {
    if (!link.stream.is_open() || !link.stream.receive_text(header, patience_ns)) return false;
    if (steady_now_ns() > deadline_ns) return link.stream.fail("it has been loading for an hour");
  } while (header.type == MessageType::kLoading);
  if (header.type == MessageType::kReady) return true;
  if (header.type != MessageType::kRefusal) return link.stream.fail("a message of another type than is due");
  try {
    return link.stream.fail(read_refusal(link.stream.text()).message);
  } catch (const Error& error) {
    return link.stream.fail(error.what());
  }
}

void WorkerLinks::await_ready() {
  for (const auto& link : links_) {
    if (!await_ready(*link, kLoadingNs))
      throw Error(ErrorKind::kUnavailable,
                  fmt::format("worker {}: {}", link->address.display(), link->stream.error()));
    link->is_up = true;
  }
}

void WorkerLinks::send(StageId stage, int num_rows, std::span<const std::byte> input) {
  input_ = input;
  header_ = {.type = MessageType::kStageInput,
             .stage = stage,
             .num_rows = num_rows,
             .exchange = header_.exchange + 1,
             .payload_bytes = input.size()};
  for (const auto& link : links_) {
    // What came of a stage that another worker's loss has ended is nobody's any more.
    if (link->is_due && link->stream.is_open()) link->stream.fail("left in a step that another worker's loss ended");
    link->is_due = true;
    if (link->stream.is_open()) static_cast<void>(send_stage(*link));
  }
}

bool WorkerLinks::send_stage(Link& link) {
  const HeaderBytes header = encode_header(header_);
  if (!link.stream.send({header, input_}, config_.patience_ns / 2)) return false;
  link.sent_bytes.fetch_add(header.size() + input_.size(), std::memory_order_relaxed);
  return true;
}

bool WorkerLinks::receive_outputs(Link& link, std::span<std::byte> reply) {
  if (!link.stream.is_open()) return false;
  MessageHeader header;
  if (!link.stream.receive_header(header, config_.patience_ns / 2)) return false;
  if (header.type != MessageType::kStageOutputs || header.exchange != header_.exchange)
    return link.stream.fail("an answer to something else");
  if (header.payload_bytes != reply.size())
    return link.stream.fail(fmt::format("outputs of {} bytes; {} are expected", header.payload_bytes, reply.size()));
  if (!link.stream.receive(reply, config_.patience_ns / 2)) return false;
  link.received_bytes.fetch_add(kMessageHeaderBytes + reply.size(), std::memory_order_relaxed);
  return true;
}

void WorkerLinks::receive(int machine, std::span<std::byte> reply) {
  Link& link = *links_.at(static_cast<std::size_t>(machine - 1));
  CHECK(link.is_due, machine);
  const std::int64_t begin_ns = steady_now_ns();
  bool has_answered = receive_outputs(link, reply);
  if (!has_answered) {
    note_lost(link);
    const std::int64_t deadline_ns = begin_ns + (link.is_lost ? std::min(kLostNs, config_.patience_ns) : config_.patience_ns);
    while (!has_answered) {
      if (stops_ || steady_now_ns() >= deadline_ns) give_up(link);
      has_answered = reconnect(link, deadline_ns) && send_stage(link) && receive_outputs(link, reply);
      if (!has_answered) wait_before_next_try();
    }
    note_back(link);
  }
  link.is_due = false;
  link.wait_ns.fetch_add(steady_now_ns() - begin_ns, std::memory_order_relaxed);
}

// A worker that loads its share says so, which takes longer than a step waits for one that does not answer.
bool WorkerLinks::reconnect(Link& link, std::int64_t deadline_ns) {
  if (!open(link, std::min(deadline_ns, steady_now_ns() + std::max(kLostNs, config_.patience_ns / 4)))) return false;
  const Assign assign{{split_.shares().begin(), split_.shares().end()}, link.machine, limits_};
  return link.stream.send_text(MessageType::kAssign, write_text(assign), kLostNs) &&
         await_ready(link, std::max(kLostNs, config_.patience_ns / 2));
}

void WorkerLinks::note_lost(Link& link) {
  if (link.is_up.exchange(false)) link.num_losses.fetch_add(1, std::memory_order_relaxed);
  if (std::exchange(link.is_told_lost, true)) return;
  spdlog::warn("worker {} is lost: {}; looking for it", link.address.display(), link.stream.error());
}

void WorkerLinks::note_back(Link& link) {
  link.is_up = true;
  link.is_lost = false;
  if (std::exchange(link.is_told_lost, false)) spdlog::info("worker {} is back", link.address.display());
}

void WorkerLinks::give_up(Link& link) {
  link.is_lost = true;
  throw PartnerLost(fmt::format("worker {}: {}", link.address.display(), link.stream.error()));
}

void WorkerLinks::wait_before_next_try() {
  for (std::int64_t waited_ns = 0; waited_ns < kRetryNs && !stops_; waited_ns += kRetryNs / 10)
    std::this_thread::sleep_for(std::chrono::nanoseconds(kRetryNs / 10));
}

std::vector<WorkerStats> WorkerLinks::stats() const {
  std::vector<WorkerStats> result;
  for (const auto& link : links_)
    result.push_back({.address = link->address.display(),
                      .is_up = link->is_up,
                      .num_losses = link->num_losses,
                      .sent_bytes = link->sent_bytes,
                      .received_bytes = link->received_bytes,
                      .wait_ns = link->wait_ns});
  return result;
}

}  // namespace larder
