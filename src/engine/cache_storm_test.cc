// Random requests of all kinds at once, against a cache that is too small for them: salts, pins that expire, windows
// with sinks, several choices, priorities, logprobs of prompts, cancellations, chunks by layers, and tiers that lose,
// lie, refuse and come and go. Instead of keys and values a slot gets a hash of all that they would depend on, and
// what a query would see is compared with it: in microseconds, thousands of steps a second.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/request_check.h"
#include "engine/scheduler.h"
#include "kv/kv_storage.h"
#include "kv/tiers/fake_tier.h"
#include "kv/tiers/kv_tiers.h"

namespace larder {
namespace {

constexpr int kMaxModelLen = 240;
constexpr int kVocabSize = 40;
constexpr std::int64_t kNsPerMs = 1'000'000;

using Hash = std::uint64_t;
Hash mixed(Hash hash, std::uint64_t value) { return (hash ^ value) * 1099511628211U; }

// What the keys and values of each of a sequence's tokens depend on.
std::vector<Hash> hashes_of(const Sequence& sequence) {
  const Request& request = sequence.request->request;
  const auto window = static_cast<std::size_t>(request.attention_window);
  Hash hash = 14695981039346656037U;
  for (const char c : request.salt) hash = mixed(hash, static_cast<unsigned char>(c));
  std::vector<Hash> hashes;
  for (const TokenId token : sequence.tokens) {
    hash = mixed(hash, static_cast<std::uint64_t>(token) + 1);
    // From here on they are nobody else's.
    if (window > 0 && hashes.size() == window) hash = mixed(hash, window * 1000 + static_cast<std::size_t>(request.attention_sinks));
    hashes.push_back(hash ^ hash >> 29);
  }
  return hashes;
}

// Plays a layer: writes the batch's slots, then looks at all that its queries see. Heads have one dimension.
class PlayedModel {
 public:
  PlayedModel(const KvLayout& layout, KvStorage& storage) : layout_(layout), storage_(storage) {}

  // "" = everything was there.
  std::string run_layer(const Batch& batch, int layer) {
    const int group_index = layout_.group_of(layer);
    const Batch::Group& group = batch.groups()[static_cast<std::size_t>(group_index)];
    std::vector<std::vector<Hash>> hashes;
    for (const BatchEntry& entry : batch.entries()) {
      hashes.push_back(hashes_of(*entry.sequence));
      for (int i = 0; i < entry.num_tokens; ++i) {
        const auto row = static_cast<std::size_t>(entry.first_row + i);
        const std::int64_t slot = group.slots[row];
        for (const bool is_key : {true, false})
          *at(layer, BlockId{static_cast<int>(slot / kBlockSize)}, static_cast<int>(slot % kBlockSize), is_key) =
              expected(hashes.back(), layer, batch.positions()[row], is_key);
      }
    }
    for (std::size_t i = 0; i < batch.entries().size(); ++i) {
      const AttentionSequence& seen = group.sequences[i];
      for (const int position : positions_seen(seen, layout_.group(group_index).window)) {
        const BlockId block = seen.block_table[position / kBlockSize];
        for (const bool is_key : {true, false}) {
          if (block != BlockId::kNone &&
              *at(layer, block, position % kBlockSize, is_key) == expected(hashes[i], layer, position, is_key))
            continue;
          const Sequence& sequence = *batch.entries()[i].sequence;
          return fmt::format("request {} choice {} layer {} position {} of {}: {}", sequence.request->request.id,
                             sequence.choice, layer, position, seen.context_len,
                             block == BlockId::kNone ? "no block" : "another's bytes");
        }
      }
    }
    return "";
  }

 private:
  static std::vector<int> positions_seen(const AttentionSequence& seen, int layer_window) {
    const int first_query = seen.context_len - seen.num_tokens;
    const bool is_own = layer_window > 0;
    const int window = is_own && (seen.window == 0 || layer_window < seen.window) ? layer_window : seen.window;
    const int begin = window > 0 ? std::max(0, first_query - window + 1) : 0;
    const int num_sinks = seen.window > 0 && !is_own ? std::min({seen.num_sinks, seen.context_len, begin}) : 0;
    std::vector<int> positions;
    for (int position = 0; position < num_sinks; ++position) positions.push_back(position);
    for (int position = begin; position < seen.context_len; ++position) positions.push_back(position);
    return positions;
  }

