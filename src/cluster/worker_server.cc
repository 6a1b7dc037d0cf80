#include "cluster/worker_server.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <limits>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/printable.h"
#include "base/start_thread.h"
#include "model/shared_products.h"
#include "model/weights.h"
#include "plan/plan.h"

namespace larder {
namespace {

constexpr std::int64_t kHandshakeNs = 10 * kNsPerSecond;
// A server plans its own memory between our offer and what it makes of it.
constexpr std::int64_t kAssignNs = 120 * kNsPerSecond;
constexpr std::int64_t kMessageNs = 30 * kNsPerSecond;  // without a byte, in the middle of one
constexpr std::int64_t kLoadingIntervalNs = kNsPerSecond;
constexpr int kAcceptPollMs = 50;
constexpr std::int64_t kBusyNs = 500 * kNsPerMs;
constexpr std::chrono::milliseconds kBusyInterval{5};
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
    pollfd entry{.fd = listener_, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, kAcceptPollMs) <= 0) continue;
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) take(fd);
  }
}

// That a server has just gone may not have been noticed yet.
bool WorkerServer::is_free_soon() const {
  const std::int64_t deadline_ns = steady_now_ns() + kBusyNs;
  while (is_busy_ && !stops_ && steady_now_ns() < deadline_ns) std::this_thread::sleep_for(kBusyInterval);
  return !is_busy_;
}

void WorkerServer::take(int fd) {
  auto stream = std::make_shared<MessageStream>(fd, stops_);
  if (!is_free_soon()) {
    const Refusal refusal{"it computes for another server already"};
    static_cast<void>(stream->send_text(MessageType::kRefusal, write_text(refusal), kNsPerSecond));
    return;
  }
  if (session_.joinable()) session_.join();
  is_busy_ = true;
  try {
    session_ = start_thread("that computes for a server", [this, stream] {
      serve(*stream);
      stream->close();
      is_busy_ = false;
    });
  } catch (const Error& error) {
    spdlog::error("a server is refused: {}", error.what());
    is_busy_ = false;
  }
}

void WorkerServer::serve(MessageStream& stream) {
  bool has_begun = false;
  try {
    const Hello hello = greet(stream);
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

// Up to our offer.
Hello WorkerServer::greet(MessageStream& stream) {
  const Welcome welcome{.protocol = kWorkerProtocol, .nonce = new_nonce(), .wants_key = !config_.key.empty()};
  require(stream.send_text(MessageType::kWelcome, write_text(welcome), kHandshakeNs));
  require(stream.expect_text(MessageType::kHello, kHandshakeNs));
  const Hello hello = read_hello(stream.text());
  if (hello.protocol != kWorkerProtocol)
    throw_invalid("the server speaks protocol {} of workers, this worker {}; run the same version of Larder on both",
                  hello.protocol, kWorkerProtocol);
  if (!config_.key.empty() && !same_proof(hello.proof, key_proof(welcome.nonce, config_.key)))
    throw_invalid("the server's key is another one; give both the same --worker-key-file");
  if (hello.kernels != kernels_.name)
    throw_invalid("the server computes with {} kernels, this worker with {}, whose bits differ; run both with "
                  "LARDER_ISA=generic, avx2 or what else both have",
                  printable(hello.kernels), kernels_.name);
  if (hello.model != config_.model)
    throw_invalid("the server has another model ({}) than this worker ({}); give both the same files",
                  printable(hello.model), config_.model);
  require(stream.send_text(MessageType::kOffer, write_text(Offer{config_.bytes_per_second}), kHandshakeNs));
  return hello;
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
