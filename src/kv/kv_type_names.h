// The types of keys and values as words, on the command line and in output.
#pragma once

#include <string>

#include "kernels/kv_type.h"

namespace larder {

// "int8" for both, or "k=int8,v=f16". Throws Error{kInvalidArgument}.
KvTypes parse_kv_types(const std::string& text);
std::string format_kv_types(KvTypes types);

}  // namespace larder
