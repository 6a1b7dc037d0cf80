#include "server/http_message.h"

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
      return "server_error";
    case 503:
      return "overloaded_error";
    default:
      return "invalid_request_error";
  }
}

}  // namespace

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
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

HttpResponse json_response(const Json& value, int status) {
  return {.status = status, .body = dump_json(value), .headers = {}};
}

Json error_json(const ApiError& error) {
  Json inner = {{"message", error.message}, {"type", error_type(error.status)}};
  inner["param"] = error.param.empty() ? Json() : Json(error.param);
  inner["code"] = error.code;
  return {{"error", std::move(inner)}};
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response = json_response(error_json(error), error.status);
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

ApiError to_api_error(const Error& error) {
  ApiError result;
  result.message = error.what();
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
    case ErrorKind::kTooLarge:
      result.status = 413, result.code = "too_large";
      break;
    case ErrorKind::kUnavailable:
      result.status = 503, result.code = "unavailable";
      break;
  }
  if (error.kind() == ErrorKind::kNotFound && error.param() == "model")
    result.code = "model_not_found";
  return result;
}

}  // namespace larder
