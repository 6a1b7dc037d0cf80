// Lists of items, page by page.
#pragma once

#include <string_view>
#include <vector>

#include "server/json_reader.h"
#include "server/session_store.h"

namespace larder {

// {object: "list", data, first_id, last_id, has_more} by the query's after, limit (1 to 100, 20 if not
// given) and order (asc, desc if not given). Throws Error{kInvalidArgument} that names the parameter.
Json page_of(const std::vector<ItemPtr>& items, std::string_view query);

}  // namespace larder
