// The terminals that Lark's module "common" has.
#pragma once

#include <string_view>

namespace larder {

// As an expression of Python's; "" = there is none of that name. Those that end at the first chance there (strings and
// comments) do so here by what they cannot hold.
std::string_view lark_common_terminal(std::string_view name);

}  // namespace larder
