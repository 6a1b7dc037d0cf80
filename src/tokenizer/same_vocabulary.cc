#include "tokenizer/same_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace larder {
namespace {

constexpr std::size_t kMostShown = 40;  // bytes of a token

std::string shown(std::string_view text) {
  return fmt::format("{}{}", text.substr(0, kMostShown), text.size() > kMostShown ? "..." : "");
}

}  // namespace

std::string vocabulary_difference(const Tokenizer& model, const Tokenizer& other) {
  const int num_common = std::min(model.vocab_size(), other.vocab_size());
  for (TokenId id = 0; id < num_common; ++id) {
    if (model.token_text(id) != other.token_text(id))
      return fmt::format("token {} is '{}' in the one and '{}' in the other", id, shown(model.token_text(id)),
                         shown(other.token_text(id)));
    if (model.is_special(id) != other.is_special(id))
      return fmt::format("token {} ('{}') is special in one of them only", id, shown(model.token_text(id)));
  }
  const Tokenizer& larger = model.vocab_size() > num_common ? model : other;
  for (TokenId id = num_common; id < larger.vocab_size(); ++id)
    if (!larger.is_special(id) && !larger.token_text(id).starts_with("[PAD"))
      return fmt::format("the one has {} tokens and the other {}, and token {} ('{}') is no padding", model.vocab_size(),
                         other.vocab_size(), id, shown(larger.token_text(id)));
  return "";
}

}  // namespace larder
