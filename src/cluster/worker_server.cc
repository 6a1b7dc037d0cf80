#include "cluster/worker_server.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/printable.h"
#include "base/start_thread.h"
#include "model/forward/shared_products.h"
#include "model/forward/weights.h"
#include "plan/plan.h"

namespace larder {
namespace {

constexpr std::int64_t kHandshakeNs = 10 * kNsPerSecond;
// A server plans its own memory between our offer and what it makes of it.
constexpr std::int64_t kAssignNs = 120 * kNsPerSecond;
constexpr std::int64_t kMessageNs = 30 * kNsPerSecond;  // without a byte, in the middle of one
constexpr std::int64_t kLoadingIntervalNs = kNsPerSecond;
constexpr int kPollMs = 50;
constexpr int kWaitingPollMs = 5;  // while a server waits for another one to go
constexpr std::int64_t kBusyNs = 500 * kNsPerMs;
constexpr std::size_t kFileWindowBytes = std::size_t{32} << 20;

std::string new_nonce() {
  std::random_device random;
  std::array<std::uint32_t, 8> words;
  for (std::uint32_t& word : words) word = random();
  return to_hex(sha256(std::as_bytes(std::span(words))));
}

// What ends a session; nothing that anyone has to be told beyond a line.
class SessionEnded : public std::exception {};

void require(bool is_well) {
  if (!is_well) throw SessionEnded();
}

}  // namespace

// Somebody who has connected, and has not a session yet.
struct WorkerServer::Guest {
  MessageStream stream;
  std::string nonce;
  std::int64_t deadline_ns = 0;
  std::optional<Hello> hello;  // once it has shown that it may have one, and waits until the worker is free
};

// What a server has had loaded.
struct WorkerServer::Share {
  Share(const WorkerServer& of, const Hello& hello, const Assign& what, const LoadProgress& progress)
      : assign(what),
        activations(hello.activations),
        weights(of.model_, of.files_.gguf(), of.pool_, progress, nullptr, of.model_.num_layers(), share()),
        model(of.model_, weights, of.kernels_, hello.activations == "int8"),
        computer(model, share(), of.kernels_, of.pool_, what.limits),
        input(max_stage_input_bytes(of.model_, what.limits) + StageComputer::kSlackBytes, true) {}

  MachineShare share() const { return {OutputSplit(assign.shares), assign.machine}; }

