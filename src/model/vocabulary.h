// The tokenizer's data and the chat template, as a GGUF file states them.
#pragma once

#include <string>

#include "model/gguf.h"
#include "tokenizer/tokenizer.h"

namespace larder {

// Throws Error{kInvalidArgument} naming the field: no tokens, lists of different lengths, an id out
// of range, or another number of tokens than the embedding has rows.
Vocabulary read_vocabulary(const GgufFile& gguf);

// tokenizer.chat_template; "" when the file has none. Throws Error{kInvalidArgument} when it is
// longer than a ChatTemplate takes.
std::string read_chat_template(const GgufFile& gguf);

}  // namespace larder