  static std::uint16_t expected(const std::vector<Hash>& hashes, int layer, int position, bool is_key) {
    const auto odd = static_cast<Hash>(2 * (layer * 97 + (is_key ? 0 : 1)) + 1);
    return static_cast<std::uint16_t>(hashes[static_cast<std::size_t>(position)] * odd >> 31);
  }
  std::uint16_t* at(int layer, BlockId block, int offset, bool is_key) {
    const PagedKvView view = storage_.view(layer);
    std::byte* bytes = view.base + to_index(block) * view.block_stride_bytes +
                       (is_key ? view.k_offset_bytes : view.v_offset_bytes);
    return reinterpret_cast<std::uint16_t*>(bytes) + offset;
  }

  const KvLayout& layout_;
  KvStorage& storage_;
};

std::vector<KvLayerShape> random_layers(unsigned kind) {
  const KvLayerShape full{1, 1, 0}, narrow{1, 1, 20}, wide{1, 1, 50};
  switch (kind % 5) {
    case 0:
      return {full};
    case 1:
      return {full, narrow, narrow};
    case 2:
      return {narrow};
    case 3:
      return {full, narrow, wide};
    default:
      return {full, full, narrow, narrow, wide, wide};
  }
}

class Storm {
 public:
  explicit Storm(unsigned seed)
      : random_(seed),
        max_batch_tokens_(std::vector<int>{3, 7, 16, 33, 64}[random_() % 5]),
        layout_(random_layers(static_cast<unsigned>(random_()))),
        storage_(layout_, static_cast<int>(layout_.num_blocks_for(kMaxModelLen, max_batch_tokens_)) + below(60)),
        model_(layout_, storage_) {
    if (below(3) > 0) add_tiers();
    cache_ = std::make_unique<KvCache>(
        layout_, storage_, clock_,
        KvCacheConfig{.num_blocks = storage_.num_blocks(),
                      .tiers = tiers_.get(),
                      .eviction = below(2) == 0 ? EvictionKind::kLru : EvictionKind::kDensity,
                      .max_pinned_share = 0.5});
    SchedulerConfig config;
    config.max_model_len = kMaxModelLen;
    config.max_batch_tokens = config.max_chunk_tokens = max_batch_tokens_;
    config.max_logit_rows = std::min(max_batch_tokens_, 1 + below(12));
    config.max_sequences = 2 + below(12);
    config.max_prefill_tokens = std::max(1, max_batch_tokens_ / 2);
    config.max_step_slowdown = below(2) * 2;
    config.patience_ns = below(2) * 60 * kNsPerMs;
    scheduler_ = std::make_unique<Scheduler>(config, *cache_, kEndTokens, clock_);
    for (int i = 0; i < 4; ++i) {
      texts_.push_back(random_tokens(kMaxModelLen));
      std::copy_n(texts_[0].begin(), i == 0 ? 0 : below(120), texts_.back().begin());
    }
  }
  ~Storm() {
    for (FakeTier* tier : fakes_) tier->answer();
    scheduler_->cancel_all();
  }

  // "" = as it should be.
  std::string run(int num_rounds) {
    for (int round = 0; round < num_rounds && wrong_.empty(); ++round) {
      if (scheduler_->num_waiting() < 20 && below(3) == 0) add_request();
      if (below(40) == 0 && !open_.empty()) cancel_some();
      if (below(300) == 0) cache_->clear();
      step();
    }
    for (int left = 40'000; scheduler_->has_work() && wrong_.empty(); --left) {
      step();
      if (left == 0) wrong_ = "does not end";
    }
    if (wrong_.empty()) check_end();
    return wrong_;
  }

  std::uint64_t num_preemptions() const { return scheduler_->stats().num_preemptions; }
  std::uint64_t num_loaded() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t loaded : scheduler_->stats().num_loaded_by_tier) sum += loaded;
    return sum;
  }

 private:
  static constexpr TokenId kEnd = 0;
  static constexpr TokenId kEndTokens[] = {kEnd};

  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  void expect(bool is_right, const char* what) {
    if (!is_right && wrong_.empty()) wrong_ = what;
  }

  std::vector<TokenId> random_tokens(int count) {
    std::vector<TokenId> tokens(static_cast<std::size_t>(count));
    for (TokenId& token : tokens) token = 1 + below(kVocabSize - 1);
    return tokens;
  }

  void add_tiers() {
    std::vector<std::unique_ptr<KvTier>> all;
    for (FakeStore& store : stores_) {
      auto tier = std::make_unique<FakeTier>(store);
      fakes_.push_back(tier.get());
      all.push_back(std::move(tier));
    }
    fakes_[1]->is_vague = true;
    tiers_ = std::make_unique<KvTiers>(std::move(all), storage_, layout_.block_size_bytes(), 0);
  }

