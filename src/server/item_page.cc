#include "server/item_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "server/json_fields.h"
#include "server/url.h"

namespace larder {
namespace {

std::size_t read_limit(std::string_view query) {
  constexpr int kDefault = 20, kMost = 100;
  const auto text = query_parameter(query, "limit");
  if (!text) return kDefault;
  int limit = 0;
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), limit);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == text->data() + text->size();
  if (!whole || limit < 1 || limit > kMost) {
    fail_field("limit", fmt::format("must be a number from 1 to {}, it is \"{}\"", kMost,
                                    shorten(*text)));
  }
  return static_cast<std::size_t>(limit);
}

bool read_is_ascending(std::string_view query) {
  const std::string order = query_parameter(query, "order").value_or("desc");
  if (order != "asc" && order != "desc") {
    fail_field("order", fmt::format("must be asc or desc, it is \"{}\"", shorten(order)));
  }
  return order == "asc";
}

}  // namespace

Json page_of(const std::vector<ItemPtr>& items, std::string_view query) {
  const std::size_t limit = read_limit(query);
  std::vector<ItemPtr> ordered = items;
  if (!read_is_ascending(query)) std::ranges::reverse(ordered);
  auto begin = ordered.begin();
  if (const auto after = query_parameter(query, "after")) {
    begin = std::ranges::find_if(ordered, [&](const ItemPtr& item) { return item->id() == *after; });
    if (begin == ordered.end()) {
      fail_field("after", fmt::format("there is no item \"{}\" in the list", shorten(*after)));
    }
    ++begin;
  }
  const auto num_left = static_cast<std::size_t>(ordered.end() - begin);
  const auto end = begin + static_cast<std::ptrdiff_t>(std::min(limit, num_left));
  Json page = {{"object", "list"}, {"data", Json::array()}};
  for (auto item = begin; item != end; ++item) page["data"].push_back((*item)->json);
  page["first_id"] = begin == end ? Json() : Json((*begin)->id());
  page["last_id"] = begin == end ? Json() : Json((*(end - 1))->id());
  page["has_more"] = num_left > limit;
  return page;
}

}  // namespace larder
