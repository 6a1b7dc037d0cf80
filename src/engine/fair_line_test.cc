#include "engine/fair_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace larder {
namespace {

constexpr int kPrompt = 1000;

// A line with names, in the order that a scheduler would take.
class Queue {
 public:
  void join(std::uint64_t tenant, int num_prompt = kPrompt, int n = 1, int priority = 0) {
    waiting_.push_back(line.join(tenant, priority, {.num_prompt = num_prompt, .num_choices = n}));
  }
  // Whose turn it is, who leaves the line for it.
  std::uint64_t next() {
    const auto first = std::ranges::min_element(waiting_, [](const FairTurn& a, const FairTurn& b) {
      return a.priority != b.priority ? a.priority < b.priority : a.begin < b.begin;
    });
    FairTurn turn = *first;
    waiting_.erase(first);
    line.begin(turn);
    return turn.tenant;
  }
  std::string next(int num) {
    std::string tenants;
    for (int i = 0; i < num; ++i) tenants += static_cast<char>('a' + next());
    return tenants;
  }
  void cancel_last() {
    line.leave(waiting_.back());
    waiting_.pop_back();
  }

  FairLine line;

 private:
  std::vector<FairTurn> waiting_;
};

TEST(FairLineTest, OneTenantsTurnsAreInOrderOfArrival) {
  FairLine line;
  std::mt19937 random(1);
  std::vector<FairTurn> waiting;
  std::int64_t latest = 0;  // of those that have begun
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 == 0 || waiting.empty()) {
      const auto num_prompt = static_cast<std::int64_t>(1 + random() % 5000);
      const FairTurn turn = line.join(7, 0, {.num_prompt = num_prompt, .num_choices = 1 + static_cast<int>(random() % 4)});
      EXPECT_GE(turn.begin, latest);
      if (!waiting.empty()) {
        EXPECT_GE(turn.begin, waiting.back().begin);
      }
      waiting.push_back(turn);
    } else {
      const auto at = random() % waiting.size();  // it passes others, or is cancelled
      if (random() % 3 == 0) {
        line.leave(waiting[at]);
      } else {
        line.begin(waiting[at]);
        latest = std::max(latest, waiting[at].begin);
      }
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(at));
      line.observe_answer(static_cast<int>(random() % 1000));
    }
  }
}

TEST(FairLineTest, WhoSendsOneDoesNotWaitForWhoSendsMany) {
  Queue queue;
  for (int i = 0; i < 100; ++i) queue.join(0);
  EXPECT_EQ(queue.next(3), "aaa");
  queue.join(1);
  EXPECT_EQ(queue.next(3), "aba");
}

TEST(FairLineTest, TenantsTakeTurns) {
  Queue queue;
  for (int i = 0; i < 6; ++i) queue.join(0);
  for (int i = 0; i < 3; ++i) queue.join(1);
  for (int i = 0; i < 3; ++i) queue.join(2);
  EXPECT_EQ(queue.next(12), "abcabcabcaaa");
}

TEST(FairLineTest, TurnsGoByTokensAndChoices) {
  Queue queue;
  for (int i = 0; i < 4; ++i) queue.join(0, 4 * kPrompt + 3 * 128);  // an answer counts 128
  for (int i = 0; i < 8; ++i) queue.join(1);
  EXPECT_EQ(queue.next(7), "abbbbab");
  Queue choices;
  for (int i = 0; i < 2; ++i) choices.join(0, kPrompt, 1 + 3 * (kPrompt + 128) / 128);
  for (int i = 0; i < 6; ++i) choices.join(1);
  const std::string order = choices.next(8);
  EXPECT_EQ(order.substr(0, 4), "abbb");
  EXPECT_NE(order.substr(4).find('a'), std::string::npos);
}

TEST(FairLineTest, WhatIsCancelledCostsNothing) {
  Queue queue;
  queue.join(1);
  for (int i = 0; i < 50; ++i) queue.join(0);
  for (int i = 0; i < 49; ++i) queue.cancel_last();
  for (int i = 0; i < 10; ++i) queue.join(1);
  EXPECT_EQ(queue.next(2), "ba");
  queue.join(0);
  EXPECT_EQ(queue.next(3), "bab") << "as if it had asked for one";
}

TEST(FairLineTest, PrioritiesComeFirstAndEachHasItsOwnLine) {
  Queue queue;
  for (int i = 0; i < 10; ++i) queue.join(0, kPrompt, 1, 5);
  queue.join(0);
  queue.join(1);
  EXPECT_EQ(queue.next(2), "ab") << "what one asked for at leisure does not count where it hurries";
}

TEST(FairLineTest, AnEmptyLineForgets) {
  Queue queue;
  for (int i = 0; i < 10; ++i) queue.join(0);
  queue.next(10);
  queue.join(0);
  queue.join(1);
  EXPECT_EQ(queue.next(2), "ab");
}

TEST(FairLineTest, CountsThoseWhoWait) {
  Queue queue;
  queue.join(0, 10);
  queue.join(0, 20, 2, -1);
  queue.join(3, 5);
  queue.next();
  InLineByTenant by_tenant;
  queue.line.count(by_tenant);
  EXPECT_EQ(by_tenant.size(), 2u);
  EXPECT_EQ(by_tenant[0].num_requests, 1);
  EXPECT_EQ(by_tenant[0].num_tokens, 10);
  EXPECT_EQ(by_tenant[3].num_tokens, 5);
}

}  // namespace
}  // namespace larder
