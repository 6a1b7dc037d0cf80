// Requests and replies without the wire: what the router and the APIs see.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/json_reader.h"

namespace larder {

struct HttpRequest {
  std::string method;         // GET, POST, ...
  std::string path;           // without the query, still percent-encoded
  std::string authorization;  // header values, "" when absent
  std::string content_type;
  std::string content_encoding;
  std::string origin;
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

std::string_view status_text(int status);

HttpResponse json_response(const Json& value, int status = 200);

// OpenAI's error body: {"error": {message, type, param, code}}.
struct ApiError {
  int status = 400;
  std::string code;  // "invalid_value", "context_length_exceeded", ...
  std::string message;
  std::string param;  // "" = null
};

Json error_json(const ApiError& error);
HttpResponse error_response(const ApiError& error);
ApiError to_api_error(const Error& error);

}  // namespace larder
