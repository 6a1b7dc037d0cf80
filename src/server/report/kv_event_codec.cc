#include "server/report/kv_event_codec.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/check.h"
#include "kv/cache/prefix_cache.h"

namespace larder {
namespace {

// Keeps a map's order, so that "type" comes first.
using Json = nlohmann::ordered_json;

constexpr std::size_t kHashBytes = 8;

// vLLM says GPU of its pool on any device, and routers give what they do not know less weight.
const char* name_of(KvMedium medium) {
  switch (medium) {
    case KvMedium::kPool: return "GPU";
    case KvMedium::kHost: return "CPU";
    case KvMedium::kDisk: return "STORAGE";
  }
  CHECK(false, static_cast<int>(medium));
}

// Fields in the array's order. kArray has no names for them.
class EventWriter {
 public:
  EventWriter(const char* type, KvEventFormat format)
      : format_(format), event_(format == KvEventFormat::kMap ? Json::object() : Json::array()) {
    field("type", type);
  }

  void field(const char* name, Json value) {
    if (format_ == KvEventFormat::kMap)
      event_[name] = std::move(value);
    else
      event_.push_back(std::move(value));
  }
  Json take() { return std::move(event_); }

 private:
  const KvEventFormat format_;
  Json event_;
};

bool continues(const KvEvent& event, const KvEvent& before) {
  if (event.kind != before.kind || event.medium != before.medium || event.group != before.group) return false;
  return event.kind == KvEvent::Kind::kRemoved ||
         (!event.is_first && event.parent == before.digest && event.salt == before.salt);
}

// One entry for each block. As in vLLM a prompt's first one alone tells of the salt: all others follow it, so that
// hits of one salt are not promised to another.
Json extra_keys(const KvEvent& first, std::size_t num_blocks, const Digest& plain_salt) {
  if (first.salt == plain_salt || !first.is_first) return nullptr;
  Json keys = Json::array_t(num_blocks);
  keys[0] = Json::array({to_hex(first.salt).substr(0, 2 * kHashBytes)});
  return keys;
}

// events: of one kind, medium and group.
Json encode_joined(std::span<const KvEvent> events, KvEventFormat format, const Digest& plain_salt) {
  const KvEvent& first = events.front();
  if (first.kind == KvEvent::Kind::kCleared) return EventWriter("AllBlocksCleared", format).take();
  Json hashes = Json::array();
  for (const KvEvent& event : events) hashes.push_back(kv_event_hash(event.digest));
  if (first.kind == KvEvent::Kind::kRemoved) {
    EventWriter removed("BlockRemoved", format);
    removed.field("block_hashes", std::move(hashes));
    removed.field("medium", name_of(first.medium));
    removed.field("group_idx", first.group);
    return removed.take();
  }
  Json tokens = Json::array();
  for (const KvEvent& event : events)
    for (const TokenId token : event.tokens) tokens.push_back(token);
  EventWriter stored("BlockStored", format);
  stored.field("block_hashes", std::move(hashes));
  stored.field("parent_block_hash", first.is_first ? Json() : Json(kv_event_hash(first.parent)));
  stored.field("token_ids", std::move(tokens));
  stored.field("block_size", kBlockSize);
  stored.field("lora_id", nullptr);
  stored.field("medium", name_of(first.medium));
  stored.field("lora_name", nullptr);
  stored.field("extra_keys", extra_keys(first, events.size(), plain_salt));
  stored.field("group_idx", first.group);
  // Routers count what of a group that sees all is there, and want to be told which that is.
  stored.field("kv_cache_spec_kind", first.window == 0 ? "full_attention" : "sliding_window");
  stored.field("kv_cache_spec_sliding_window", first.window == 0 ? Json() : Json(first.window));
  return stored.take();
}

std::vector<std::uint8_t> encode_batch(Json events, double unix_s) {
  Json batch = Json::array();
  batch.push_back(unix_s);
  batch.push_back(std::move(events));
  batch.push_back(0);  // the data-parallel rank
  return Json::to_msgpack(batch);
}

}  // namespace

std::uint64_t kv_event_hash(const Digest& digest) {
  std::uint64_t hash = 0;
  for (const std::uint8_t byte : std::span(digest).last<kHashBytes>()) hash = hash << 8 | byte;
  return hash;
}

std::vector<std::uint8_t> encode_kv_events(std::span<const KvEvent> events, double unix_s, KvEventFormat format,
                                           const Digest& plain_salt) {
  Json encoded = Json::array();
  // Of one kind and medium, by groups: a block's parent is of its own group or of the first.
  std::vector<KvEvent> run;
  while (!events.empty()) {
    const auto other = std::ranges::find_if(events, [&](const KvEvent& event) {
      return event.kind != events[0].kind || event.medium != events[0].medium;
    });
    run.assign(events.begin(), other);
    events = events.subspan(run.size());
    std::ranges::stable_sort(run, {}, &KvEvent::group);
    for (std::span<const KvEvent> rest = run; !rest.empty();) {
      std::size_t num_joined = 1;
      while (num_joined < rest.size() && continues(rest[num_joined], rest[num_joined - 1])) ++num_joined;
      encoded.push_back(encode_joined(rest.first(num_joined), format, plain_salt));
      rest = rest.subspan(num_joined);
    }
  }
  return encode_batch(std::move(encoded), unix_s);
}

std::vector<std::uint8_t> encode_kv_clear(double unix_s, KvEventFormat format) {
  Json events = Json::array();
  events.push_back(EventWriter("AllBlocksCleared", format).take());
  return encode_batch(std::move(events), unix_s);
}

}  // namespace larder
