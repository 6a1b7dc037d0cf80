#include "kv/block_io_uring.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace larder {
namespace {

// The kernel takes at most this much in one call anyway.
constexpr std::int64_t kMaxTransferBytes = std::int64_t{1} << 30;
constexpr auto kBusyWait = std::chrono::milliseconds(1);

class UringIo final : public BlockIo {
 public:
  explicit UringIo(io_uring ring, int num_in_flight) : ring_(ring), depth_(num_in_flight) {}
  ~UringIo() override { io_uring_queue_exit(&ring_); }

  const char* name() const override { return "io_uring"; }

  void transfer(IoDirection direction, std::span<IoRequest> requests) override {
    std::size_t next = 0;
    int num_in_flight = 0;
    while (next < requests.size() || num_in_flight > 0) {
      while (next < requests.size() && num_in_flight < depth_) {
        io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
        if (!sqe) break;
        prepare(sqe, direction, requests[next++]);
        ++num_in_flight;
      }
      // A negative result (interrupted, short of memory) leaves what is prepared in the ring for
      // the next turn; buffers are the kernel's until their completion, so there is no way out.
      const int result = io_uring_submit_and_wait(&ring_, 1);
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
};

}  // namespace

std::unique_ptr<BlockIo> make_uring_io(int num_in_flight, bool required) {
  io_uring ring{};
  const int result = io_uring_queue_init(static_cast<unsigned>(num_in_flight), &ring, 0);
  if (result < 0) {
    if (required)
      throw Error(ErrorKind::kUnavailable,
                  fmt::format("io_uring: {}; use threads instead", std::strerror(-result)));
    return nullptr;
  }
  return std::make_unique<UringIo>(ring, num_in_flight);
}

}  // namespace larder
