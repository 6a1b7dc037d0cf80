#include "replay.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "kv/cache/kv_cache.h"

namespace larder {
namespace {

std::span<const std::int32_t> fitting(const std::vector<std::int32_t>& request, int capacity) {
  return std::span(request).first(std::min(request.size(), static_cast<std::size_t>(capacity)));
}

// Blocks that the largest request takes.
int most_running(const Trace& trace, int capacity) {
  std::size_t most = 0;
  for (const auto& request : trace.requests) most = std::max(most, fitting(request, capacity).size());
  return static_cast<int>(most);
}

// Evicts until so many blocks are free.
void free_blocks(KvCache& cache, int num_blocks) {
  if (num_blocks == 0) return;
  BlockTable room;
  const int num_matched = cache.match(room, {}, "", 0);
  const bool has_room = cache.extend(room, num_blocks * kBlockSize);
  CHECK(num_matched == 0 && has_room, num_blocks);
  cache.release(room);
}

}  // namespace

ReplayResult replay(const Trace& trace, EvictionKind eviction, int capacity, CapacityOf of) {
  const std::vector<KvLayerShape> shapes = {{.num_kv_heads = 1, .head_dim = 2}};
  const KvLayout layout(shapes);
  const int room = of == CapacityOf::kIdle ? most_running(trace, capacity) : 0;
  KvStorage storage(layout, capacity + room);
  ManualClock clock;
  KvCache cache(layout, storage, clock, {.num_blocks = capacity + room, .eviction = eviction});
  ReplayResult result;
  std::vector<TokenId> tokens;
  std::chrono::nanoseconds spent{0};
  for (const auto& request : trace.requests) {
    const auto blocks = fitting(request, capacity);
    tokens.assign(blocks.size() * kBlockSize, 0);
    for (std::size_t i = 0; i < blocks.size(); ++i) tokens[i * kBlockSize] = blocks[i];
    const int num_tokens = static_cast<int>(tokens.size());
    const auto begin = std::chrono::steady_clock::now();
    BlockTable table;
    result.num_hits += cache.match(table, tokens, "", num_tokens) / kBlockSize;
    const bool has_room = cache.extend(table, num_tokens);
    CHECK(has_room, num_tokens);
    cache.publish(table, tokens, num_tokens);
    cache.release(table);
    free_blocks(cache, room);
    spent += std::chrono::steady_clock::now() - begin;
    result.num_blocks += static_cast<std::int64_t>(blocks.size());
  }
  if (result.num_blocks > 0)
    result.ns_per_block = static_cast<double>(spent.count()) / static_cast<double>(result.num_blocks);
  return result;
}

ReplayResult replay_belady(const Trace& trace, int capacity, CapacityOf of) {
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  // For each block of each request, the request that has it next.
  std::vector<std::vector<std::int64_t>> next_use(trace.requests.size());
  std::unordered_map<std::int32_t, std::int64_t> seen;
  for (std::size_t i = trace.requests.size(); i-- > 0;) {
    for (const std::int32_t block : fitting(trace.requests[i], capacity)) {
      const auto [place, is_first] = seen.try_emplace(block, kNever);
      next_use[i].push_back(place->second);
      place->second = static_cast<std::int64_t>(i);
    }
  }
  ReplayResult result;
  std::set<std::tuple<std::int64_t, int, std::int32_t>> idle;  // next use, depth, block
  std::unordered_map<std::int32_t, std::int64_t> cached;       // next use
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const auto blocks = fitting(trace.requests[i], capacity);
    bool is_hit = true;
    std::size_t num_missing = 0;
    for (std::size_t depth = 0; depth < blocks.size(); ++depth) {
      const auto found = cached.find(blocks[depth]);
      is_hit = is_hit && found != cached.end();
      result.num_hits += is_hit;
      if (found == cached.end())
        ++num_missing;
      else
        idle.erase({found->second, static_cast<int>(depth), blocks[depth]});
    }
    const auto evict_down_to = [&](std::size_t num_left) {
      while (cached.size() > num_left) {
        const auto last = std::prev(idle.end());
        cached.erase(std::get<2>(*last));
        idle.erase(last);
      }
    };
    const auto most = static_cast<std::size_t>(capacity);
    if (of == CapacityOf::kPool) evict_down_to(most - num_missing);
    for (std::size_t depth = 0; depth < blocks.size(); ++depth) {
      cached[blocks[depth]] = next_use[i][depth];
      idle.insert({next_use[i][depth], static_cast<int>(depth), blocks[depth]});
    }
    evict_down_to(most);
    result.num_blocks += static_cast<std::int64_t>(blocks.size());
  }
  return result;
}

}  // namespace larder
