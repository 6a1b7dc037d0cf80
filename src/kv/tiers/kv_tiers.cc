#include "kv/tiers/kv_tiers.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace larder {
namespace {

std::vector<KvTier*> pointers(const std::vector<std::unique_ptr<KvTier>>& tiers) {
  std::vector<KvTier*> result;
  for (const auto& tier : tiers) result.push_back(tier.get());
  return result;
}

}  // namespace

KvTiers::KvTiers(std::vector<std::unique_ptr<KvTier>> tiers, KvStorage& storage,
                 std::int64_t block_size_bytes, std::int64_t staging_bytes)
    : tiers_(std::move(tiers)),
      num_refused_(tiers_.size()),
      loader_(std::make_unique<TierLoader>(pointers(tiers_), storage, block_size_bytes,
                                           staging_bytes)) {
  CHECK(!tiers_.empty());
}

KvTiers::~KvTiers() {
  bool have_ended = true;
  for (const auto& tier : tiers_) have_ended = tier->end() && have_ended;
  if (have_ended) return;
  // A device may still write into the loader's buffers, and a thread wait for it.
  spdlog::warn("a tier hangs: its threads are left to themselves");
  loader_->set_wake({});
  static auto& left = *new std::vector<
      std::pair<std::vector<std::unique_ptr<KvTier>>, std::unique_ptr<TierLoader>>>;
  left.emplace_back(std::move(tiers_), std::move(loader_));
}

int KvTiers::shared_tier() const {
  const auto shared = std::ranges::find_if(tiers_, [](const auto& tier) { return tier->is_shared(); });
  return shared == tiers_.end() ? -1 : static_cast<int>(shared - tiers_.begin());
}

KvTiers::Place KvTiers::find(const TierBlock& block) const {
  for (int i = 0; i < num_tiers(); ++i) {
    const TierPresence presence = tiers_[static_cast<std::size_t>(i)]->presence(block);
    if (presence != TierPresence::kAbsent) return {i, presence == TierPresence::kPresent};
  }
  return {};
}

bool KvTiers::are_stored_for_another(const Digest& digest) const {
  return std::ranges::any_of(
      tiers_, [&](const auto& tier) { return tier->is_stored_for_another(digest); });
}

std::int64_t KvTiers::touch_interval_ns() const {
  std::int64_t interval_ns = INT64_MAX;
  for (const auto& tier : tiers_) interval_ns = std::min(interval_ns, tier->touch_interval_ns());
  return interval_ns;
}

double KvTiers::read_seconds(int tier, std::int64_t num_blocks) const {
  return num_blocks == 0
             ? 0
             : tiers_[static_cast<std::size_t>(tier)]->estimate_read_seconds(num_blocks);
}

void KvTiers::record_events() {
  for (const auto& tier : tiers_) tier->record_events();
}

void KvTiers::take_events(KvEvents& events) {
  for (const auto& tier : tiers_) {
    const KvEvents of_tier = tier->take_events();
    events.insert(events.end(), of_tier.begin(), of_tier.end());
  }
}

bool KvTiers::has_events() const {
  return std::ranges::any_of(tiers_, [](const auto& tier) { return tier->has_events(); });
}

std::vector<TierStats> KvTiers::stats() const {
  std::vector<TierStats> result;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    result.push_back(tiers_[i]->stats());
    result.back().num_refused += num_refused_[i];
  }
  return result;
}

}  // namespace larder
