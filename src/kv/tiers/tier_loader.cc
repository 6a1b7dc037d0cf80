#include "kv/tiers/tier_loader.h"

#include <algorithm>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace larder {
namespace {

constexpr std::size_t kMaxBuffersPerLoad = 2;
constexpr std::int64_t kBufferBytes = std::int64_t{4} << 20;
// Of a lender, copied in one piece.
constexpr std::int64_t kLentBytes = std::int64_t{64} << 20;
// And at a time beside a device's kernels: a bus is not to wait for the next poll(), behind a step. Who cancels a
// load waits for them.
constexpr std::int64_t kLentBesideBytes = 8 * kLentBytes;
constexpr double kMaxSlowness = 10;  // against what a tier said
constexpr double kMaxSeconds = 60;

}  // namespace

// A piece of a load in flight: blocks [first, first + size) of it.
struct TierLoader::Buffer {
  std::byte* bytes = nullptr;
  std::vector<TierBlock> blocks;
  std::uint64_t load_id = 0;
  std::size_t tier = 0;
  int first = 0;
  std::int64_t due_ns = INT64_MAX;  // while the tier has it
  bool has_arrived = false;
  TierAnswer answer;
};

struct TierLoader::Load {
  std::uint64_t id = 0;
  std::vector<LoadBlock> blocks;
  int num_issued = 0;
  int num_loaded = 0;
  std::size_t num_copying = 0;  // pieces
  bool is_short = false;        // a block was missing: nothing after it is wanted
  bool is_faulty = false;       // for a fault
  std::deque<Buffer*> in_flight;  // that tiers have, or that wait for one before them

  bool has_all() const { return is_short || num_issued == static_cast<int>(blocks.size()); }
  bool has_ended() const { return in_flight.empty() && num_copying == 0 && has_all(); }
  // Whose answer, or buffer, it waits for while it has not ended; none while it is but being copied.
  std::optional<std::size_t> tier() const {
    if (!in_flight.empty()) return in_flight.front()->tier;
    if (has_all()) return std::nullopt;
    return static_cast<std::size_t>(blocks[static_cast<std::size_t>(num_issued)].tier);
  }
};

TierLoader::TierLoader(std::span<KvTier* const> tiers, KvStorage& storage,
                       std::int64_t block_size_bytes, std::int64_t staging_bytes,
                       std::int64_t patience_ns)
    : tiers_(tiers.begin(), tiers.end()),
      storage_(storage),
      block_size_bytes_(block_size_bytes),
      patience_ns_(patience_ns),
      num_buffers_of_tier_(tiers.size()),
      max_lent_bytes_(storage.device() == nullptr ? kLentBytes : kLentBesideBytes) {
  CHECK(block_size_bytes > 0, block_size_bytes);
  blocks_per_buffer_ =
      static_cast<int>(std::max<std::int64_t>(1, kBufferBytes / block_size_bytes));
  const std::int64_t buffer_bytes = blocks_per_buffer_ * block_size_bytes;
  const std::int64_t num_buffers = std::max<std::int64_t>(2, staging_bytes / buffer_bytes);
  staging_ = HostMemory(storage.device(), static_cast<std::size_t>(num_buffers * buffer_bytes));
  for (std::int64_t i = 0; i < num_buffers; ++i) {
    buffers_.push_back(std::make_unique<Buffer>());
    buffers_.back()->bytes = staging_.data() + i * buffer_bytes;
    free_.push_back(buffers_.back().get());
  }
  arrived_.reserve(buffers_.size());
  taken_.reserve(buffers_.size());
  // What one load of each other tier takes is left to them, if there is so much.
  const std::size_t num_for_others = (tiers_.size() - 1) * kMaxBuffersPerLoad;
  max_buffers_per_tier_ =
      buffers_.size() > num_for_others ? buffers_.size() - num_for_others : 1;
}

TierLoader::~TierLoader() {
  while (!loads_.empty()) cancel(loads_.front()->id);
  // Tiers write into buffers until they answer. Not by counting free ones: where memory ran out in between, one
  // may be in nobody's list.
  const auto is_awaited = [this] {
    const std::lock_guard lock(mutex_);
    return num_owed_ > 0;
  };
  while (is_awaited()) std::this_thread::yield();
}

