// The loop of byte-pair encoding: join the best neighbours until none may be joined.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "base/types.h"

namespace larder {

// What two neighbours become. Lower priority numbers go first, and of equal ones the leftmost.
struct Merge {
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t priority = kNever;
  TokenId result = -1;
};

// A token in the making; joined symbols keep the left one's place.
struct Symbol {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t begin = 0, end = 0;  // offsets in the text
  TokenId initial = -1;              // before anything was joined
  TokenId id = -1;
  std::uint32_t previous = kNone, next = kNone;
  Merge merge = {};  // with next
};

// Joins the symbols of one word in place: then walk from the first by next.
//
// A queue of pairs finds the best one, n log n. Over a long word that queue and the symbols would
// not fit the processor's caches, so such a word is merged in chunks, and around each seam once
// more. This changes nothing: a row of tokens is what merging makes of the whole if it is what
// merging makes of every two neighbours (the first merge of the whole that crossed from one token
// into the next would also be the best there was within these two alone).
template <class Lookup>  // lookup(const Symbol& left, const Symbol& right) -> Merge
class SymbolMerger {
 public:
  // chunk_size: in symbols.
  SymbolMerger(std::vector<Symbol>& symbols, std::vector<std::uint64_t>& queue, Lookup lookup,
               std::uint32_t chunk_size)
      : symbols_(symbols), queue_(queue), lookup_(lookup), chunk_size_(chunk_size) {}

  // symbols is not empty, and its begin, end and initial are set.
  void run() {
    const auto size = static_cast<std::uint32_t>(symbols_.size());
    text_end_ = symbols_.back().end;
    if (size / 2 <= chunk_size_) {
      merge_range(0, size);
      return;
    }
    std::uint32_t tail = merge_range(0, chunk_size_);
    for (std::uint32_t begin = chunk_size_; begin < size; begin += chunk_size_) {
      const std::uint32_t end = size - begin > chunk_size_ ? begin + chunk_size_ : size;
      const std::uint32_t chunk_tail = merge_range(begin, end);
      tail = join(tail, begin, end, chunk_tail);
      if (tail == Symbol::kNone) {
        merge_range(0, size);
        return;
      }
      if (end == size) return;
    }
  }

 private:
  std::uint64_t entry_of(std::uint32_t left) const {
    return std::uint64_t{symbols_[left].merge.priority} << 32 | left;
  }

  bool find_merge(std::uint32_t left) {
    Symbol& symbol = symbols_[left];
    symbol.merge = symbol.next == Symbol::kNone ? Merge{} : lookup_(symbol, symbols_[symbol.next]);
    return symbol.merge.priority != Merge::kNever;
  }

  // Starts over with the symbols [begin, end), linked to no others. Returns the last one's index.
  std::uint32_t merge_range(std::uint32_t begin, std::uint32_t end) {
    for (std::uint32_t i = begin; i < end; ++i) {
      Symbol& symbol = symbols_[i];
      symbol.end = i + 1 < symbols_.size() ? symbols_[i + 1].begin : text_end_;
      symbol.id = symbol.initial;
      symbol.previous = i == begin ? Symbol::kNone : i - 1;
      symbol.next = i + 1 == end ? Symbol::kNone : i + 1;
    }
    queue_.clear();
    for (std::uint32_t i = begin; i < end; ++i)
      if (find_merge(i)) queue_.push_back(entry_of(i));
    std::make_heap(queue_.begin(), queue_.end(), std::greater<>());
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
      const std::uint64_t entry = queue_.back();
      queue_.pop_back();
      // Pairs that are no longer neighbours are passed over: their priority is another one now.
      const auto left = static_cast<std::uint32_t>(entry);
      if (symbols_[left].merge.priority != Merge::kNever && entry_of(left) == entry)
        join_with_next(left);
    }
    std::uint32_t tail = begin;
    while (symbols_[tail].next != Symbol::kNone) tail = symbols_[tail].next;
    return tail;
  }

  void join_with_next(std::uint32_t left) {
    Symbol& symbol = symbols_[left];
    Symbol& gone = symbols_[symbol.next];
    symbol.id = symbol.merge.result;
    symbol.end = gone.end;
    symbol.next = gone.next;
    gone.merge = {};
    if (symbol.next != Symbol::kNone) symbols_[symbol.next].previous = left;
    for (const std::uint32_t i : {symbol.previous, left}) {
      if (i == Symbol::kNone || !find_merge(i)) continue;
      queue_.push_back(entry_of(i));
      std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
    }
  }

  // Joins the row that ends with left_tail and the chunk [begin, end): merges a few tokens on both
  // sides of the seam again, and more, until the outermost two come out as they were. Returns the
  // new row's tail; kNone = the two do not settle within a chunk on either side.
  std::uint32_t join(std::uint32_t left_tail, std::uint32_t begin, std::uint32_t end,
                     std::uint32_t right_tail) {
    std::uint32_t left = left_tail, right = begin;
    for (int num_tokens = 8;; num_tokens *= 4) {
      for (int k = 0; k < num_tokens && symbols_[left].previous != Symbol::kNone; ++k)
        left = symbols_[left].previous;
      for (int k = 0; k < num_tokens && symbols_[right].next != Symbol::kNone; ++k)
        right = symbols_[right].next;
      if (begin - left > chunk_size_) return Symbol::kNone;
      const Symbol first = symbols_[left], last = symbols_[right];
      const std::uint32_t tail = merge_range(left, last.next == Symbol::kNone ? end : last.next);
      link(first.previous, left);
      link(tail, last.next);
      const bool left_holds = first.previous == Symbol::kNone || symbols_[left].end == first.end;
      const bool right_holds = last.next == Symbol::kNone || tail == right;
      if (left_holds && right_holds) return last.next == Symbol::kNone ? tail : right_tail;
      right = tail;
    }
  }

  void link(std::uint32_t left, std::uint32_t right) {
    if (left != Symbol::kNone) symbols_[left].next = right;
    if (right != Symbol::kNone) symbols_[right].previous = left;
  }

  std::vector<Symbol>& symbols_;
  std::vector<std::uint64_t>& queue_;
  Lookup lookup_;
  std::uint32_t chunk_size_;
  std::uint32_t text_end_ = 0;
};

// The queue, its entries and a chunk's symbols fit a second-level cache.
inline constexpr std::uint32_t kMergeChunkSize = 2048;

template <class Lookup>
void merge_symbols(std::vector<Symbol>& symbols, std::vector<std::uint64_t>& queue, Lookup lookup,
                   std::uint32_t chunk_size = kMergeChunkSize) {
  SymbolMerger<Lookup>(symbols, queue, lookup, chunk_size).run();
}

}  // namespace larder
