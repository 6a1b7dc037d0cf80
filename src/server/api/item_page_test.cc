// Lists of items, page by page.
#include "server/api/item_page.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace larder {
namespace {

ItemPtr item(const std::string& id, std::size_t num_bytes = 10) {
  return make_item({{"id", id}, {"text", std::string(num_bytes, 'x')}});
}

// The pages' ids, one page after the other: "a b|c".
std::string walk(const std::vector<ItemPtr>& items, const std::string& query) {
  std::string shown, after;
  for (std::size_t num_pages = 0; num_pages <= items.size(); ++num_pages) {
    const Json page = page_of(items, query + after);
    if (!shown.empty()) shown += '|';
    for (const Json& one : page["data"]) shown += one["id"].get<std::string>() + ' ';
    shown.pop_back();
    if (!page["has_more"]) return shown;
    after = "&after=" + page["last_id"].get<std::string>();
  }
  return shown + "|...";
}

TEST(ItemPage, EndsWhereItsItemsAreLarge) {
  const std::vector<ItemPtr> items = {item("a"), item("b", 400'000), item("c", 700'000),
                                      item("d", 3'000'000), item("e"), item("f")};
  EXPECT_EQ(walk(items, "order=asc&limit=100"), "a b|c|d|e f");
  EXPECT_EQ(walk(items, "order=desc&limit=100"), "f e|d|c|b a");
  const Json all = page_of(items);
  EXPECT_EQ(all["data"].size(), 2u);
  EXPECT_EQ(all["last_id"], "b");
  EXPECT_EQ(all["has_more"], true);
  EXPECT_EQ(page_of({})["has_more"], false);
}

TEST(ItemPage, EndsWhereAnIdOccursTwice) {
  const std::vector<ItemPtr> items = {item("a"), item("b"), item("a"), item("c")};
  EXPECT_EQ(walk(items, "order=asc&limit=2"), "a b|a c");
  EXPECT_EQ(walk(items, "order=asc&limit=1"), "a|c");
  EXPECT_EQ(walk(items, "order=desc&limit=1"), "c|a");
}

}  // namespace
}  // namespace larder
