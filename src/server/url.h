// The parts of a request's target.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

// "/path?query", or as it is sent to a proxy, "http://host:port/path?query".
struct RequestTarget {
  std::string_view authority;  // "host:port"; "" = it has none
  std::string_view path;
  std::string_view query;
};
RequestTarget split_target(std::string_view target);

// "%2F" -> "/". What is no escape stays as it is; the result is valid UTF-8.
std::string percent_decode(std::string_view text);

// The value of a parameter of "a=1&b=2", decoded; nullopt: it is not there.
std::optional<std::string> query_parameter(std::string_view query, std::string_view name);

// Whether a path is of the form of a pattern like "/v1/responses/{id}/input_items": "{...}" stands for
// one segment that is not empty, a last "/" for whatever follows it, if anything does; "/" is itself.
bool path_matches(std::string_view pattern, std::string_view path);
// The segments that stand for the pattern's "{...}", decoded. The path matches.
std::vector<std::string> path_values(std::string_view pattern, std::string_view path);

// The host of "host:port" or "http://host:port", as in the headers Host and Origin: in lower case,
// without the brackets of an IPv6 address.
std::string host_of(std::string_view authority);
// Whether a host is an IP address, "localhost" or "a.localhost": nobody can make those point
// elsewhere.
bool is_fixed_host(const std::string& host);

}  // namespace larder
