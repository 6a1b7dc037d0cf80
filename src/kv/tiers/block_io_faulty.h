// A disk that fails as it is told to. For tests.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "kv/tiers/block_io.h"

namespace larder {

// What the disk does; shared by all that use it, and changed while they do.
struct DiskFaults {
  std::atomic<std::int64_t> bytes_until_full{INT64_MAX};  // then ENOSPC
  std::atomic<bool> has_room_in_place{false};             // not for what was written there before
  std::atomic<int> write_error{0};                        // errno of every write
  std::atomic<int> num_write_errors{INT32_MAX};           // how many writes get write_error
  std::atomic<int> read_error{0};
  std::atomic<int> num_read_errors{INT32_MAX};  // how many reads get read_error
  std::atomic<std::int64_t> bad_place{-1};      // whatever file it is in: a read of it gets EIO
  std::atomic<bool> short_transfers{false};     // some of them interrupted, too
  std::atomic<bool> flip_bits{false};           // in every read of a payload
  std::atomic<int> write_delay_ms{0};
  std::atomic<bool> reads_hang{false};   // until it is false again
  std::atomic<bool> writes_hang{false};  // the same
};

class FaultyIo final : public BlockIo {
 public:
  FaultyIo(std::unique_ptr<BlockIo> disk, DiskFaults& faults)
      : disk_(std::move(disk)), faults_(faults) {}

  const char* name() const override { return "faulty"; }

  void transfer(IoDirection direction, std::span<IoRequest> requests) override {
    for (IoRequest& request : requests) {
      if (direction == IoDirection::kWrite) {
        write(request);
      } else {
        read(request);
      }
    }
  }

 private:
  void write(IoRequest& request) {
    while (faults_.writes_hang) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(faults_.write_delay_ms));
    const int error = faults_.write_error;
    if (error != 0 && faults_.num_write_errors.fetch_sub(1) > 0) {
      request.result = -error;
      return;
    }
    const bool is_new = written_.emplace(request.fd, request.offset_bytes).second;
    if (faults_.has_room_in_place && !is_new) {
      move(IoDirection::kWrite, request, request.size_bytes);
      return;
    }
    const std::int64_t left_bytes = faults_.bytes_until_full.fetch_sub(request.size_bytes);
    if (left_bytes <= 0) {
      written_.erase({request.fd, request.offset_bytes});
      request.result = -ENOSPC;
      return;
    }
    // As a real disk does: what still fits is written.
    move(IoDirection::kWrite, request, std::min(left_bytes, request.size_bytes));
  }

  void read(IoRequest& request) {
    while (faults_.reads_hang) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (faults_.read_error != 0 && faults_.num_read_errors.fetch_sub(1) > 0) {
      request.result = -faults_.read_error;
      return;
    }
    const std::int64_t bad = faults_.bad_place;
    if (request.offset_bytes <= bad && bad < request.offset_bytes + request.size_bytes) {
      request.result = -EIO;
      return;
    }
    move(IoDirection::kRead, request, request.size_bytes);
    if (faults_.flip_bits && request.result > 256) request.data[request.result / 2] ^= std::byte{4};
  }

  void move(IoDirection direction, IoRequest& request, std::int64_t size_bytes) {
    if (faults_.short_transfers) {
      const std::uint64_t chance = random_();
      if (chance % 4 == 0) {
        request.result = chance % 8 == 0 ? -EINTR : -EAGAIN;
        return;
      }
      size_bytes =
          1 + static_cast<std::int64_t>((chance >> 8) % static_cast<std::uint64_t>(size_bytes));
    }
    IoRequest part = request;
    part.size_bytes = size_bytes;
    disk_->transfer(direction, {&part, 1});
    request.result = part.result;
  }

  std::unique_ptr<BlockIo> disk_;
  DiskFaults& faults_;
  std::mt19937_64 random_{42};
  std::set<std::pair<int, std::int64_t>> written_;  // where writes began
};

}  // namespace larder