  const Assign assign;
  const std::string activations;
  const Weights weights;
  const SharedModel model;
  StageComputer computer;
  AlignedBuffer input;
};

WorkerServer::WorkerServer(const WorkerServerConfig& config, const ModelFiles& files, const ModelConfig& model,
                           const KernelTable& kernels, ThreadPool& pool)
    : config_(config),
      files_(files),
      model_(model),
      kernels_(kernels),
      pool_(pool),
      listener_(listen_at(config.listen.host, config.listen.port)) {}

WorkerServer::~WorkerServer() {
  stop();
  if (session_.joinable()) session_.join();
  ::close(listener_);
}

int WorkerServer::port() const { return port_of_socket(listener_); }

void WorkerServer::run() {
  while (!stops_) {
    try {
      if (wait_for_guests()) admit(::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      for (auto guest = guests_.begin(); guest != guests_.end();) guest = attend(*guest) ? guests_.erase(guest) : ++guest;
    } catch (const std::exception& error) {  // no memory
      spdlog::error("whoever connects is sent away: {}", error.what());
      guests_.clear();
    }
  }
  guests_.clear();
}

bool WorkerServer::has_waiting() const {
  return std::ranges::any_of(guests_, [](const Guest& guest) { return guest.hello.has_value(); });
}

// Until somebody connects, or may have said something. True: somebody has connected.
bool WorkerServer::wait_for_guests() {
  polled_.assign(1, {.fd = listener_, .events = POLLIN, .revents = 0});
  for (const Guest& guest : guests_)
    if (!guest.hello) polled_.push_back({.fd = guest.stream.fd(), .events = POLLIN, .revents = 0});
  const int num = ::poll(polled_.data(), polled_.size(), has_waiting() ? kWaitingPollMs : kPollMs);
  return num > 0 && polled_.front().revents != 0;
}

void WorkerServer::admit(int fd) {
  if (fd < 0) return;
  MessageStream stream(fd, stops_);
  if (guests_.size() >= kMaxGuests) {
    // Whoever has shown that it may is a server that waits for another one to go.
    const auto oldest = std::ranges::find_if(guests_, [](const Guest& guest) { return !guest.hello; });
    if (oldest == guests_.end()) return;
    guests_.erase(oldest);
  }
  const Welcome welcome{.protocol = kWorkerProtocol, .nonce = new_nonce(), .wants_key = !config_.key.empty()};
  // There is room for it in a new connection: nobody is waited for.
  if (!stream.send_text(MessageType::kWelcome, write_text(welcome), 0)) return;
  guests_.push_back({.stream = std::move(stream),
                     .nonce = welcome.nonce,
                     .deadline_ns = steady_now_ns() + config_.handshake_ns,
                     .hello = std::nullopt});
}

// True once it has gone: into its session, or away.
bool WorkerServer::attend(Guest& guest) {
  try {
    if (!guest.hello) {
      MessageHeader header;
      if (!guest.stream.receive_text_now(header)) return !guest.stream.is_open() || steady_now_ns() >= guest.deadline_ns;
      if (header.type != MessageType::kHello) return true;
      const Hello hello = read_hello(guest.stream.text());
      check_hello(guest, hello);
      guest.hello = hello;
      guest.deadline_ns = steady_now_ns() + kBusyNs;
    }
    if (is_busy_) {
      // That another server has just gone may not have been noticed yet.
      if (steady_now_ns() < guest.deadline_ns) return false;
      static_cast<void>(guest.stream.send_text(MessageType::kRefusal, write_text(Refusal{kBusyMessage}), 0));
    } else {
      begin_session(guest);
    }
  } catch (const std::exception& error) {  // bad input, or no thread
    spdlog::warn("a server is refused: {}", error.what());
    static_cast<void>(guest.stream.send_text(MessageType::kRefusal, write_text(Refusal{error.what()}), 0));
  }
  return true;
}

void WorkerServer::check_hello(const Guest& guest, const Hello& hello) const {
  if (hello.protocol != kWorkerProtocol)
    throw_invalid("the server speaks protocol {} of workers, this worker {}; run the same version of Larder on both",
                  hello.protocol, kWorkerProtocol);
  if (!config_.key.empty() && !same_proof(hello.proof, key_proof(guest.nonce, config_.key)))
    throw_invalid("the server's key is another one; give both the same --worker-key-file");
  if (hello.kernels != kernels_.name)
    throw_invalid("the server computes with {} kernels, this worker with {}, whose bits differ; run both with "
                  "LARDER_ISA=generic, avx2 or what else both have",
                  printable(hello.kernels), kernels_.name);
  if (hello.model != config_.model)
    throw_invalid("the server has another model ({}) than this worker ({}); give both the same files",
                  printable(hello.model), config_.model);
}

void WorkerServer::begin_session(Guest& guest) {
  if (session_.joinable()) session_.join();
  is_busy_ = true;
  try {
    const auto stream = std::make_shared<MessageStream>(std::move(guest.stream));
    session_ = start_thread("that computes for a server", [this, stream, hello = *guest.hello] {
      serve(*stream, hello);
      stream->close();
      is_busy_ = false;
    });
  } catch (...) {
    is_busy_ = false;
    throw;
  }
}

void WorkerServer::serve(MessageStream& stream, const Hello& hello) {
  bool has_begun = false;
  try {
    require(stream.send_text(MessageType::kOffer, write_text(Offer{config_.bytes_per_second}), kHandshakeNs));
    const Assign assign = read_assignment(stream);
    load(stream, hello, assign);
    spdlog::info("a server has come: machine {} of {}, weights {}", assign.machine, assign.shares.size(),
                 format_bytes(static_cast<std::int64_t>(share_->weights.size_bytes())));
    has_begun = true;
    require(stream.is_open() && stream.send_text(MessageType::kReady, "{}", kHandshakeNs));
    compute_stages(stream);  // which takes no memory
  } catch (const SessionEnded&) {
  } catch (const std::exception& error) {  // bad input, or no memory
    spdlog::warn("a server is refused: {}", error.what());
    static_cast<void>(stream.send_text(MessageType::kRefusal, write_text(Refusal{error.what()}), kNsPerSecond));
    return;
  }
  if (has_begun && !stops_) spdlog::info("the server has gone: {}", stream.error());
}

Assign WorkerServer::read_assignment(MessageStream& stream) {
  require(stream.expect_text(MessageType::kAssign, kAssignNs));
  return read_assign(stream.text());
}

void WorkerServer::require_room(const Assign& assign) const {
  const MachineShare share{OutputSplit(assign.shares), assign.machine};
  const std::size_t needed = weights_size_bytes(model_, files_.gguf(), share) +
                             StageComputer::size_bytes(model_, assign.limits, share) +
                             max_stage_input_bytes(model_, assign.limits);
  const std::int64_t available = available_memory_bytes();
  if (static_cast<std::int64_t>(needed) > available)
    throw Error(ErrorKind::kUnavailable,
                fmt::format("its share of the model takes {}, and {} are free; give it a smaller part by --worker-shares, "
                            "or fewer --batch-tokens",
                            format_bytes(static_cast<std::int64_t>(needed)), format_bytes(available)));
}

void WorkerServer::load(MessageStream& stream, const Hello& hello, const Assign& assign) {
  if (share_ == nullptr || !(share_->assign == assign) || share_->activations != hello.activations) {
    share_.reset();  // first: both would be too much
    require_room(assign);
    std::int64_t told_ns = 0;
    std::size_t dropped_bytes = 0;
    share_ = std::make_unique<Share>(*this, hello, assign, [&](std::size_t done_bytes, std::size_t) {
      if (done_bytes >= dropped_bytes + kFileWindowBytes) {
        files_.drop_pages();
        dropped_bytes = done_bytes;
      }
      if (steady_now_ns() - told_ns < kLoadingIntervalNs) return;
      told_ns = steady_now_ns();
      // Where the server has gone meanwhile, it finds all loaded when it comes back.
      if (stream.is_open()) static_cast<void>(stream.send_text(MessageType::kLoading, "{}", kHandshakeNs));
    });
    files_.drop_pages();
  }
}

void WorkerServer::compute_stages(MessageStream& stream) {
  MessageHeader header;
  while (true) {
    require(stream.wait_for_message());
    require(stream.receive_header(header, kMessageNs));
    const std::size_t size_bytes = checked_input_bytes(header, share_->model, share_->assign.limits);
    const std::span<std::byte> input(share_->input.data(), size_bytes);
    require(stream.receive(input, kMessageNs));
    const std::span<const std::byte> outputs = share_->computer.compute(header.stage, header.num_rows, input);
    header.type = MessageType::kStageOutputs;
    header.payload_bytes = outputs.size();
    const HeaderBytes bytes = encode_header(header);
    require(stream.send({bytes, outputs}, kMessageNs));
  }
}

}  // namespace larder
