// What a client says that the answer may be (OpenAI's Predicted Outputs).
#pragma once

#include <string>

namespace larder {

class Fields;

// "prediction": {"type": "content", "content": a string or text parts}; "" = none. Throws Error{kInvalidArgument} with the
// field as param. Thread: any.
std::string read_prediction(const Fields& fields);

}  // namespace larder
