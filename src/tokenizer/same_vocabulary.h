// Whether the token ids of two models mean the same.
#pragma once

#include <string>

#include "tokenizer/tokenizer.h"

namespace larder {

// "" where every id of both is the same text, and special in both or in neither, and what the one has beyond the other is
// padding ("[PAD123]") or special; else what differs first, as part of a sentence. Which tokens begin and end a text may
// differ: a base model's and those of its chats do.
std::string vocabulary_difference(const Tokenizer& model, const Tokenizer& other);

}  // namespace larder
