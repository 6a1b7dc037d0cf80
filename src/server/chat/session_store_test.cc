#include "server/chat/session_store.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace larder {
namespace {

constexpr SessionStore::Limits kWide{.max_bytes = 1 << 20, .max_count = 100};

Json item(const std::string& id, const std::string& text = "x") {
  return {{"id", id}, {"type", "message"}, {"role", "user"}, {"content", text}};
}

ResponsePtr add(SessionStore& store, const std::string& id, ResponsePtr previous = nullptr,
                const std::string& text = "x") {
  auto response = std::make_shared<StoredResponse>();
  response->id = id;
  response->body = {{"id", id}};
  response->previous = std::move(previous);
  response->input.push_back(make_item(item("in_" + id, text)));
  response->output.push_back(make_item(item("out_" + id, text)));
  store.put("me", response);
  return store.find_response("me", id);
}

void add_conversation(SessionStore& store, const std::string& id) {
  Conversation conversation;
  conversation.id = id;
  store.put("me", std::move(conversation));
}

TEST(SessionStore, OnlyTheOwnerSeesWhatIsItsOwn) {
  SessionStore store(kWide);
  add(store, "r");
  add_conversation(store, "c");
  EXPECT_NE(store.find_response("me", "r"), nullptr);
  EXPECT_NE(store.find_conversation("me", "c"), nullptr);
  EXPECT_EQ(store.find_items("me", {"in_r", "out_r", "none"}).size(), 2u);
  EXPECT_EQ(store.find_response("you", "r"), nullptr);
  EXPECT_EQ(store.find_conversation("you", "c"), nullptr);
  EXPECT_TRUE(store.find_items("you", {"in_r", "out_r"}).empty());
  EXPECT_FALSE(store.remove_response("you", "r"));
  EXPECT_FALSE(store.remove_conversation("you", "c"));
  EXPECT_FALSE(store.modify("you", "c", [](Conversation&) { FAIL(); }));
  // One is not the other.
  EXPECT_EQ(store.find_response("me", "c"), nullptr);
  EXPECT_FALSE(store.remove_conversation("me", "r"));
  EXPECT_TRUE(store.remove_response("me", "r"));
  EXPECT_TRUE(store.remove_conversation("me", "c"));
  EXPECT_EQ(store.size_bytes(), 0u);
}

TEST(SessionStore, AChainOutlivesTheRemovalOfItsBeginning) {
  SessionStore store(kWide);
  ResponsePtr last = add(store, "a");
  for (const char* id : {"b", "c"}) last = add(store, id, last);
  EXPECT_TRUE(store.remove_response("me", "a"));
  std::string ids;
  for (const ItemPtr& one : last->history()) ids += one->id() + " ";
  EXPECT_EQ(ids, "in_a out_a in_b out_b in_c out_c ");
}

TEST(SessionStore, StaysWithinItsBoundsAndDropsWhatIsLongestUnused) {
  SessionStore store({.max_bytes = 50'000, .max_count = 20});
  add(store, "first");
  for (int i = 0; i < 100; ++i) {
    add(store, std::to_string(i));
    ASSERT_NE(store.find_response("me", "first"), nullptr) << "used again and again";
    ASSERT_LE(store.count(), 20u);
  }
  EXPECT_EQ(store.find_response("me", "50"), nullptr);
  for (int i = 0; i < 100; ++i) {
    add(store, std::to_string(i), nullptr, std::string(5000, 'x'));
    ASSERT_LE(store.size_bytes(), 50'000u);
  }
  add(store, "too large", nullptr, std::string(100'000, 'x'));
  EXPECT_EQ(store.count(), 0u);
  EXPECT_EQ(store.size_bytes(), 0u);
}

// Or whoever sends much, stored or not, would have the rest dropped.
TEST(SessionStore, ItemsCountOnceTheyAreStored) {
  SessionStore store({.max_bytes = 50'000, .max_count = 20});
  add(store, "r");
  add_conversation(store, "c");
  const std::size_t before = store.size_bytes();
  const ItemPtr large = make_item(item("large", std::string(100'000, 'x')));
  EXPECT_EQ(store.size_bytes(), before);
  add(store, "next");
  EXPECT_NE(store.find_response("me", "r"), nullptr);
  EXPECT_EQ(store.count(), 3u);

  const ItemPtr small = make_item(item("small", std::string(10'000, 'x')));
  for (const char* id : {"c", "c"}) {  // counted once, wherever it stands
    ASSERT_TRUE(store.modify("me", id, [&](Conversation& conversation) {
      conversation.items.push_back(small);
    }));
  }
  EXPECT_GT(store.size_bytes(), before + 10'000);
  EXPECT_LT(store.size_bytes(), before + 15'000);
  store.remove_conversation("me", "c");
  EXPECT_GT(store.size_bytes(), before + 10'000) << "it is still there";
}

// Its members free nothing as long as its end is there: what others have is dropped for its end, not for them.
TEST(SessionStore, ALongChainCostsNobodyElseTheirs) {
  SessionStore store({.max_bytes = 100'000, .max_count = 1000});
  add_conversation(store, "c");
  ResponsePtr last;
  int length = 0;
  for (; last == nullptr || store.may_be_followed(*last); ++length)
    last = add(store, "r" + std::to_string(length), last, std::string(2000, 'x'));
  EXPECT_GT(length, 3);
  const std::string id = last->id;
  last.reset();
  // Others come and go; the chain is older than they are, and goes when it is its turn, as a whole.
  for (int i = 0; i < 5; ++i) {
    add(store, "other" + std::to_string(i), nullptr, std::string(8000, 'x'));
    ASSERT_NE(store.find_conversation("me", "c"), nullptr) << i;
    ASSERT_LE(store.size_bytes(), 100'000u);
  }
  EXPECT_EQ(store.find_response("me", id), nullptr);
  EXPECT_NE(store.find_response("me", "other4"), nullptr);
}

// What a chain's end keeps alive counts, too; and a long one ends without a deep stack.
TEST(SessionStore, AChainCountsAsAWhole) {
  SessionStore store({.max_bytes = 20 << 20, .max_count = 10});
  ResponsePtr last;
  for (int i = 0; i < 3000; ++i) {
    const std::size_t before = store.size_bytes();
    last = add(store, std::to_string(i), last);
    ASSERT_NE(last, nullptr);
    ASSERT_GT(store.size_bytes(), before);
  }
  EXPECT_EQ(last->history().size(), 6000u);
  last.reset();
  for (int i = 0; i < 10; ++i) add(store, "other" + std::to_string(i));
  EXPECT_LT(store.size_bytes(), 100'000u);
}

TEST(SessionStore, ModifyLeavesReadersTheirCopy) {
  SessionStore store(kWide);
  add_conversation(store, "c");
  const ConversationPtr before = store.find_conversation("me", "c");
  ASSERT_TRUE(store.modify("me", "c", [&](Conversation& conversation) {
    conversation.items.push_back(make_item(item("i")));
    conversation.metadata["a"] = "b";
  }));
  EXPECT_TRUE(before->items.empty());
  EXPECT_EQ(store.find_conversation("me", "c")->items.size(), 1u);
  EXPECT_EQ(store.find_items("me", {"i"}).size(), 1u);
}

TEST(SessionStore, ThreadsLoseNothing) {
  SessionStore store({.max_bytes = 64 << 20, .max_count = 1000});
  add_conversation(store, "c");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const std::string id = std::to_string(t) + "-" + std::to_string(i);
        store.modify("me", "c", [&](Conversation& conversation) {
          conversation.items.push_back(make_item(item(id)));
        });
        add(store, id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store.find_conversation("me", "c")->items.size(), 800u);
  EXPECT_EQ(store.count(), 801u);
}

}  // namespace
}  // namespace larder
