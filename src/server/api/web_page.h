// The page that a server shows at its root, see docs/web.md.
#pragma once

#include <string_view>

namespace larder {

// web/index.html. Thread: any.
std::string_view web_page();

}  // namespace larder
