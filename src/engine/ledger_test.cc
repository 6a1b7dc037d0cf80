// Relatives among many prompts, and reasons that add up.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "engine/ledger.h"

namespace larder {
namespace {

using Tokens = std::vector<TokenId>;

Tokens random_text(int num_tokens, std::uint32_t seed) {
  std::mt19937 random(seed);
  Tokens tokens;
  for (int i = 0; i < num_tokens; ++i) tokens.push_back(static_cast<TokenId>(random() % 50000));
  return tokens;
}

Tokens operator+(Tokens left, const Tokens& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

PromptOrigin of(const std::string& id, std::uint64_t tenant = 0, std::uint64_t salt = 0) {
  PromptOrigin origin;
  origin.id = id;
  origin.tenant = tenant;
  origin.salt = salt;
  return origin;
}

// Remembers a prompt that was computed and answered.
void serve(Ledger& ledger, PromptOrigin origin, const Tokens& prompt, const Tokens& answer = {}) {
  const Comparison comparison = ledger.compare(std::move(origin), prompt, 0);
  ledger.complete(comparison.entry, answer);
}

int num_of(const std::vector<MissedTokens>& missed, MissReason reason) {
  int sum = 0;
  for (const MissedTokens& span : missed) {
    if (span.reason == reason) sum += span.end - span.begin;
  }
  return sum;
}

TEST(PromptSketch, FindsContentThatMoved) {
  const Tokens text = random_text(3000, 1);
  const PromptSketch whole = make_sketch(text, 7);
  const PromptSketch moved = make_sketch(random_text(500, 2) + text, 7);
  const auto num_shared = [&](const PromptSketch& other) {
    return std::ranges::count_if(whole.smallest, [&](std::uint64_t hash) {
      return std::ranges::find(other.smallest, hash) != other.smallest.end();
    });
  };
  EXPECT_GT(num_shared(moved), 12);
  EXPECT_EQ(num_shared(make_sketch(text, 8)), 0);
  EXPECT_EQ(num_shared(make_sketch(random_text(3000, 3), 7)), 0);
  EXPECT_TRUE(std::ranges::is_sorted(whole.smallest));
  EXPECT_EQ(make_sketch(random_text(9, 4), 7).size, 4u);
  EXPECT_EQ(make_sketch(random_text(5, 4), 7).size, 0u);
}

TEST(PromptSketch, PrefixHashesAreOfWholePrefixes) {
  const Tokens text = random_text(100, 1);
  const auto hashes = prefix_hashes(text, 3);
  EXPECT_EQ(hashes.size(), 6u);
  const std::vector<std::uint64_t> behind(hashes.begin() + 2, hashes.end());
  EXPECT_EQ(further_hashes(hashes[1], std::span(text).subspan(2 * kBlockSize)), behind);
  Tokens other = text;
  other[20] ^= 1;
  const auto others = prefix_hashes(other, 3);
  EXPECT_EQ(hashes[0], others[0]);
  for (std::size_t i = 1; i < hashes.size(); ++i) EXPECT_NE(hashes[i], others[i]);
}

TEST(Realign, FindsWhereTwoPromptsMeetAgain) {
  const Tokens head = random_text(50, 1), tail = random_text(60, 2);
  const Tokens left = head + random_text(7, 3) + tail, right = head + random_text(12, 4) + tail;
  const Realignment met = realign(left, right, 50);
  EXPECT_EQ(met.left_end, 57);
  EXPECT_EQ(met.right_end, 62);
  EXPECT_EQ(met.num_equal, 60);
  // A short end in common.
  const Tokens end = {9, 8, 7};
  const Realignment short_end = realign(head + Tokens{1} + end, head + Tokens{2, 3} + end, 50);
  EXPECT_EQ(short_end.left_end, 51);
  EXPECT_EQ(short_end.num_equal, 3);
  EXPECT_EQ(realign(head + random_text(30, 5), head + random_text(30, 6), 50).num_equal, 0);
  // One of them has ended.
  EXPECT_EQ(realign(head, head + tail, 50).num_equal, 0);
}

TEST(Ledger, FindsTheConversationThatGoesOn) {
  Ledger ledger(1 << 24);
  const Tokens system = random_text(300, 1);
  Tokens history[20];
  for (std::uint32_t i = 0; i < 20; ++i) {
    history[i] = system + random_text(200, 100 + i);
    serve(ledger, of("reply" + std::to_string(i)), history[i], random_text(40, 200 + i));
  }
  const Tokens answer = random_text(40, 205);
  const Comparison next =
      ledger.compare(of("next"), history[5] + answer + random_text(30, 999), 0);
  ASSERT_TRUE(next.relative);
  EXPECT_EQ(next.relative->origin.id, "reply5");
  EXPECT_EQ(next.num_common, 540);
  EXPECT_NE(next.relation, Relation::kRealigned);
}

TEST(Ledger, TellsWhatAPromptIsToItsRelative) {
  Ledger ledger(1 << 24);
  const Tokens text = random_text(80, 1), answer = random_text(40, 2);
  serve(ledger, of("a"), text, answer);
  const auto relation = [&](const Tokens& prompt) { return ledger.compare(of("b"), prompt, 0).relation; };
  EXPECT_EQ(relation(text), Relation::kExtends);
  EXPECT_EQ(relation(text + answer + random_text(9, 3)), Relation::kExtends);
  EXPECT_EQ(relation(text + random_text(100, 4)), Relation::kGeneratedDiffers);
  EXPECT_EQ(relation(Tokens(text.begin(), text.begin() + 40) + random_text(100, 4)), Relation::kUnrelated);
  EXPECT_EQ(relation(random_text(90, 5)), Relation::kUnrelated);
  Tokens edited = text + answer + random_text(9, 3);
  edited[90] ^= 1;
  EXPECT_EQ(relation(edited), Relation::kRealigned);
}

// Nothing of it was ever there, however long the prompt is by which it is extended.
TEST(Ledger, WhatComesInPlaceOfAnAnswerHasNotDiverged) {
  Ledger ledger(1 << 24);
  const Tokens text = random_text(80, 1);
  serve(ledger, of("a"), text, random_text(1, 2));
  const Comparison comparison = ledger.compare(of("b"), text + random_text(100, 3), 0);
  const auto missed = explain(comparison, {}, 180, 80);
  EXPECT_EQ(num_of(missed, MissReason::kNeverSeen), 100);
}

TEST(Ledger, KnowsEachAnswerOfAPrompt) {
  Ledger ledger(std::size_t{1} << 22);
  const Tokens text = random_text(80, 1), more = random_text(30, 9);
  const Tokens answers[] = {random_text(40, 2), random_text(50, 3), random_text(60, 4)};
  const std::uint64_t entry = ledger.compare(of("a", 1, 1), text, 0).entry;
  ledger.complete(entry, {});
  for (const Tokens& answer : answers) ledger.complete(entry, answer);
  const std::size_t size_bytes = ledger.size_bytes();
  for (const Tokens& answer : answers) ledger.complete(entry, answer);
  EXPECT_EQ(ledger.size_bytes(), size_bytes) << "none is kept twice";
  for (const Tokens& answer : answers) {
    const Tokens prompt = text + answer + more;
    const int num_known = 80 + static_cast<int>(answer.size());
    const Comparison next = ledger.compare(of("b", 1, 1), prompt, 0);
    EXPECT_EQ(next.num_common, num_known);
    EXPECT_EQ(next.relation, Relation::kExtends);
    // Of the last token no keys and values were computed.
    EXPECT_EQ(num_of(explain(next, {}, num_known + 30, 0), MissReason::kEvicted), num_known - 1);
    EXPECT_EQ(ledger.compare_with("a", of("c", 1, 1), prompt)->num_common, num_known);
    EXPECT_EQ(ledger.compare(of("c", 1, 2), prompt, 0).num_other_salt, num_known - 1);
    Tokens edited = prompt;
    edited[static_cast<std::size_t>(num_known) - 20] ^= 1;
    EXPECT_EQ(num_of(explain(ledger.compare(of("d", 1, 1), edited, 0), {}, num_known + 30, 0), MissReason::kDiverged), 20);
  }
  // They go with it.
  for (std::uint32_t i = 0; i < 2000; ++i) serve(ledger, of("other", 1, 1), random_text(300, 100 + i));
  EXPECT_LE(ledger.size_bytes(), std::size_t{1} << 22);
  EXPECT_FALSE(ledger.compare(of("e", 1, 1), text + answers[2] + more, 0).relative);
  EXPECT_EQ(ledger.compare(of("e", 1, 2), text + answers[2] + more, 0).num_other_salt, 0);
}

TEST(Ledger, FindsARelativeWhoseBeginningChanged) {
  Ledger ledger(1 << 24);
  for (std::uint32_t i = 0; i < 50; ++i)
    serve(ledger, of("reply" + std::to_string(i)), Tokens{1, 2, 3} + random_text(500, 100 + i));
  Tokens changed = Tokens{1, 2, 3} + random_text(500, 117);
  changed[4] += 1;
  const Comparison found = ledger.compare(of("next"), changed, 0);
  ASSERT_TRUE(found.relative);
  EXPECT_EQ(found.relative->origin.id, "reply17");
  EXPECT_EQ(found.num_common, 4);
  EXPECT_EQ(found.relation, Relation::kRealigned);
  EXPECT_EQ(found.realigned.left_end, 5);
  EXPECT_FALSE(ledger.compare(of("other"), random_text(500, 4711), 0).relative);
}

TEST(Ledger, KeepsTenantsAndSaltsApart) {
  Ledger ledger(1 << 24);
  const Tokens text = random_text(320, 1);
  serve(ledger, of("a", 1, 1), text);
  const Comparison other_tenant = ledger.compare(of("b", 2, 2), text, 0);
  EXPECT_FALSE(other_tenant.relative);
  EXPECT_EQ(other_tenant.num_other_salt, 0);
  const Comparison other_salt = ledger.compare(of("c", 1, 3), text, 0);
  EXPECT_FALSE(other_salt.relative);
  EXPECT_EQ(other_salt.num_other_salt, 320);
  EXPECT_FALSE(ledger.compare_with("a", of("d", 2, 2), text));
  EXPECT_FALSE(ledger.compare_with("a", of("d", 1, 3), text));
  ASSERT_TRUE(ledger.compare_with("a", of("d", 1, 1), text));
  EXPECT_FALSE(ledger.compare_with("unknown", of("d", 1, 1), text));
}

TEST(Ledger, APromptThatWasNotComputedIsNoRelative) {
  Ledger ledger(1 << 20);
  const Tokens text = random_text(500, 1);
  Tokens changed = text;
  changed[20] += 1;
  serve(ledger, of("a"), text);
  const Comparison refused = ledger.compare(of("refused"), changed, 0);
  EXPECT_FALSE(ledger.compare_with("refused", of("b"), changed));
  const Comparison again = ledger.compare(of("b"), changed, 0);
  ASSERT_TRUE(again.relative);
  EXPECT_EQ(again.relative->origin.id, "a");
  EXPECT_EQ(again.relation, Relation::kRealigned);
  ledger.complete(again.entry, {});
  EXPECT_EQ(ledger.compare(of("c"), changed, 0).relative->origin.id, "b");
  // They go with the others, and leave these their places in the index.
  for (std::uint32_t i = 0; i < 300; ++i) ledger.compare(of("refused"), random_text(1000, i), 0);
  EXPECT_LE(ledger.size_bytes(), std::size_t{1} << 20);
  ledger.complete(refused.entry, {});  // long gone
  serve(ledger, of("last"), text);
  ledger.compare(of("refused"), text, 0);
  EXPECT_EQ(ledger.compare(of("d"), text, 0).relative->origin.id, "last");
}

TEST(Ledger, AnAttemptThatIsForgottenTakesNoRoom) {
  Ledger ledger(std::size_t{1} << 20);
  const Tokens text = random_text(500, 1);
  serve(ledger, of("a"), text);
  for (std::uint32_t i = 0; i < 300; ++i)
    ledger.forget(ledger.compare(of("refused"), random_text(1000, 10 + i), 0).entry);
  EXPECT_EQ(ledger.num_prompts(), 1u);
  Tokens changed = text;
  changed[20] += 1;
  const Comparison found = ledger.compare(of("b"), changed, 0);
  ASSERT_TRUE(found.relative);
  EXPECT_EQ(found.relative->origin.id, "a");
  ledger.complete(found.entry, {});
  ledger.forget(found.entry);  // it was computed
  EXPECT_EQ(ledger.compare(of("c"), changed, 0).relative->origin.id, "b");
}

TEST(Ledger, StaysWithinItsBytes) {
  constexpr std::size_t kMost = 1 << 20;
  Ledger ledger(kMost);
  for (std::uint32_t i = 0; i < 300; ++i) {
    serve(ledger, of("reply" + std::to_string(i)), random_text(1000, i), random_text(100, 1000 + i));
    ASSERT_LE(ledger.size_bytes(), kMost);
  }
  EXPECT_GT(ledger.num_prompts(), 10u);
  EXPECT_FALSE(ledger.compare(of("x"), random_text(1000, 0), 0).relative);  // long gone
  ASSERT_TRUE(ledger.compare(of("x"), random_text(1000, 299), 0).relative);
  // A prompt that is too much by itself leaves nothing behind.
  serve(ledger, of("huge"), random_text(400000, 1));
  EXPECT_LE(ledger.size_bytes(), kMost);
}

// Nearly all of the two is the same text, in which a sketch sees a few more or less.
TEST(Ledger, WhatIsSharedFromTheStartComesBeforeWhatIsSharedElsewhere) {
  for (std::uint32_t i = 0; i < 40; ++i) {
    Ledger ledger(std::size_t{1} << 22);
    const Tokens app = random_text(1500, i), question = random_text(30, 100 + i);
    const Tokens alice = random_text(12, 200 + i) + app + question, answer = random_text(20, 300 + i);
    serve(ledger, of("alice"), alice, answer);
    serve(ledger, of("bob"), random_text(12, 400 + i) + app + random_text(30, 500 + i));
    const Tokens next = alice + answer + random_text(40, 600 + i);
    const Comparison comparison = ledger.compare(of("next"), next, 0);
    ASSERT_TRUE(comparison.relative);
    EXPECT_EQ(comparison.relative->origin.id, "alice") << i;
    EXPECT_NE(comparison.relation, Relation::kRealigned);
  }
}

// Within the first block, too: a time that stands there is to be told from another prompt's words.
TEST(Ledger, OfShortBeginningsTheLongestCounts) {
  for (const int num_same : {4, 8, 10, 12, 15}) {
    Ledger ledger(1 << 20);
    const Tokens rest = random_text(200, 1);
    const Tokens beginning = random_text(20, 2);
    const Tokens same(beginning.begin(), beginning.begin() + num_same);
    serve(ledger, of("same"), same + random_text(3, 3) + rest);
    // Newer ones have all of the rest as well, which hides that the first has it.
    for (std::uint32_t i = 0; i < 5; ++i)
      serve(ledger, of("other"), Tokens(beginning.begin(), beginning.begin() + 2) + random_text(11, 10 + i) + rest);
    const Comparison comparison = ledger.compare(of("new"), same + random_text(3, 4) + rest, 0);
    ASSERT_TRUE(comparison.relative);
    EXPECT_EQ(comparison.relative->origin.id, "same") << num_same;
    EXPECT_EQ(comparison.num_common, num_same);
  }
}

TEST(Ledger, ANamedConversationComesBeforeOneThatBeginsALittleMoreAlike) {
  Ledger ledger(std::size_t{1} << 22);
  const Tokens head = random_text(20, 1), system = random_text(60, 2), text = random_text(300, 3);
  PromptOrigin first = of("first"), second = of("second"), next = of("next");
  first.conversation = next.conversation = 1;
  second.conversation = 2;
  serve(ledger, first, head + Tokens{1, 2, 3} + system + text);
  serve(ledger, second, head + Tokens{1, 7, 8} + system + random_text(300, 4));
  const Tokens again = head + Tokens{1, 7, 9} + system + text + random_text(40, 5);
  const Comparison comparison = ledger.compare(next, again, 0);
  ASSERT_TRUE(comparison.relative);
  EXPECT_EQ(comparison.relative->origin.id, "first");
  const int num_again = static_cast<int>(again.size());
  EXPECT_EQ(num_of(explain(comparison, {}, num_again, 16), MissReason::kDiverged), num_again - 40 - 21);
}

TEST(Ledger, WhatNoPromptHasIsNeverSeen) {
  Ledger ledger(std::size_t{1} << 22);
  const Tokens tools = random_text(200, 1), rules = random_text(100, 2);
  serve(ledger, of("a"), random_text(30, 3) + tools + random_text(60, 4) + rules + random_text(400, 5));
  const Tokens prompt = random_text(10, 6) + tools + random_text(40, 7) + rules + random_text(400, 8);
  const Comparison comparison = ledger.compare(of("b"), prompt, 0);
  ASSERT_EQ(comparison.relation, Relation::kRealigned);
  const auto missed = explain(comparison, {}, static_cast<int>(prompt.size()), 0);
  EXPECT_EQ(num_of(missed, MissReason::kDiverged), 10 + 200 + 40 + 100);
  EXPECT_EQ(num_of(missed, MissReason::kNeverSeen), 400);
}

TEST(Ledger, AnotherSaltsPromptIsKnownToItsLastToken) {
  Ledger ledger(std::size_t{1} << 22);
  const Tokens prompt = random_text(215, 1);
  serve(ledger, of("a", 1, 1), prompt);
  EXPECT_EQ(ledger.compare(of("b", 1, 2), prompt, 0).num_other_salt, 215);
  EXPECT_EQ(ledger.compare(of("b", 1, 2), prompt + random_text(30, 2), 0).num_other_salt, 215);
  EXPECT_EQ(ledger.compare(of("b", 2, 2), prompt, 0).num_other_salt, 0);
}

// Nobody will ask for them: they would take the room of others.
TEST(Ledger, TheServersOwnQuestionsAreNotKept) {
  Ledger ledger(std::size_t{1} << 22);
  PromptOrigin own = of("own");
  own.is_servers_own = true;
  const Comparison asked = ledger.compare(own, random_text(300, 1), 0);
  ledger.complete(asked.entry, random_text(20, 2));
  ledger.forget(asked.entry);
  EXPECT_EQ(ledger.num_prompts(), 0u);
}

// It is forgotten first, and takes nothing with it that the other one has as well.
TEST(Ledger, TheLaterPromptIsFoundThoughTheEarlierWasCompletedLast) {
  Ledger ledger(std::size_t{1} << 20);
  const Tokens shared = random_text(1000, 1);
  const Comparison earlier = ledger.compare(of("earlier"), shared + random_text(1000, 2), 0);
  const Comparison later = ledger.compare(of("later"), shared + random_text(1000, 3), 0);
  ledger.complete(later.entry, {});
  ledger.complete(earlier.entry, {});
  const Tokens asked = shared + random_text(100, 4);
  std::string found = "later";
  for (std::uint32_t i = 0; found == "later"; ++i) {
    serve(ledger, of("other"), random_text(100, 10 + i));
    const Comparison comparison = ledger.compare(of("asked"), asked, 0);
    found = comparison.relative ? comparison.relative->origin.id : "nothing";
  }
  EXPECT_EQ(found, "nothing");
  EXPECT_FALSE(ledger.compare(of("x"), shared + random_text(1000, 3), 0).relative) << "it was there to the end";
}

// A conversation of messages of 1,000 tokens, of which the server leaves out the first ones.
struct Conversation {
  PromptOrigin origin;
  Tokens tokens = random_text(100, 1);  // the system prompt
};
Conversation shortened(const std::string& id, int num_dropped, int num_messages, std::uint32_t seed) {
  Conversation result{.origin = of(id)};
  PromptOrigin& origin = result.origin;
  origin.num_dropped = num_dropped;
  origin.parts = {{0, 0}};
  origin.sent_as = {0};
  for (int i = num_dropped; i < num_messages; ++i) {
    const auto message = static_cast<int>(origin.sent_as.size());
    origin.parts.push_back({static_cast<int>(result.tokens.size()), message});
    origin.sent_as.push_back(1 + i);
    result.tokens = result.tokens + random_text(1000, seed + static_cast<std::uint32_t>(i));
  }
  return result;
}

TEST(Ledger, FindsWhatTheServerHasKeptOfALongHistory) {
  Ledger ledger(1 << 24);
  const Conversation before = shortened("before", 0, 12, 10);
  serve(ledger, before.origin, before.tokens);
  const Conversation after = shortened("after", 10, 13, 10);
  const Comparison found = ledger.compare(after.origin, after.tokens, 0);
  ASSERT_TRUE(found.relative);
  EXPECT_EQ(found.num_common, 100);
  EXPECT_TRUE(found.compacted);
  EXPECT_EQ(found.realigned.left_end, 100);
  EXPECT_EQ(found.realigned.right_end, 10'100);
  EXPECT_EQ(found.realigned.num_equal, 2000);
  EXPECT_EQ(found.relation, Relation::kRealigned);
}

TEST(Ledger, WhatTheServerAsksItselfIsNobodysRelative) {
  Ledger ledger(1 << 24);
  const Tokens text = random_text(300, 1);
  serve(ledger, of("clients"), text);
  PromptOrigin own = of("servers");
  own.is_servers_own = true;
  serve(ledger, own, text + random_text(40, 2), random_text(40, 3));
  const Comparison found = ledger.compare(of("next"), text + random_text(40, 2), 0);
  ASSERT_TRUE(found.relative);
  EXPECT_EQ(found.relative->origin.id, "clients");
}

TEST(Ledger, OtherConversationsAreNotTheSameOneShortened) {
  Ledger ledger(1 << 24);
  const Conversation one = shortened("one", 0, 12, 10);
  serve(ledger, one.origin, one.tokens);
  const Conversation other = shortened("other", 10, 13, 500);
  const Comparison found = ledger.compare(other.origin, other.tokens, 0);
  ASSERT_TRUE(found.relative);
  EXPECT_EQ(found.num_common, 100);
  EXPECT_FALSE(found.compacted);
  EXPECT_NE(found.relation, Relation::kRealigned);
  // What comes first tells: another system prompt, other tools.
  Conversation same = shortened("same", 10, 13, 10);
  same.origin.system = 7;
  EXPECT_FALSE(ledger.compare(same.origin, same.tokens, 0).compacted);
  same.origin.system = 0;
  same.origin.tools = 7;
  EXPECT_FALSE(ledger.compare(same.origin, same.tokens, 0).compacted);
}

TEST(Explain, CoversWhatWasComputedOnce) {
  Ledger ledger(1 << 24);
  const Tokens text = random_text(200, 1);
  serve(ledger, of("a"), text, random_text(50, 2));
  Tokens edited = text + random_text(50, 2) + random_text(100, 3);
  edited[120] ^= 1;
  const Comparison comparison = ledger.compare(of("b"), edited, 0);
  EXPECT_EQ(comparison.relation, Relation::kRealigned);
  CacheFacts facts;
  facts.missed = {{.begin = 96, .end = 112, .cause = MissCause::kEvicted},
                  {.begin = 349, .end = 350, .cause = MissCause::kTooShort}};
  const auto missed = explain(comparison, facts, 350, 80);
  int place = 80;
  for (const MissedTokens& span : missed) {
    EXPECT_EQ(span.begin, place);
    place = span.end;
  }
  EXPECT_EQ(place, 350);
  EXPECT_EQ(num_of(missed, MissReason::kEvicted), 40);   // up to the first different token
  EXPECT_EQ(num_of(missed, MissReason::kDiverged), 130);  // up to the end of the relative's answer
  EXPECT_EQ(num_of(missed, MissReason::kNeverSeen), 99);
  EXPECT_EQ(num_of(missed, MissReason::kTooShort), 1);
}

// The nearest prompt goes on otherwise, but what is cached does not: another one had it.
TEST(Explain, WhatOthersHadWasNotLost) {
  Ledger ledger(1 << 24);
  const Tokens text = random_text(200, 1);
  serve(ledger, of("a"), text, random_text(60, 2));
  Comparison comparison = ledger.compare(of("b"), text + random_text(100, 3), 0);
  comparison.diverged_end = 260;  // by what the texts look like
  EXPECT_EQ(num_of(explain(comparison, {}, 300, 192), MissReason::kDiverged), 60);
  EXPECT_EQ(num_of(explain(comparison, {}, 300, 224), MissReason::kDiverged), 0);
  EXPECT_EQ(comparison.lost_end(224), 0);
}

// What an endless request computes beyond its window never is in the cache: it cannot be evicted.
TEST(Explain, WhatCouldNotBeSharedWasNotEvicted) {
  Ledger ledger(1 << 24);
  const Tokens text = random_text(160, 1);
  PromptOrigin endless = of("a");
  endless.num_shareable = 64;
  serve(ledger, endless, text, random_text(20, 2));
  const auto missed = explain(ledger.compare(of("b"), text, 0), {}, 160, 64);
  EXPECT_EQ(num_of(missed, MissReason::kEvicted), 0);
  EXPECT_EQ(num_of(missed, MissReason::kNeverSeen), 96);
}

// It hides nothing that an older one without a window had in the cache, in its prompt or its answer.
TEST(Explain, WhatAnOlderPromptHadWasEvictedWhateverAWindowKeeps) {
  Ledger ledger(1 << 24);
  const Tokens text = random_text(300, 1), answer = random_text(40, 2), more = random_text(60, 3);
  PromptOrigin endless = of("b", 1, 1);
  endless.num_shareable = 64;
  serve(ledger, of("a", 1, 1), text, answer);
  serve(ledger, endless, text, answer);
  serve(ledger, endless, text + answer + more, random_text(50, 4));
  const auto evicted_of = [&](const Tokens& prompt, std::uint64_t salt) {
    const Comparison comparison = ledger.compare(of("c", 1, salt), prompt, 0);
    const auto missed = explain(comparison, {}, static_cast<int>(prompt.size()), 0);
    return num_of(missed, salt == 1 ? MissReason::kEvicted : MissReason::kOtherSalt);
  };
  for (const std::uint64_t salt : {1U, 2U}) {
    EXPECT_EQ(evicted_of(text, salt), 300);
    EXPECT_EQ(evicted_of(text + answer + more, salt), 339);
  }
  // The one that goes furthest with it is its relative all the same, by what the cache never had.
  const Comparison next = ledger.compare(of("d", 1, 1), text + answer + more + random_text(30, 5), 0);
  EXPECT_EQ(next.num_common, 400);
  EXPECT_EQ(next.relative->origin.num_shareable, 64);
}

// By the same hashes as one without a window, of its answers, too.
TEST(Ledger, RelativesAreFoundBehindTheirWindows) {
  Ledger ledger(1 << 24);
  for (const int window : {64, 85, 120, 1000}) {
    const auto seed = static_cast<std::uint32_t>(window);
    const Tokens text = random_text(90, seed), answers[] = {random_text(60, seed + 1), random_text(70, seed + 2)};
    PromptOrigin endless = of("a");
    endless.num_shareable = window;
    const std::uint64_t entry = ledger.compare(endless, text, 0).entry;
    for (const Tokens& answer : answers) ledger.complete(entry, answer);
    for (const Tokens& answer : answers) {
      const Tokens prompt = text + answer + random_text(400, seed + 3);
      const Comparison next = ledger.compare(of("b"), prompt, 0);
      const int num_had = 90 + static_cast<int>(answer.size());
      EXPECT_EQ(next.num_common, num_had) << window;
      EXPECT_EQ(next.num_known, std::min(num_had - 1, window));
    }
  }
}

TEST(Explain, NeedsNoText) {
  Ledger ledger(1 << 24);
  const Tokens head = random_text(200, 1), tail = random_text(100, 2);
  PromptOrigin origin = of("a");
  origin.parts = {{0, 0}, {200, 1}};
  origin.roles = {"system", "user"};
  origin.sent_as = {0, 2};
  serve(ledger, origin, head + random_text(30, 3) + tail);
  const Tokens prompt = head + random_text(20, 4) + tail;
  Comparison comparison = ledger.compare(of("b"), prompt, 0);
  ASSERT_TRUE(comparison.relative);
  const auto of_whole = explain(comparison, {}, static_cast<int>(prompt.size()), 0);
  EXPECT_GT(num_of(of_whole, MissReason::kDiverged), 0);
  comparison.forget_text();
  const RememberedPrompt& relative = *comparison.relative;
  EXPECT_EQ(relative.tokens.capacity() + relative.origin.parts.capacity() +
                relative.origin.roles.capacity() + relative.origin.sent_as.capacity(),
            0u);
  EXPECT_EQ(relative.origin.id, "a");
  const auto of_rest = explain(comparison, {}, static_cast<int>(prompt.size()), 0);
  ASSERT_EQ(of_rest.size(), of_whole.size());
  for (std::size_t i = 0; i < of_rest.size(); ++i) {
    EXPECT_EQ(of_rest[i].end, of_whole[i].end);
    EXPECT_EQ(of_rest[i].reason, of_whole[i].reason);
  }
}

TEST(Explain, AddsUpWhateverTheFacts) {
  std::mt19937 random(5);
  const auto below = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)); };
  for (int round = 0; round < 2000; ++round) {
    Comparison comparison;
    const int num_prompt = 1 + below(300);
    const int num_cached = below(num_prompt + 1);
    if (below(3) > 0) {
      comparison.relative.emplace();
      comparison.relative->num_prompt = below(400);
      comparison.num_common = below(num_prompt + 1);
      comparison.realigned = {comparison.num_common + below(50), comparison.num_common + below(50), 5};
      comparison.relation = static_cast<Relation>(below(4));
      if (below(2) == 0) comparison.diverged_end = comparison.num_common + below(400);
    }
    comparison.num_known = below(2) * below(300);
    comparison.num_other_salt = below(2) * below(300);
    CacheFacts facts;
    for (int place = num_cached + below(20); place < num_prompt; place += below(80)) {
      const int end = std::min(num_prompt, place + 1 + below(40));
      facts.missed.push_back({place, end, static_cast<MissCause>(below(7))});
      place = end;
    }
    int place = num_cached;
    for (const MissedTokens& span : explain(comparison, facts, num_prompt, num_cached)) {
      ASSERT_EQ(span.begin, place);
      ASSERT_LT(span.begin, span.end);
      place = span.end;
    }
    ASSERT_EQ(place, num_prompt);
  }
}

}  // namespace
}  // namespace larder
