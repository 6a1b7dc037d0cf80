// Whose turn it is among tenants who wait.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>

namespace larder {

// What a request asks for, in tokens.
struct FairDemand {
  std::int64_t num_prompt = 0;
  int num_choices = 1;
  std::int64_t num_beside = 0;  // that it holds in line beside its prompt
};

// A place in line.
struct FairTurn {
  std::uint64_t tenant = 0;
  int priority = 0;
  std::int64_t begin = 0;  // who has less goes first
  std::int64_t cost = 0;
  std::int64_t num_held = 0;  // tokens
  bool has_begun = false;
};

// What one tenant has in line.
struct InLine {
  int num_requests = 0;
  std::int64_t num_tokens = 0;  // that are held
};
using InLineByTenant = std::unordered_map<std::uint64_t, InLine>;

// Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): a request's turn comes where its tenant's earlier ones
// of that priority end, in tokens, or with the first in line, whichever is later. So who sends a thousand requests
// waits behind his own, and who sends one waits for no more than one of each other tenant's. Turns of one tenant are in
// order of arrival, and so are all where there is only one. A line that was empty has no memory of who used it.
//
// A request costs its prompt's tokens, and for each choice what answers have had on average.
// Thread: one.
class FairLine {
 public:
  FairTurn join(std::uint64_t tenant, int priority, const FairDemand& demand);
  // Its turn has come.
  void begin(FairTurn& turn);
  // It has gone without: it has cost nothing. Of one that has begun nothing is known any more.
  void leave(const FairTurn& turn);
  void observe_answer(int num_tokens);

  // Adds those who wait.
  void count(InLineByTenant& by_tenant) const;

 private:
  struct Account {
    std::int64_t end = 0;   // of all that it asked for
    std::int64_t last = 0;  // turn, while any waits
    InLine waiting;
  };
  // Of one priority; gone once nobody waits.
  struct Line {
    std::multiset<std::int64_t> turns;
    std::unordered_map<std::uint64_t, Account> accounts;
  };

  // Out of line; its tenant's account, for as long as the line is not closed.
  Account& depart(const FairTurn& turn);
  void close_if_empty(int priority);

  std::map<int, Line> lines_;
  std::int64_t latest_ = 0;  // turn that has begun
  double answer_tokens_ = 128;  // on average; until there were some, a guess
};

}  // namespace larder
