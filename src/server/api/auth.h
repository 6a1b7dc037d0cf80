// Who may use the server, and whose KV is whose.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace larder {

// Immutable. Thread: any.
class ApiKeys {
 public:
  // groups: key -> a name; keys of one name share their cache.
  explicit ApiKeys(const std::vector<std::string>& keys,
                   const std::map<std::string, std::string>& groups = {});

  bool empty() const { return digests_.empty(); }
  // The digest of the key in "Bearer KEY", nullopt if it is none of ours. Takes the same time for
  // every wrong key: digests are compared, all of them, without an early end.
  std::optional<Digest> match(std::string_view authorization) const;
  // Likewise of a key as it is (x-api-key).
  std::optional<Digest> match_key(std::string_view key) const;
  // Whose cache a key's requests use: its own, or its group's.
  Digest cache_owner(const Digest& key) const;
  // That of the requests which send no salt, where all keys share one cache, or there are none; else "", which none has.
  std::string common_salt() const;

 private:
  std::vector<Digest> digests_;
  std::map<Digest, Digest> groups_;
};

// Adds the keys of a file: one per line, perhaps with a group after a blank; empty lines and comments
// (from a # on that begins the line or follows a blank) do not count. Throws Error where the file cannot be read, has no
// key, or a key with two groups.
void read_api_keys(const std::string& path, std::vector<std::string>& keys,
                   std::map<std::string, std::string>& groups);

// The salt under which a request's KV is shared: SHA-256 over the key's digest and what the client
// sent. A client can copy another's cache_salt but not its key, so that it cannot share or time its
// cache. Without both it is "", which all such requests share.
std::string derive_salt(const std::optional<Digest>& key, std::string_view client_salt);

}  // namespace larder
