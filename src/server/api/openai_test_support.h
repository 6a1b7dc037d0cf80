// Requests of OpenAI's API, for tests of what is read of them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "server/api/openai_request.h"

namespace larder {

inline const ServerLimits kLimits;
inline const RequestRules kRules{.limits = kLimits, .vocab_size = 100, .max_model_len = 512};

inline ChatRequest chat(const std::string& fields) {
  const std::string body = R"({"messages":[{"role":"user","content":"hi"}])" +
                           (fields.empty() ? "" : "," + fields) + "}";
  return parse_chat_request(parse_json(body, {}), kRules);
}

// The param of the error, "" if there is none.
template <class Parse>
std::string param_of(Parse parse) {
  try {
    parse();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()).rfind(error.param(), 0), 0u) << error.what();
    return error.param();
  }
  return "";
}

}  // namespace larder
