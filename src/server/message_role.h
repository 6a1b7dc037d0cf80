// What roles of messages mean.
#pragma once

#include <string_view>

namespace larder {

// "developer" is OpenAI's newer name of "system".
inline bool is_system_role(std::string_view role) { return role == "system" || role == "developer"; }

}  // namespace larder
