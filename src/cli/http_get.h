// One GET over plain HTTP.
#pragma once

#include <string>

namespace larder {

// The body of http://HOST[:PORT]/path. Throws Error: kInvalidArgument for another kind of URL,
// kUnavailable when nobody answers within ten seconds or the status is not 200. api_key: "" = none.
std::string http_get(const std::string& url, const std::string& path, const std::string& api_key);

}  // namespace larder
