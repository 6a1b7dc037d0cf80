// Requests and replies without the wire: what the router and the APIs see.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "server/json_reader.h"

namespace larder {

struct HttpRequest {
  std::string method;         // GET, POST, ...
  std::string path;           // without the query, still percent-encoded
  std::string query;          // what follows the '?', likewise
  std::string authorization;  // header values, "" when absent
  std::string api_key;        // x-api-key
  std::string content_type;
  std::string content_encoding;
  std::string host;
  std::string origin;
  std::string asked_headers;  // access-control-request-headers
  std::string asked_route;    // x-larder-route
  std::string passed;         // x-larder-via: the servers that have passed it on
  std::string anthropic_version;
  std::string anthropic_beta;  // of all headers of this name, with commas between
  std::string body;
  // What the engine answered to questions that routing the request raised (Reply::errand): bodies of
  // completions.
  std::unordered_map<Digest, std::string, DigestHash> answers;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  // In place of a body that there is no room for, where the request has changed something: that, in few bytes. "" = an
  // error says that there is none.
  std::string brief = {};
};

std::string_view status_text(int status);

HttpResponse json_response(const Json& value, int status = 200);

enum class ApiStyle { kOpenAi, kAnthropic };
ApiStyle style_of(std::string_view path);

struct ApiError {
  int status = 400;
  std::string code;  // "invalid_value", "context_length_exceeded", ...
  std::string message = {};
  std::string param = {};  // "" = null
};

// OpenAI's error body: {"error": {message, type, param, code}}.
Json error_json(const ApiError& error);
// A field of Anthropic's requests that is refused with an error_code of its own.
inline constexpr const char* kThreadField = "thread";
// Anthropic's: {"type": "error", "error": {type, message}, "request_id"}.
Json anthropic_error_json(const ApiError& error, const std::string& request_id);

HttpResponse error_response(const ApiError& error);
HttpResponse anthropic_error_response(const ApiError& error, const std::string& request_id);
// In the style of who asks: of the path, or of Anthropic's clients on a path that is both's or nobody's.
ApiStyle error_style_of(const HttpRequest& request);
HttpResponse error_response(const ApiError& error, const HttpRequest& request);
ApiError to_api_error(const Error& error);

}  // namespace larder
