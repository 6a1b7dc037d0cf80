#include "server/http_message.h"

#include "server/request_id.h"

namespace larder {
namespace {

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 500:
    case 502:
    case 504:
    case 508:
      return "server_error";
    case 503:
      return "overloaded_error";
    default:
      return "invalid_request_error";
  }
}

std::string_view anthropic_error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
    case 504:
      return "timeout_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 500:
    case 502:
    case 508:
      return "api_error";
    case 503:
      return "overloaded_error";
    default:
      return "invalid_request_error";
  }
}

void add_error_headers(HttpResponse& response, int status) {
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
}

}  // namespace

ApiStyle style_of(std::string_view path) {
  constexpr std::string_view kMessages = "/v1/messages";
  const bool is_messages = path.starts_with(kMessages) &&
                           (path.size() == kMessages.size() || path[kMessages.size()] == '/');
  return is_messages ? ApiStyle::kAnthropic : ApiStyle::kOpenAi;
}

std::string_view status_text(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 508:
      return "Loop Detected";
    case 529:
      return "Overloaded";
    default:
      return "Error";
  }
}

HttpResponse json_response(const Json& value, int status) {
  return {.status = status, .body = dump_json(value)};
}

Json error_json(const ApiError& error) {
  Json inner = {{"message", error.message}, {"type", error_type(error.status)}};
  inner["param"] = error.param.empty() ? Json() : Json(error.param);
  inner["code"] = error.code;
  return {{"error", std::move(inner)}};
}

Json anthropic_error_json(const ApiError& error, const std::string& request_id) {
  Json body = {{"type", "error"}};
  body["error"] = {{"type", anthropic_error_type(error.status)}, {"message", error.message}};
  // By which its client knows to send the whole conversation.
  if (error.param == kThreadField) body["error"]["details"] = {{"error_code", "thread_unsupported_request"}};
  body["request_id"] = request_id;
  return body;
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response = json_response(error_json(error), error.status);
  add_error_headers(response, error.status);
  return response;
}

HttpResponse anthropic_error_response(const ApiError& error, const std::string& request_id) {
  // Clients know its type by a status of its own.
  const int status = error.status == 503 ? 529 : error.status;
  HttpResponse response = json_response(anthropic_error_json(error, request_id), status);
  add_error_headers(response, error.status);
  response.headers.emplace_back("request-id", request_id);
  return response;
}

ApiStyle error_style_of(const HttpRequest& request) {
  return request.anthropic_version.empty() ? style_of(request.path) : ApiStyle::kAnthropic;
}

HttpResponse error_response(const ApiError& error, const HttpRequest& request) {
  if (error_style_of(request) == ApiStyle::kOpenAi) return error_response(error);
  return anthropic_error_response(error, "req_" + make_request_id());
}

ApiError to_api_error(const Error& error) {
  ApiError result;
  result.message = error.message();
  result.param = error.param();
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument:
      result.status = 400, result.code = "invalid_value";
      break;
    case ErrorKind::kNotFound:
      result.status = 404, result.code = "not_found";
      break;
    case ErrorKind::kUnauthorized:
      result.status = 401, result.code = "invalid_api_key";
      break;
    case ErrorKind::kPromptTooLong:
      result.status = 400, result.code = "context_length_exceeded";
      break;
    case ErrorKind::kTooLarge:
      result.status = 413, result.code = "too_large";
      break;
    case ErrorKind::kUnavailable:
      result.status = 503, result.code = "unavailable";
      break;
    case ErrorKind::kStopped:
      result.status = 503, result.code = "engine_stopped";
      break;
  }
  if (error.kind() == ErrorKind::kNotFound && error.param() == "model")
    result.code = "model_not_found";
  return result;
}

}  // namespace larder
