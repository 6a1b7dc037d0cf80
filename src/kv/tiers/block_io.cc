#include "kv/tiers/block_io.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/start_thread.h"
#include "kv/tiers/block_io_uring.h"

namespace larder {
namespace {

constexpr int kMaxThreads = 4;

void transfer_one(IoDirection direction, IoRequest& request) {
  const auto size_bytes = static_cast<std::size_t>(request.size_bytes);
  const ssize_t result = direction == IoDirection::kRead
                             ? ::pread(request.fd, request.data, size_bytes, request.offset_bytes)
                             : ::pwrite(request.fd, request.data, size_bytes, request.offset_bytes);
  request.result = result >= 0 ? result : -errno;
}

// Sleeping threads that share out a batch; the caller takes part. Not ThreadPool: its threads spin,
// and these would spin on the cores that compute.
class ThreadsIo final : public BlockIo {
 public:
  explicit ThreadsIo(int num_threads) {
    try {
      for (int i = 1; i < num_threads; ++i)
        workers_.push_back(start_thread("that reads blocks from files", [this] { work(); }));
    } catch (...) {
      end();
      throw;
    }
  }

  ~ThreadsIo() override { end(); }

  const char* name() const override { return "threads"; }

  void transfer(IoDirection direction, std::span<IoRequest> requests) override {
    if (workers_.empty() || requests.size() <= 1) {
      for (IoRequest& request : requests) transfer_one(direction, request);
      return;
    }
    std::unique_lock lock(mutex_);
    direction_ = direction;
    requests_ = requests;
    next_ = 0;
    num_unfinished_ = requests.size();
    wake_.notify_all();
    drain(lock);
    done_.wait(lock, [this] { return num_unfinished_ == 0; });
  }

 private:
  void end() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stop_ || next_ < requests_.size(); });
      if (stop_) return;
      drain(lock);
    }
  }

  void drain(std::unique_lock<std::mutex>& lock) {
    while (next_ < requests_.size()) {
      IoRequest& request = requests_[next_++];
      const IoDirection direction = direction_;
      lock.unlock();
      transfer_one(direction, request);
      lock.lock();
      if (--num_unfinished_ == 0) done_.notify_all();
    }
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;  // of all that follows
  std::condition_variable wake_;
  std::condition_variable done_;
  IoDirection direction_ = IoDirection::kRead;
  std::span<IoRequest> requests_;
  std::size_t next_ = 0;
  std::size_t num_unfinished_ = 0;
  bool stop_ = false;
};

}  // namespace

std::unique_ptr<BlockIo> make_block_io(BlockIoKind kind, int num_in_flight) {
  if (kind != BlockIoKind::kThreads) {
    if (auto io = make_uring_io(num_in_flight, kind == BlockIoKind::kUring)) return io;
  }
  return std::make_unique<ThreadsIo>(std::min(num_in_flight, kMaxThreads));
}

void transfer_all(BlockIo& io, IoDirection direction, std::span<IoRequest> requests) {
  io.transfer(direction, requests);
  for (IoRequest& request : requests) {
    // Rare, so one by one.
    std::int64_t num_done = 0;
    while (true) {
      if (request.result == -EINTR || request.result == -EAGAIN) {
        request.result = 0;
      } else if (request.result < 0) {
        break;
      } else if (request.result == 0 && request.size_bytes > num_done) {
        request.result = -EIO;
        break;
      }
      num_done += request.result;
      if (num_done >= request.size_bytes) {
        request.result = request.size_bytes;
        break;
      }
      IoRequest rest = request;
      rest.offset_bytes += num_done;
      rest.data += num_done;
      rest.size_bytes -= num_done;
      io.transfer(direction, {&rest, 1});
      request.result = rest.result;
    }
  }
}

IoFault fault_of(int error) {
  switch (error) {
    case EIO:
    case ENODATA:
    case EBADMSG: return IoFault::kPlace;
    case ENOSPC:
    case EDQUOT: return IoFault::kFull;
    case EFBIG: return IoFault::kTooLong;
    default: return IoFault::kSystem;
  }
}

}  // namespace larder
