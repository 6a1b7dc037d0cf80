// Bytes -> a request's target and its parts, a host, a remote tier's address.
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "fuzz_target.h"
#include "kv/tiers/remote_url.h"
#include "server/url.h"
#include "server/utf8.h"

namespace {

void read_target(std::string_view text) {
  const larder::RequestTarget target = larder::split_target(text);
  CHECK(target.authority.size() + target.path.size() + target.query.size() <= text.size() + 1);
  for (const std::string_view pattern : {"/v1/responses/{id}/input_items", "/v1/conversations/{id}/items/{item}", "/ui/"}) {
    if (!larder::path_matches(pattern, target.path)) continue;
    for (const std::string& value : larder::path_values(pattern, target.path)) {
      CHECK(!value.empty());
      CHECK(larder::to_valid_utf8(value) == value);
    }
  }
  const auto value = larder::query_parameter(target.query, "after");
  CHECK(!value || larder::to_valid_utf8(*value) == *value);
  larder::is_fixed_host(larder::host_of(target.authority));
}

// What is shown of an address leads to the same server, and never tells the password.
bool read_remote(std::string_view text) {
  try {
    const larder::RemoteUrl url = larder::parse_remote_url(text);
    CHECK(!url.host.empty() && url.port >= 1 && url.port <= 65535 && url.db >= 0);
    const larder::RemoteUrl again = larder::parse_remote_url("redis://" + url.display());
    CHECK(again.host == url.host && again.port == url.port && again.password.empty());
    return true;
  } catch (const larder::Error& error) {
    CHECK(error.kind() == larder::ErrorKind::kInvalidArgument);
    CHECK(std::string_view(error.what()).size() < 512);
    return false;
  }
}

}  // namespace

bool try_input(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read_target(text);
  larder::is_fixed_host(larder::host_of(text));
  return read_remote(text);
}
