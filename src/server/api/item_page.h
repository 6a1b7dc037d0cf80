// Lists of items, page by page.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "server/chat/session_store.h"
#include "server/json_reader.h"

namespace larder {

// The query's limit, from 1 to most; usual if it is not given. Throws Error{kInvalidArgument}.
std::size_t read_limit(std::string_view query, std::size_t usual, std::size_t most);

// {object: "list", data, first_id, last_id, has_more} by the query's after, limit (1 to 100, 20 if not
// given) and order (asc, desc if not given). Ends early where the items take kMaxPageBytes together, but
// has one at least. Throws Error{kInvalidArgument} that names the parameter.
Json page_of(const std::vector<ItemPtr>& items, std::string_view query);
// The first page of all of them.
Json page_of(const std::vector<ItemPtr>& items);

inline constexpr std::size_t kMaxPageBytes = std::size_t{1} << 20;  // about

}  // namespace larder
