// The remote tier's reader.
#include <algorithm>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/printable.h"
#include "kv/tiers/read_in_pieces.h"
#include "kv/tiers/remote_tier.h"
#include "kv/tiers/remote_value.h"

namespace larder {
namespace {

// What a value's answer has around it.
constexpr std::int64_t kReplyFrameBytes = 1024;
constexpr std::size_t kMaxWrong = 4096;

}  // namespace

// What came of the blocks that were asked for together.
struct RemoteTier::Batch {
  enum class Result { kUnanswered, kMissing, kFound, kWrong, kRefused };

  std::vector<Result> results;
  std::string refusal;  // what the server said instead of an answer
  bool is_whole = false;
  bool is_late = false;
  std::int64_t elapsed_ns = 0;
};

void RemoteTier::read_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    read_wake_.wait(lock, [this] { return stop_ || !reads_.empty(); });
    if (reads_.empty()) return;
    const TierRead read = std::move(reads_.front());
    reads_.pop_front();
    const bool skip = stop_ || !is_on_;
    lock.unlock();
    TierAnswer answer{.num_found = 0, .is_faulty = true};
    try {
      if (!skip) answer = read_blocks(read);
    } catch (const std::bad_alloc&) {
      rest_without_memory(read_nodes_, read_breaker_);
    }
    lock.lock();
    if (skip) ++stats_.num_missed;
    num_queued_blocks_ -= static_cast<std::int64_t>(read.blocks.size());
    lock.unlock();
    read.done(answer);
    lock.lock();
  }
}

TierAnswer RemoteTier::read_blocks(const TierRead& read) {
  return read_in_pieces(read, blocks_per_batch(),
                        [&](std::size_t first, std::size_t count) { return read_batch(read, first, count); });
}

TierAnswer RemoteTier::read_batch(const TierRead& read, std::size_t first, std::size_t count) {
  using Result = Batch::Result;
  const auto block_bytes = static_cast<std::size_t>(format_.block_size_bytes);
  RemoteRequest request;
  // One byte more than the longest right value, so that a longer one shows.
  for (const TierBlock& block : read.blocks.subspan(first, count))
    request.add({"GETRANGE", key_of(block), "0", std::to_string(max_value_bytes_)});
  Batch batch;
  batch.results.assign(count, Result::kUnanswered);
  const auto on_reply = [&](int command, const RemoteReply& reply) {
    const std::size_t i = first + static_cast<std::size_t>(command);
    Result& result = batch.results[static_cast<std::size_t>(command)];
    if (reply.kind == RemoteReply::Kind::kNil ||
        (reply.kind == RemoteReply::Kind::kString && reply.bytes.empty())) {
      result = Result::kMissing;
      return;
    }
    result = Result::kWrong;
    if (reply.kind == RemoteReply::Kind::kString) {
      if (decode_remote_value(reply.bytes, format_, read.blocks[i],
                              read.bytes.subspan(i * block_bytes, block_bytes)))
        result = Result::kFound;
    } else if (reply.kind == RemoteReply::Kind::kError && !reply.text().starts_with("WRONGTYPE")) {
      result = Result::kRefused;
      batch.refusal = printable(reply.text());
    }
  };
  const std::int64_t start_ns = steady_now_ns();
  const RemoteOutcome outcome = exchange(read_nodes_, request, max_value_bytes_ + kReplyFrameBytes, on_reply);
  // Loading, no rights: as good as not there.
  if (!batch.refusal.empty()) turn_off(RemoteOutcome::kFailed, batch.refusal, read_breaker_);
  batch.elapsed_ns = steady_now_ns() - start_ns;
  batch.is_whole = outcome == RemoteOutcome::kOk && batch.refusal.empty();
  batch.is_late = outcome == RemoteOutcome::kTimeout;
  return finish_batch(read.blocks.subspan(first, count), batch);
}

// What was read and right before a failure counts.
TierAnswer RemoteTier::finish_batch(std::span<const TierBlock> blocks, const Batch& batch) {
  using Result = Batch::Result;
  const std::lock_guard lock(mutex_);
  TierAnswer answer;
  bool ended = false;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Result result = batch.results[i];
    if (result == Result::kWrong) {
      ++stats_.num_corrupt;
      if (wrong_.size() >= kMaxWrong) wrong_.clear();  // what is never stored again would stay in it for ever
      wrong_.emplace(blocks[i].digest, blocks[i].group);
    }
    if (ended) continue;
    if (result == Result::kFound) {
      ++answer.num_found;
    } else {
      ended = true;
      answer.is_faulty = result != Result::kMissing;
      if (result == Result::kMissing) ++stats_.num_missed;
    }
  }
  stats_.num_read += static_cast<std::uint64_t>(answer.num_found);
  stats_.bytes_read += answer.num_found * format_.block_size_bytes;
  stats_.read_ns += batch.elapsed_ns;
  if (batch.is_whole) read_breaker_.succeed();
  if (!batch.is_whole && !batch.is_late) return answer;
  // What brings nothing in time says nothing of its speed: that is left alone for longer each time.
  const std::int64_t num_transferred = std::ranges::count(batch.results, Result::kFound);
  if (num_transferred > 0) {
    const double seconds =
        std::max(0.0, static_cast<double>(batch.elapsed_ns) * 1e-9 - round_trip_seconds_);
    read_rate_.observe(seconds, num_transferred * format_.block_size_bytes, steady_now_ns());
  }
  return answer;
}

}  // namespace larder