  std::vector<TokenId> random_prompt() {
    std::vector<TokenId> prompt = texts_[static_cast<std::size_t>(below(4))];
    prompt.resize(static_cast<std::size_t>(1 + below(below(3) == 0 ? 200 : 100)));
    if (below(3) > 0) return prompt;
    const auto own = random_tokens(below(static_cast<int>(prompt.size())) + 1);
    std::ranges::copy(own, prompt.end() - static_cast<std::ptrdiff_t>(own.size()));
    return prompt;
  }

  void choose_span(Request& request) {
    const int window = kBlockSize * (1 + below(3));
    const int sinks = kBlockSize * below(window / kBlockSize + 1);
    if (KvCache::num_endless_tokens({window, sinks}, max_batch_tokens_) > kMaxModelLen) return;
    request.attention_window = window;
    request.attention_sinks = sinks;
    if (below(2) == 0) request.sampling.max_tokens = 150 + below(100);
  }

  void add_request() {
    Request request;
    request.id = next_id_++;
    request.prompt = random_prompt();
    request.sampling.max_tokens = below(12) == 0 ? 0 : 1 + below(40);
    request.sampling.num_prompt_logprobs = below(8) == 0 ? 0 : -1;
    request.n = below(4) > 0 ? 1 : 1 + below(std::min(6, scheduler_->max_sequences()));
    request.priority = below(4) > 0 ? 0 : below(5) - 2;
    request.salt = std::vector<std::string>{"", "", "a", "b"}[static_cast<std::size_t>(below(4))];
    if (below(4) == 0) choose_span(request);
    const auto num_prompt = static_cast<int>(request.prompt.size());
    for (int i = below(3) == 0 ? below(4) : -1, end = 0; i >= 0 && end < num_prompt; --i) {
      end += 1 + below(num_prompt - end);
      request.pins.push_back({end, below(4) > 0 ? 1 + below(5) : 0});
    }
    check_request(request, {kVocabSize, kMaxModelLen, scheduler_->max_sequences(), max_batch_tokens_});
    for (int choice = 0; choice < request.n; ++choice) open_[request.id].insert(choice);
    request.on_update = [this, id = request.id](RequestUpdate&& update) { hear(id, update); };
    const std::uint64_t seed = request.id;
    scheduler_->add(std::move(request), seed, clock_.now_ns());
  }

  void hear(std::uint64_t id, const RequestUpdate& update) {
    const auto request = open_.find(id);
    const bool is_open = request != open_.end() && request->second.contains(update.choice);
    expect(is_open, "an update behind the end");
    if (!is_open) return;
    const bool is_first = heard_.insert({id, update.choice}).second;
    const RequestUsage& usage = update.usage;
    if (update.finish != FinishReason::kCancelled) {
      expect(usage.num_cached_tokens >= 0 && usage.num_cached_tokens < usage.num_prompt_tokens, "cached tokens");
      const auto num_rows = update.prompt_logprobs == nullptr ? 0 : static_cast<int>(update.prompt_logprobs->size());
      expect(num_rows == 0 || num_rows == usage.num_prompt_tokens - 1, "logprobs of a prompt");
      if (is_first && update.choice == 0 && !update.cache.missed.empty()) check_missed(update);
    }
    if (update.finish == FinishReason::kNone) return;
    request->second.erase(update.choice);
    if (request->second.empty()) open_.erase(request);
  }

  // In order, without a gap at the end.
  void check_missed(const RequestUpdate& update) {
    int end = update.usage.num_cached_tokens;
    for (const MissedSpan& missed : update.cache.missed) {
      expect(missed.begin >= end && missed.end > missed.begin, "missed spans overlap");
      end = missed.end;
    }
    expect(end == update.usage.num_prompt_tokens, "not all missed tokens have a reason");
  }

  void cancel_some() {
    auto request = open_.begin();
    std::advance(request, below(static_cast<int>(open_.size())));
    const std::uint64_t id = request->first;
    if (below(2) == 0)
      scheduler_->cancel(id);
    else
      scheduler_->cancel_choice(id, below(6));
  }

  void trouble_tiers() {
    for (FakeTier* tier : fakes_) {
      if (below(3) == 0) tier->answer();
      for (bool* fault : {&tier->is_out, &tier->refuses, &tier->lies, &tier->answers_at_once})
        if (below(60) == 0) *fault = !*fault;
      if (below(80) == 0) tier->read_seconds = below(2) * 1e-3 * below(100);
      if (below(100) == 0) tier->lost.clear();
    }
    for (std::size_t i = 0; i < fakes_.size(); ++i) {
      auto& blocks = stores_[i].blocks;
      if (blocks.empty() || below(20) > 0) continue;
      auto block = blocks.begin();
      std::advance(block, below(static_cast<int>(blocks.size())));
      if (below(2) == 0)
        blocks.erase(block);
      else
        fakes_[i]->lost.insert(block->first);
    }
    if (tiers_ != nullptr) tiers_->set_seconds_per_token(below(2) == 0 ? 1e9 : 1e-3);
  }

