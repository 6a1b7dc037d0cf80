// Names for replies.
#pragma once

#include <string>

namespace larder {

// 32 hexadecimal digits, random. Thread: any.
std::string make_request_id();

}  // namespace larder
