// Which of a few texts are about a question: BM25 (Robertson and Zaragoza 2009).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

// Words are runs of letters and digits, in lower case; in scripts without spaces (Chinese, Japanese, Thai) any two signs
// in a row. Immutable. Thread: any.
class Bm25 {
 public:
  explicit Bm25(const std::vector<std::string>& texts);

  // Indices of the texts that share a word with the question, the best first, at most so many; of two
  // that are as good the later one.
  std::vector<std::size_t> best(std::string_view question, std::size_t most) const;

 private:
  struct Posting {
    std::size_t text = 0;
    int count = 0;
  };

  // By word, in order of text. Not of hashes: clients choose the words.
  std::map<std::string, std::vector<Posting>> postings_;
  std::vector<int> lengths_;  // words
  double mean_length_ = 0;
};

}  // namespace larder
