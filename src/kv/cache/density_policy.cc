#include "kv/cache/density_policy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kv/cache/lru_policy.h"

namespace larder {
namespace {

constexpr int kGhostsPerBlock = 16;
constexpr int kLeastGhosts = 1 << 15;
constexpr int kMostGhosts = 1 << 20;
constexpr double kPriorityFactor = 4;
// Of the latest gap in the mean of its logarithm.
constexpr float kGapShare = 0.25F;
// Between two lessons, in pools, and in blocks at least: a lesson takes some 50 us.
constexpr int kLessonsPerPool = 16;
constexpr int kLeastLearnInterval = 256;

int num_ghosts_for(int num_blocks) {
  const std::int64_t wanted = std::int64_t{num_blocks} * kGhostsPerBlock;
  return static_cast<int>(std::clamp<std::int64_t>(wanted, kLeastGhosts, kMostGhosts));
}

}  // namespace

std::unique_ptr<EvictionPolicy> make_eviction_policy(EvictionKind kind, int num_blocks) {
  if (kind == EvictionKind::kLru) return std::make_unique<LruPolicy>(num_blocks);
  return std::make_unique<DensityPolicy>(num_blocks);
}

std::int64_t eviction_policy_size_bytes(EvictionKind kind, int num_blocks) {
  return kind == EvictionKind::kLru ? LruPolicy::size_bytes(num_blocks)
                                    : DensityPolicy::size_bytes(num_blocks);
}

std::int64_t DensityPolicy::size_bytes(int num_blocks) {
  constexpr std::int64_t kLinkBytes = 8, kIndexBytes = 4;
  constexpr std::int64_t kCellBytes = 64;  // with the model's share
  constexpr std::int64_t kNumCells =
      std::int64_t{ReuseModel::kNumClasses} * ReuseModel::kNumBuckets * 2;
  const std::int64_t num_ghosts = num_ghosts_for(num_blocks);
  const std::int64_t num_entries = num_blocks + num_ghosts;
  return num_entries * (std::int64_t{sizeof(Entry)} + kLinkBytes) + num_blocks * kLinkBytes +
         num_ghosts * 3 * kIndexBytes + kNumCells * kCellBytes;
}

DensityPolicy::DensityPolicy(int num_blocks)
    : num_blocks_(num_blocks),
      num_ghosts_(num_ghosts_for(num_blocks)),
      model_(num_blocks),
      entries_(static_cast<std::size_t>(num_blocks_ + num_ghosts_)),
      ages_(ReuseModel::kNumBuckets, num_blocks_ + num_ghosts_),
      cells_(ReuseModel::kNumClasses * ReuseModel::kNumBuckets * 2, num_blocks_),
      order_(ReuseModel::kNumClasses * ReuseModel::kNumBuckets * 2),
      ghost_heads_(std::bit_ceil(static_cast<std::size_t>(num_ghosts_)), IndexLists::kNone),
      ghost_next_(static_cast<std::size_t>(num_ghosts_), IndexLists::kNone),
      learn_interval_(std::max(kLeastLearnInterval, num_blocks / kLessonsPerPool)) {}

void DensityPolicy::follow(BlockId block, BlockId parent) {
  entry(to_index(block)).mean_gap_log2 = entry(to_index(parent)).mean_gap_log2;
}

void DensityPolicy::name(BlockId block, std::uint64_t key) {
  Entry& named = entry(to_index(block));
  CHECK(!named.is_aging, to_index(block));
  named.key = std::max<std::uint64_t>(key, 1);
  const int* found = find_ghost(named.key);
  if (*found == IndexLists::kNone) return;
  const int index = num_blocks_ + *found;
  Entry& ghost = entry(index);
  observe_use(ghost);
  named.num_uses = std::max(named.num_uses, ghost.num_uses);
  named.mean_gap_log2 = ghost.mean_gap_log2;
  drop_ghost(index);
}

void DensityPolicy::give_back(BlockId block, BlockUse use) {
  Entry& given = entry(to_index(block));
  CHECK(!given.is_aging, to_index(block));
  if (++clock_ % learn_interval_ == 0) {
    grow_older();
    learn();
  }
  if (given.num_uses < std::numeric_limits<std::uint16_t>::max()) ++given.num_uses;
  given.given_back = clock_;
  given.block_class = static_cast<std::uint8_t>(
      model_.class_of(given.num_uses, given.mean_gap_log2, use.is_end));
  given.keeps_longer = use.keeps_longer;
  given.bucket = 0;
  given.is_aging = true;
  ages_.push_back(0, to_index(block));
}

void DensityPolicy::take(BlockId block) {
  Entry& taken = entry(to_index(block));
  CHECK(taken.is_aging, to_index(block));
  if (taken.is_offered) withdraw(block);
  observe_use(taken);
  ages_.remove(taken.bucket, to_index(block));
  taken.is_aging = false;
}

void DensityPolicy::observe_use(Entry& used) {
  model_.observe(used.block_class, used.bucket, true);
  const auto age = static_cast<float>(std::max<std::int64_t>(clock_ - used.given_back, 1));
  const float gap_log2 = std::log2(age);
  const float share = used.mean_gap_log2 == ReuseModel::kNoGap ? 1 : kGapShare;
  used.mean_gap_log2 += (gap_log2 - used.mean_gap_log2) * share;
}

void DensityPolicy::offer(BlockId block) {
  Entry& offered = entry(to_index(block));
  CHECK(offered.is_aging && !offered.is_offered, to_index(block));
  offered.is_offered = true;
  // Not given back just now: what hung on it has gone, and it goes next among its like.
  enter_cell(to_index(block), clock_ != offered.given_back);
}

void DensityPolicy::withdraw(BlockId block) {
  CHECK(entry(to_index(block)).is_offered, to_index(block));
  leave_cell(to_index(block));
  entry(to_index(block)).is_offered = false;
}

void DensityPolicy::forget(BlockId block) {
  Entry& gone = entry(to_index(block));
  if (gone.is_offered) withdraw(block);
  if (gone.is_aging && gone.key != 0) {
    make_ghost(to_index(block));
  } else if (gone.is_aging) {
    ages_.remove(gone.bucket, to_index(block));
  }
  gone = {};
}

BlockId DensityPolicy::next() const {
  return order_.empty() ? BlockId::kNone : BlockId{cells_.front(order_.top())};
}

int DensityPolicy::cell_of(const Entry& of) const {
  return (of.block_class * ReuseModel::kNumBuckets + of.bucket) * 2 + (of.keeps_longer ? 1 : 0);
}

double DensityPolicy::density_of(int cell) const {
  const int of_class = cell / 2 / ReuseModel::kNumBuckets;
  const double density = model_.density(of_class, cell / 2 % ReuseModel::kNumBuckets);
  return cell % 2 == 1 ? density * kPriorityFactor : density;
}

void DensityPolicy::enter_cell(int index, bool is_first) {
  const int cell = cell_of(entry(index));
  if (cells_.empty(cell)) order_.push(cell, density_of(cell));
  if (is_first)
    cells_.push_front(cell, index);
  else
    cells_.push_back(cell, index);
}

void DensityPolicy::leave_cell(int index) {
  const int cell = cell_of(entry(index));
  cells_.remove(cell, index);
  if (cells_.empty(cell)) order_.remove(cell);
}

void DensityPolicy::grow_older() {
  for (int bucket = ReuseModel::kNumBuckets - 2; bucket >= 0; --bucket) {
    while (!ages_.empty(bucket)) {
      const int index = ages_.front(bucket);
      Entry& older = entry(index);
      if (clock_ - older.given_back < model_.end_of(bucket)) break;
      model_.observe(older.block_class, bucket, false);
      ages_.remove(bucket, index);
      ages_.push_back(bucket + 1, index);
      if (older.is_offered) leave_cell(index);
      older.bucket = static_cast<std::uint8_t>(bucket + 1);
      if (older.is_offered) enter_cell(index, false);
    }
  }
}

void DensityPolicy::learn() {
  model_.learn();
  order_.update([this](int cell) { return density_of(cell); });
}

// The place that names the ghost of the key, or the end of its chain.
int* DensityPolicy::find_ghost(std::uint64_t key) {
  std::int32_t* place = &ghost_heads_[key & (ghost_heads_.size() - 1)];
  while (*place != IndexLists::kNone && entry(num_blocks_ + *place).key != key) {
    place = &ghost_next_[static_cast<std::size_t>(*place)];
  }
  return place;
}

void DensityPolicy::drop_ghost(int index) {
  Entry& dropped = entry(index);
  int* place = find_ghost(dropped.key);
  CHECK(*place == index - num_blocks_, index);
  *place = ghost_next_[static_cast<std::size_t>(*place)];
  ages_.remove(dropped.bucket, index);
  dropped = {};
}

// In place of the ghost that was made longest ago.
void DensityPolicy::make_ghost(int index) {
  const int ghost = next_ghost_;
  next_ghost_ = (next_ghost_ + 1) % num_ghosts_;
  if (entry(num_blocks_ + ghost).is_aging) drop_ghost(num_blocks_ + ghost);
  // Another block of the same content may have gone before.
  const int* known = find_ghost(entry(index).key);
  if (*known != IndexLists::kNone) drop_ghost(num_blocks_ + *known);
  entry(num_blocks_ + ghost) = entry(index);
  ages_.replace(entry(index).bucket, index, num_blocks_ + ghost);
  std::int32_t& head = ghost_heads_[entry(index).key & (ghost_heads_.size() - 1)];
  ghost_next_[static_cast<std::size_t>(ghost)] = head;
  head = ghost;
}

}  // namespace larder
