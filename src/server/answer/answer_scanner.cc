#include "server/answer/answer_scanner.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace larder {

std::vector<AnswerPiece> split_answer(std::string_view text, const ToolCallRules& rules) {
  AnswerScanner scanner(rules);
  std::vector<AnswerPiece> pieces = scanner.push(text);
  std::ranges::move(scanner.finish(), std::back_inserter(pieces));
  // Text that was held back follows its beginning.
  std::vector<AnswerPiece> joined;
  for (AnswerPiece& piece : pieces) {
    if (!piece.call && !joined.empty() && !joined.back().call && joined.back().is_thought == piece.is_thought) {
      joined.back().text += piece.text;
    } else {
      joined.push_back(std::move(piece));
    }
  }
  return joined;
}

}  // namespace larder