void TierLoader::set_wake(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

std::uint64_t TierLoader::start(std::vector<LoadBlock> blocks) {
  CHECK(!blocks.empty());
  auto load = std::make_unique<Load>();
  load->id = next_id_++;
  load->blocks = std::move(blocks);
  loads_.push_back(std::move(load));
  issue_all();
  return next_id_ - 1;
}

void TierLoader::cancel(std::uint64_t id) {
  std::erase_if(loads_, [&](const auto& load) {
    if (load->id != id) return false;
    if (load->num_copying > 0) storage_.finish_copies();
    give_back_arrived(*load);
    return true;
  });
}

// The other buffers come back with their answers, and find no load to go to.
void TierLoader::give_back_arrived(const Load& load) {
  for (Buffer* buffer : load.in_flight) {
    if (buffer->has_arrived) give_back(*buffer);
  }
}

void TierLoader::give_back(Buffer& buffer) {
  --num_buffers_of_tier_[buffer.tier];
  free_.push_back(&buffer);
}

// A buffer each, as long as there are any. Who got one goes to the end of the line; those who could
// not take one keep their place in it.
void TierLoader::issue_all() {
  for (std::size_t next = 0; next < loads_.size();) {
    if (!issue(*loads_[next])) {
      ++next;
      continue;
    }
    const auto served = loads_.begin() + static_cast<std::ptrdiff_t>(next);
    std::rotate(served, served + 1, loads_.end());
  }
}

TierLoader::Load* TierLoader::find(std::uint64_t id) {
  const auto found = std::ranges::find_if(loads_, [&](const auto& load) { return load->id == id; });
  return found == loads_.end() ? nullptr : found->get();
}

// Blocks of a load from `first` on, from where each lies. `copy`: what of it is known already.
void TierLoader::copy(Load& load, int first, std::span<const std::byte* const> bytes, const Copy& copy) {
  std::vector<BlockId> targets;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    targets.push_back(load.blocks[static_cast<std::size_t>(first) + i].target);
  {
    // The callback may be on a thread of the device's driver, which must not be left by an exception.
    const std::lock_guard lock(mutex_);
    copied_.reserve(copied_.size() + static_cast<std::size_t>(num_uncopied_) + 1);
    ++num_uncopied_;
  }
  ++load.num_copying;
  storage_.write_blocks(targets, bytes, [this, ended = copy]() mutable {
    ended.end_ns = steady_now_ns();
    const std::lock_guard lock(mutex_);
    copied_.push_back(ended);
    --num_uncopied_;
    if (wake_) wake_();  // for the rest, or to tell that the load has ended
  });
}

void TierLoader::note_copied() {
  std::vector<Copy> copied;
  {
    const std::lock_guard lock(mutex_);
    copied.assign(copied_.begin(), copied_.end());
    copied_.clear();  // and keeps its room for those to come
  }
  for (const Copy& copy : copied) {
    if (Load* load = find(copy.load_id)) {
      --load->num_copying;
      load->num_loaded += copy.num_blocks;
    }
    if (copy.buffer != nullptr) {
      give_back(*copy.buffer);
      continue;
    }
    lent_bytes_ -= copy.num_blocks * block_size_bytes_;
    // One goes behind the other.
    const std::int64_t begin_ns = std::max(copy.begin_ns, lent_until_ns_);
    tiers_[copy.tier]->note_lent(copy.num_blocks, copy.end_ns - begin_ns);
    lent_until_ns_ = copy.end_ns;
  }
}

// A piece of a load from a tier that lends, which is next.
bool TierLoader::take_lent(Load& load) {
  if (!load.in_flight.empty() || lent_bytes_ >= max_lent_bytes_) return false;
  const int num_blocks = static_cast<int>(load.blocks.size());
  const int tier = load.blocks[static_cast<std::size_t>(load.num_issued)].tier;
  std::vector<TierBlock> blocks;
  const std::int64_t room_bytes = std::min(kLentBytes, max_lent_bytes_ - lent_bytes_);
  const auto room = static_cast<std::size_t>(std::max<std::int64_t>(1, room_bytes / block_size_bytes_));
  for (int i = load.num_issued; i < num_blocks && blocks.size() < room; ++i) {
    const LoadBlock& next = load.blocks[static_cast<std::size_t>(i)];
    if (next.tier != tier) break;
    blocks.push_back(next.block);
  }
  const auto place = static_cast<std::size_t>(tier);
  const int num_lent = tiers_[place]->lend(blocks, [&](std::span<const std::byte* const> bytes) {
    copy(load, load.num_issued, bytes,
         {load.id, static_cast<int>(bytes.size()), nullptr, place, steady_now_ns()});
  });
  lent_bytes_ += num_lent * block_size_bytes_;
  load.num_issued += num_lent;
  load.is_short = num_lent < static_cast<int>(blocks.size());
  if (num_lent > 0) return true;
  const std::lock_guard lock(mutex_);
  if (wake_) wake_();  // to tell that the load has ended
  return true;
}

// Asks for what the load's next buffer takes, if it may have one.
bool TierLoader::issue(Load& load) {
  const int num_blocks = static_cast<int>(load.blocks.size());
  if (load.is_short || load.num_issued == num_blocks) return false;
  const int tier = load.blocks[static_cast<std::size_t>(load.num_issued)].tier;
  const auto place = static_cast<std::size_t>(tier);
  if (tiers_[place]->lends()) return take_lent(load);
  if (free_.empty() || load.in_flight.size() + load.num_copying >= kMaxBuffersPerLoad ||
      num_buffers_of_tier_[place] == max_buffers_per_tier_)
    return false;
  ++num_buffers_of_tier_[place];
  Buffer& buffer = *free_.back();
  free_.pop_back();
  buffer.blocks.clear();
  buffer.load_id = load.id;
  buffer.tier = place;
  buffer.first = load.num_issued;
  buffer.has_arrived = false;
  while (load.num_issued < num_blocks &&
         static_cast<int>(buffer.blocks.size()) < blocks_per_buffer_) {
    const LoadBlock& next = load.blocks[static_cast<std::size_t>(load.num_issued)];
    if (next.tier != tier) break;
    buffer.blocks.push_back(next.block);
    ++load.num_issued;
  }
  load.in_flight.push_back(&buffer);
  buffer.due_ns = due_ns(place, buffer.blocks.size());
  const auto size_bytes = buffer.blocks.size() * static_cast<std::size_t>(block_size_bytes_);
  {
    const std::lock_guard lock(mutex_);
    ++num_owed_;
  }
  const auto arrive = [this, &buffer](TierAnswer answer) {
    // Under the lock: whoever takes wake_ away may be gone the moment after.
    const std::lock_guard lock(mutex_);
    --num_owed_;
    arrived_.push_back({&buffer, answer});
    if (wake_) wake_();
  };
  try {
    tiers_[place]->get({buffer.blocks, {buffer.bytes, size_bytes}, arrive});
  } catch (const std::bad_alloc&) {
    arrive({.num_found = 0, .is_faulty = true});
  }
  return true;
}

std::int64_t TierLoader::due_ns(std::size_t tier, std::size_t num_blocks) const {
  const double expected =
      tiers_[tier]->estimate_read_seconds(static_cast<std::int64_t>(num_blocks));
  const double seconds = std::min(kMaxSlowness * expected, kMaxSeconds);
  return steady_now_ns() +
         std::max(patience_ns_, static_cast<std::int64_t>(seconds * kNsPerSecond));
}

bool TierLoader::hangs(std::size_t tier, std::int64_t now_ns) const {
  return std::ranges::any_of(buffers_, [&](const auto& buffer) {
    return buffer->tier == tier && buffer->due_ns < now_ns;
  });
}

void TierLoader::take(const Arrived& arrived) {
  Buffer& buffer = *arrived.buffer;
  buffer.due_ns = INT64_MAX;
  buffer.has_arrived = true;
  buffer.answer = arrived.answer;
  Load* load = find(buffer.load_id);
  if (load == nullptr) {
    give_back(buffer);
    return;
  }
  // In the order in which they were asked for, whichever came first.
  while (!load->in_flight.empty() && load->in_flight.front()->has_arrived) {
    Buffer& next = *load->in_flight.front();
    load->in_flight.pop_front();
    copy_from(*load, next);
  }
}

void TierLoader::copy_from(Load& load, Buffer& buffer) {
  const int num_wanted = static_cast<int>(buffer.blocks.size());
  const int num_usable = load.is_short ? 0 : std::clamp(buffer.answer.num_found, 0, num_wanted);
  if (!load.is_short && num_usable < num_wanted) {
    load.is_short = true;
    load.is_faulty = buffer.answer.is_faulty;
  }
  if (num_usable == 0) return give_back(buffer);
  std::vector<const std::byte*> bytes;
  for (int i = 0; i < num_usable; ++i) bytes.push_back(buffer.bytes + i * block_size_bytes_);
  copy(load, buffer.first, bytes, {load.id, num_usable, &buffer, buffer.tier, 0});
}

void TierLoader::take_arrived() {
  taken_.clear();
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(arrived_);
  }
  for (const Arrived& one : taken_) take(one);
  note_copied();
}

void TierLoader::poll(std::vector<EndedLoad>& ended, std::int64_t now_ns) {
  take_arrived();
  const auto waits_in_vain = [&](const Load& load) {
    const auto tier = load.tier();
    return tier && hangs(*tier, now_ns);
  };
  // What such a load has is counted, and nothing writes into its targets any more.
  if (std::ranges::any_of(loads_, [&](const auto& load) { return load->num_copying > 0 && waits_in_vain(*load); })) {
    storage_.finish_copies();
    note_copied();
  }
  std::erase_if(loads_, [&](const auto& load) {
    if (!load->has_ended() && !waits_in_vain(*load)) return false;
    give_back_arrived(*load);
    // What comes behind a block that had gone says nothing of why that one did not come.
    ended.push_back({load->id, load->num_loaded, load->is_short ? load->is_faulty : !load->has_ended()});
    return true;
  });
  issue_all();
}

}  // namespace larder
