#include "kv/tiers/block_io_uring.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "base/error.h"

namespace larder {
namespace {

// The kernel takes at most this much in one call anyway.
constexpr std::int64_t kMaxTransferBytes = std::int64_t{1} << 30;
constexpr auto kBusyWait = std::chrono::milliseconds(1);
constexpr std::int64_t kNotDone = std::numeric_limits<std::int64_t>::min();  // no request's result

// Interrupted, or short of memory for a moment.
bool may_pass(int error) {
  return error == EINTR || error == EAGAIN || error == EBUSY || error == ENOMEM;
}

[[noreturn]] void throw_forbidden(const std::string& reason) {
  throw Error(ErrorKind::kUnavailable, fmt::format("io_uring: {}; use threads instead", reason));
}

// Why a ring that could be made is of no use all the same; "" = it is of use.
std::string fault_of(io_uring& ring) {
  const std::unique_ptr<io_uring_probe, void (*)(io_uring_probe*)> probe(
      io_uring_get_probe_ring(&ring), [](io_uring_probe* freed) { io_uring_free_probe(freed); });
  if (!probe || !io_uring_opcode_supported(probe.get(), IORING_OP_READ) ||
      !io_uring_opcode_supported(probe.get(), IORING_OP_WRITE))
    return "the kernel's has no plain reads and writes yet (5.6 has)";
  // A container's rules may forbid what hands requests over, and that only.
  io_uring_prep_nop(io_uring_get_sqe(&ring));
  int result = -EINTR;
  while (result == -EINTR) result = io_uring_submit_and_wait(&ring, 1);
  if (result < 0) return std::strerror(-result);
  io_uring_cqe* cqe = nullptr;
  if (io_uring_peek_cqe(&ring, &cqe) != 0 || !cqe) return "a request has got no answer";
  io_uring_cqe_seen(&ring, cqe);
  return "";
}

class UringIo final : public BlockIo {
 public:
  explicit UringIo(io_uring ring, int num_in_flight) : ring_(ring), depth_(num_in_flight) {}
  ~UringIo() override { io_uring_queue_exit(&ring_); }

  const char* name() const override { return "io_uring"; }

  void transfer(IoDirection direction, std::span<IoRequest> requests) override {
    for (IoRequest& request : requests) request.result = error_ == 0 ? kNotDone : -error_;
    if (error_ != 0) return;
    std::size_t next = 0;
    int num_in_flight = 0;
    while (next < requests.size() || num_in_flight > 0) {
      while (next < requests.size() && num_in_flight < depth_) {
        io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
        if (!sqe) break;
        prepare(sqe, direction, requests[next++]);
        ++num_in_flight;
      }
      // A negative result leaves what is prepared in the ring for the next turn. Buffers are the
      // kernel's until their completion.
      const int result = io_uring_submit_and_wait(&ring_, 1);
      if (result < 0 && !may_pass(-result)) return give_up(-result, requests, num_in_flight);
      if (result < 0 && result != -EINTR) std::this_thread::sleep_for(kBusyWait);
      num_in_flight -= reap();
    }
  }

 private:
  static void prepare(io_uring_sqe* sqe, IoDirection direction, IoRequest& request) {
    const auto size_bytes = static_cast<unsigned>(std::min(request.size_bytes, kMaxTransferBytes));
    const auto offset_bytes = static_cast<__u64>(request.offset_bytes);
    if (direction == IoDirection::kRead) {
      io_uring_prep_read(sqe, request.fd, request.data, size_bytes, offset_bytes);
    } else {
      io_uring_prep_write(sqe, request.fd, request.data, size_bytes, offset_bytes);
    }
    io_uring_sqe_set_data(sqe, &request);
  }

  // For good: what the kernel has not got yet stays in the ring and must never get there.
  void give_up(int error, std::span<IoRequest> requests, int num_in_flight) {
    error_ = error;
    num_in_flight -= static_cast<int>(io_uring_sq_ready(&ring_));
    for (; num_in_flight > 0; num_in_flight -= reap()) std::this_thread::sleep_for(kBusyWait);
    for (IoRequest& request : requests) {
      if (request.result == kNotDone) request.result = -error;
    }
  }

  int reap() {
    int num_ended = 0;
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe) {
      static_cast<IoRequest*>(io_uring_cqe_get_data(cqe))->result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      ++num_ended;
    }
    return num_ended;
  }

  io_uring ring_;
  int depth_;
  int error_ = 0;  // that ended its use
};

}  // namespace

std::unique_ptr<BlockIo> make_uring_io(int num_in_flight, bool required) {
  io_uring ring{};
  const int result = io_uring_queue_init(static_cast<unsigned>(num_in_flight), &ring, 0);
  if (result < 0) {
    if (required) throw_forbidden(std::strerror(-result));
    return nullptr;
  }
  if (const std::string fault = fault_of(ring); !fault.empty()) {
    io_uring_queue_exit(&ring);
    if (required) throw_forbidden(fault);
    return nullptr;
  }
  return std::make_unique<UringIo>(ring, num_in_flight);
}

}  // namespace larder
