#include "server/api/auth.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <cstddef>
#include <fstream>
#include <span>

#include "base/error.h"
#include "base/printable.h"

namespace larder {
namespace {

constexpr std::string_view kBlanks = " \t\r";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // some editors begin a file with it

Digest digest_of(std::string_view text) {
  return sha256(std::as_bytes(std::span(text.data(), text.size())));
}

// A comment begins a line, or follows a blank: keys may have the sign within.
void erase_comment(std::string& line) {
  for (std::size_t sign = line.find('#'); sign != std::string::npos; sign = line.find('#', sign + 1)) {
    if (sign == 0 || kBlanks.find(line[sign - 1]) != std::string_view::npos) return line.resize(sign);
  }
}

bool equal_in_constant_time(const Digest& a, const Digest& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

bool is_bearer(std::string_view scheme) {
  return boost::beast::iequals({scheme.data(), scheme.size()}, "bearer ");
}

}  // namespace

ApiKeys::ApiKeys(const std::vector<std::string>& keys,
                 const std::map<std::string, std::string>& groups) {
  for (const std::string& key : keys) {
    if (!key.empty()) digests_.push_back(digest_of(key));
  }
  for (const auto& [key, group] : groups) {
    if (!group.empty()) groups_[digest_of(key)] = digest_of("larder group\n" + group);
  }
}

Digest ApiKeys::cache_owner(const Digest& key) const {
  const auto group = groups_.find(key);
  return group == groups_.end() ? key : group->second;
}

std::string ApiKeys::common_salt() const {
  if (digests_.empty()) return {};
  const Digest owner = cache_owner(digests_[0]);
  const bool is_one = std::ranges::all_of(digests_, [&](const Digest& key) { return cache_owner(key) == owner; });
  return is_one ? derive_salt(owner, {}) : std::string();
}

std::optional<Digest> ApiKeys::match(std::string_view authorization) const {
  constexpr std::size_t kPrefix = 7;
  if (!is_bearer(authorization.substr(0, kPrefix))) return std::nullopt;
  return match_key(authorization.substr(kPrefix));
}

std::optional<Digest> ApiKeys::match_key(std::string_view key) const {
  const Digest given = digest_of(key);
  bool known = false;
  for (const Digest& digest : digests_) known |= equal_in_constant_time(given, digest);
  if (!known) return std::nullopt;
  return given;
}

void read_api_keys(const std::string& path, std::vector<std::string>& keys,
                   std::map<std::string, std::string>& groups) {
  std::ifstream file(path);
  if (!file)
    throw Error(ErrorKind::kNotFound, fmt::format("--api-key-file {}: cannot be read", path));
  const std::size_t num_before = keys.size();
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    erase_comment(line);
    line.erase(line.find_last_not_of(kBlanks) + 1);  // npos + 1 = 0
    line.erase(0, line.find_first_not_of(kBlanks));
    if (line.empty()) continue;
    const auto blank = line.find_first_of(kBlanks);
    keys.push_back(line.substr(0, blank));
    if (blank == std::string::npos) continue;
    const std::string group = line.substr(line.find_first_not_of(kBlanks, blank));
    const auto& known = groups.emplace(keys.back(), group).first->second;
    if (known != group) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("--api-key-file {}: a key has the groups '{}' and '{}'; leave one", path, printable(known), printable(group)));
    }
  }
  if (keys.size() == num_before) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("--api-key-file {}: there is no key in it; write one per line", path));
  }
}

std::string derive_salt(const std::optional<Digest>& key, std::string_view client_salt) {
  if (!key && client_salt.empty()) return {};
  std::string text = "larder salt 1\n";
  if (key) text.append(reinterpret_cast<const char*>(key->data()), key->size());
  text += '\n';
  text += client_salt;
  const Digest digest = digest_of(text);
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

}  // namespace larder
