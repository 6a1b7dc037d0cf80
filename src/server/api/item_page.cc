#include "server/api/item_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <string>

#include "server/json_fields.h"
#include "server/url.h"

namespace larder {

std::size_t read_limit(std::string_view query, std::size_t usual, std::size_t most) {
  const auto text = query_parameter(query, "limit");
  if (!text) return usual;
  std::size_t limit = 0;
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), limit);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == text->data() + text->size();
  if (!whole || limit < 1 || limit > most)
    fail_field("limit", fmt::format("must be a number from 1 to {}, it is \"{}\"", most, shorten(*text)));
  return limit;
}

namespace {

bool read_is_ascending(std::string_view query) {
  const std::string order = query_parameter(query, "order").value_or("desc");
  if (order != "asc" && order != "desc") {
    fail_field("order", fmt::format("must be asc or desc, it is \"{}\"", shorten(order)));
  }
  return order == "asc";
}

Json make_page(std::span<const ItemPtr> items, std::size_t limit) {
  std::size_t num_bytes = 0, count = 0;
  while (count < std::min(limit, items.size())) {
    num_bytes += items[count]->num_bytes;
    if (count > 0 && num_bytes > kMaxPageBytes) break;
    ++count;
  }
  Json page = {{"object", "list"}, {"data", Json::array()}};
  for (const ItemPtr& item : items.first(count)) page["data"].push_back(item->json);
  page["first_id"] = count == 0 ? Json() : Json(items.front()->id());
  page["last_id"] = count == 0 ? Json() : Json(items[count - 1]->id());
  page["has_more"] = count < items.size();
  return page;
}

}  // namespace

Json page_of(const std::vector<ItemPtr>& items, std::string_view query) {
  const std::size_t limit = read_limit(query, 20, 100);
  std::vector<ItemPtr> ordered = items;
  if (!read_is_ascending(query)) std::ranges::reverse(ordered);
  std::size_t begin = 0;
  if (const auto after = query_parameter(query, "after")) {
    // The last one: behind the first of two the same page would come again.
    const auto is_it = [&](const ItemPtr& item) { return item->id() == *after; };
    const auto found = std::find_if(ordered.rbegin(), ordered.rend(), is_it);
    if (found == ordered.rend()) {
      fail_field("after", fmt::format("there is no item \"{}\" in the list", shorten(*after)));
    }
    begin = static_cast<std::size_t>(ordered.rend() - found);
  }
  return make_page(std::span<const ItemPtr>(ordered).subspan(begin), limit);
}

Json page_of(const std::vector<ItemPtr>& items) { return make_page(items, items.size()); }

}  // namespace larder