  void run_layers(const Batch& batch, int begin, int end) {
    for (int layer = begin; layer < end; ++layer) {
      const std::string wrong = model_.run_layer(batch, layer);
      if (wrong_.empty()) wrong_ = wrong;
    }
  }

  BatchResults draw(const Batch& batch) {
    BatchResults results;
    for (const BatchEntry& entry : batch.entries()) {
      for (int i = 0; i < entry.num_prompt_logits; ++i) results.prompt_logprobs.emplace_back();
      for (int i = 0; i < entry.num_samples; ++i) {
        OutputToken token;
        token.token = below(100) == 0 ? kEnd : 1 + below(kVocabSize - 1);
        results.samples.push_back(token);
      }
    }
    return results;
  }

  void run_chunk(const Chunk& chunk) {
    for (int i = 1 + below(3); i > 0; --i) {
      run_layers(chunk.batch, chunk.num_layers, chunk.num_layers + 1);
      scheduler_->passed_layer(1000 * chunk.batch.num_tokens());
      if (chunk.num_layers < layout_.num_layers()) continue;
      BatchResults results = draw(chunk.batch);
      return scheduler_->commit_chunk(results);
    }
  }

  void step() {
    clock_.advance_ns(below(50) * kNsPerMs);
    if (below(40) == 0) clock_.advance_ns(below(20) * 1000 * kNsPerMs);
    trouble_tiers();
    scheduler_->poll_tiers();
    const Batch& batch = scheduler_->schedule();
    const Chunk& chunk = scheduler_->chunk();
    expect(!batch.empty() || !chunk.empty() || !scheduler_->has_work() || scheduler_->is_loading(), "idle with work left");
    expect(batch.num_tokens() <= max_batch_tokens_, "a batch too large");
    if (!chunk.empty() && !chunk.rests) run_chunk(chunk);
    if (!batch.empty()) {
      run_layers(batch, 0, layout_.num_layers());
      BatchResults results = draw(batch);
      scheduler_->commit(batch, results);
      scheduler_->observe_step(batch, kNsPerMs * batch.num_tokens() * (1 + below(20)));
    }
    const KvStats kv = cache_->stats();
    expect(kv.num_slots_used >= 0 && kv.num_slots_used <= kv.num_slots_held, "slots in use");
    expect(kv.num_held + kv.num_cached <= kv.num_blocks, "more blocks than there are");
    const auto& stats = scheduler_->stats();
    expect(stats.num_prompt_tokens_cached <= stats.num_prompt_tokens, "more cached than sent");
    expect(stats.num_prefix_hits <= stats.num_prefix_queries, "more hits than questions");
  }

  void check_end() {
    const KvStats after = cache_->stats();
    expect(open_.empty(), "a request that never ended");
    expect(after.num_held == 0 && after.num_slots_used == 0 && scheduler_->num_waiting_tokens() == 0, "something is held");
    clock_.advance_ns(1'000'000 * kNsPerMs);
    cache_->expire_pins();
    expect(cache_->stats().num_pinned == 0, "a pin that never ends");
    cache_->clear();
    expect(cache_->stats().num_cached == 0, "a block that cannot be given up");
  }

  std::mt19937 random_;
  int max_batch_tokens_;
  ManualClock clock_;
  KvLayout layout_;
  KvStorage storage_;
  PlayedModel model_;
  FakeStore stores_[2];
  std::vector<FakeTier*> fakes_;
  std::unique_ptr<KvTiers> tiers_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::vector<TokenId>> texts_;  // that prompts begin with
  std::map<std::uint64_t, std::set<int>> open_;  // choices that have not ended
  std::set<std::pair<std::uint64_t, int>> heard_;
  std::uint64_t next_id_ = 1;
  std::string wrong_;
};

TEST(CacheStorm, NobodySeesAnothersBytesAndNothingIsLeftBehind) {
  std::uint64_t num_preemptions = 0, num_loaded = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    Storm storm(seed);
    ASSERT_EQ(storm.run(300), "") << "seed " << seed;
    num_preemptions += storm.num_preemptions();
    num_loaded += storm.num_loaded();
  }
  EXPECT_GT(num_preemptions, 100U);
  EXPECT_GT(num_loaded, 1000U);
}

}  // namespace
}  // namespace larder
