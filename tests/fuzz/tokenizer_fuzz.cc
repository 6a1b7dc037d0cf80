// Vocabularies, good and bad, built from the input's first bytes; texts from the rest. What must
// hold: a bad vocabulary is refused with an Error; a good one turns any bytes into tokens that
// stand for just these bytes; text that is not trusted never becomes a special token.
#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "fuzz_target.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/nfc.h"
#include "tokenizer/symbol_merger.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : bytes_(reinterpret_cast<const char*>(data), size) {}
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(bytes_[0]);
    bytes_.remove_prefix(1);
    return value;
  }
  std::string string(std::size_t max_size) {
    const std::size_t wanted = byte() % (max_size + 1);
    const std::string text(bytes_.substr(0, wanted));
    bytes_.remove_prefix(text.size());
    return text;
  }
  // In [0, limit).
  std::size_t number(std::size_t limit) {
    const std::size_t high = byte();
    return (high * 256 + byte()) % limit;
  }
  std::string_view rest() const { return bytes_; }

 private:
  std::string_view bytes_;
};

struct Plan {
  bool drops_bytes = false;  // some byte has no token
  bool has_bytes = true;     // SentencePiece: byte tokens
};

constexpr const char* kPreTokenizers[] = {"smollm", "qwen2", "llama-bpe", "gpt-2", "default", "dbrx",
                                          "gpt-4o", "tekken", "seed-coder", "deepseek-llm", "deepseek-coder", "deepseek-v3"};

void add_new(Vocabulary& vocabulary, std::string text, TokenKind kind, float score) {
  vocabulary.tokens.push_back(std::move(text));
  vocabulary.kinds.push_back(kind);
  vocabulary.scores.push_back(score);
}

void add(Vocabulary& vocabulary, std::string text, TokenKind kind, float score) {
  const auto& tokens = vocabulary.tokens;
  if (std::find(tokens.begin(), tokens.end(), text) == tokens.end())
    add_new(vocabulary, std::move(text), kind, score);
}

Vocabulary make_bpe(Input& input, Plan& plan) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = kPreTokenizers[input.byte() % std::size(kPreTokenizers)];
  const std::uint8_t dropped = input.byte();
  plan.drops_bytes = dropped >= 128;
  const auto alphabet = byte_level_alphabet();
  for (int byte = 0; byte < 256; ++byte) {
    if (plan.drops_bytes && byte == dropped) continue;
    std::string text;
    append_utf8(alphabet[byte], text);
    add_new(vocabulary, text, TokenKind::kNormal, 0);
  }
  for (int left = input.byte() % 48; left > 0; --left) {
    const std::size_t size = vocabulary.tokens.size();
    const std::string a = vocabulary.tokens[input.number(size)];
    const std::string b = vocabulary.tokens[input.number(size)];
    if (a.size() + b.size() > 400) continue;
    add(vocabulary, a + b, TokenKind::kNormal, 0);
    const std::string merge = a + " " + b;
    if (std::find(vocabulary.merges.begin(), vocabulary.merges.end(), merge) ==
        vocabulary.merges.end())
      vocabulary.merges.push_back(merge);
  }
  return vocabulary;
}

Vocabulary make_sentence_piece(Input& input, Plan& plan) {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  const std::uint8_t flags = input.byte();
  vocabulary.add_space_prefix = flags % 2;
  vocabulary.prefixes_start_only = flags & 2;
  const bool has_merges = flags >= 128;  // in place of the scores
  plan.has_bytes = input.byte() % 4 != 0;
  add(vocabulary, "<unk>", TokenKind::kUnknown, 0);
  vocabulary.unk = 0;
  for (int byte = 0; plan.has_bytes && byte < 256; ++byte)
    add_new(vocabulary, fmt::format("<0x{:02X}>", byte), TokenKind::kByte, 0);
  for (const char* text : {"\u2581", "a", "b", "e", "t", "\u4e2d", "\u00e9"})
    add(vocabulary, text, TokenKind::kNormal, -100);
  for (int left = input.byte() % 48; left > 0; --left) {
    const std::size_t first = plan.has_bytes ? 257 : 1, size = vocabulary.tokens.size() - first;
    std::string text = vocabulary.tokens[first + input.byte() % size];
    std::string merge = text + " ";
    const std::string right = vocabulary.tokens[first + input.byte() % size];
    text += right;
    if (text.size() > 400) continue;
    merge += right;
    if (has_merges && std::ranges::find(vocabulary.merges, merge) == vocabulary.merges.end())
      vocabulary.merges.push_back(std::move(merge));
    const std::uint8_t score = input.byte();
    add(vocabulary, std::move(text), score % 16 == 1 ? TokenKind::kUnused : TokenKind::kNormal,
        -static_cast<float>(score / 4));
  }
  return vocabulary;
}

// Something a damaged or hostile file could say.
void damage(Vocabulary& vocabulary, Input& input) {
  switch (input.byte() % 10) {
    case 0:
      vocabulary.eos = static_cast<TokenId>(input.number(65536)) - 300;
      break;
    case 1:
      vocabulary.scores.resize(input.number(600));
      break;
    case 2:
      vocabulary.kinds.resize(input.number(600), TokenKind::kUserDefined);
      break;
    case 3:
      vocabulary.tokens[input.number(vocabulary.tokens.size())] = input.string(40);
      break;
    case 4:
      vocabulary.merges.push_back(input.string(40));
      break;
    case 5:
      vocabulary.tokens.resize(input.number(600));
      break;
    case 6:
      vocabulary.model = input.string(8);
      break;
    case 7:
      vocabulary.pre_tokenizer = input.string(8);
      break;
    case 8:
      vocabulary.kinds[input.number(vocabulary.kinds.size())] =
          static_cast<TokenKind>(input.byte());
      break;
    default:
      if (!vocabulary.merges.empty())
        vocabulary.merges[input.number(vocabulary.merges.size())] = input.string(40);
  }
}

std::string joined_bytes(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  std::string text;
  for (const TokenId token : tokens) text += tokenizer.token_bytes(token, true);
  return text;
}

// Decoding all at once and token by token agree, and never show half a character.
void check_decoding(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  StreamDecoder decoder(tokenizer, true);
  std::string streamed;
  for (const TokenId token : tokens) {
    const std::string part = decoder.push(token);
    CHECK(is_valid_utf8(part), token);
    streamed += part;
  }
  streamed += decoder.finish();
  CHECK(streamed == tokenizer.decode(tokens, true));
}

void check_text(const Tokenizer& tokenizer, const Vocabulary& vocabulary, const Plan& plan,
                const std::string& text) {
  const auto tokens = tokenizer.encode(text, false, false);
  for (const TokenId token : tokens)
    CHECK(!tokenizer.is_special(token) || token == vocabulary.unk, token);
  check_decoding(tokenizer, tokens);
  const std::string bytes = joined_bytes(tokenizer, tokens);
  if (vocabulary.model == "gpt2") {
    const bool normalizes = vocabulary.pre_tokenizer == "qwen2";
    const bool has_user_defined =
        std::count(vocabulary.kinds.begin(), vocabulary.kinds.end(), TokenKind::kUserDefined) > 0;
    if (!plan.drops_bytes && !normalizes) CHECK(bytes == text);
    if (!plan.drops_bytes && normalizes && !has_user_defined) {
      const std::optional<NormalizedText> normal = to_nfc(text);
      CHECK(bytes == (normal ? normal->text : text));
    }
    if (bytes == text && is_valid_utf8(text)) CHECK(tokenizer.decode(tokens) == text);
  } else if (plan.has_bytes && is_valid_utf8(text) && text.find("\u2581") == text.npos) {
    CHECK(tokenizer.decode(tokens) == text);
  }
}

// Every token's message is that of the span in which it begins.
void check_spans(const Tokenizer& tokenizer, const Vocabulary& vocabulary, const Plan& plan,
                 const std::string& text, Input input) {
  std::vector<TextSpan> spans;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.size(), begin + input.byte());
    const std::uint8_t flags = input.byte();
    spans.push_back({begin, end, flags % 2 == 1, flags / 2});
    begin = flags == 0 && end == begin ? text.size() : end;
    if (begin == text.size() && end != begin) spans.back().end = begin;
  }
  const Encoding encoding = tokenizer.encode(text, spans, true);
  CHECK(encoding.tokens.size() == encoding.messages.size());
  check_decoding(tokenizer, encoding.tokens);
  if (vocabulary.model != "gpt2" || plan.drops_bytes || vocabulary.pre_tokenizer == "qwen2") return;
  std::size_t offset = 0;
  auto span = spans.begin();
  for (std::size_t i = 0; i < encoding.tokens.size(); ++i) {
    while (span->end <= offset) ++span;
    CHECK(encoding.messages[i] == span->message, i);
    const std::size_t size = tokenizer.token_bytes(encoding.tokens[i], true).size();
    if (tokenizer.is_special(encoding.tokens[i]))
      for (auto s = span; s != spans.end() && s->begin < offset + size; ++s)
        CHECK(s->trusted || s->begin == s->end);
    offset += size;
  }
  CHECK(offset == text.size());
}

// The definition: the best pair of all, the leftmost of equals, again and again.
template <class Lookup>
std::vector<Symbol> merge_by_definition(std::vector<Symbol> symbols, Lookup lookup) {
  for (Symbol& symbol : symbols) symbol.id = symbol.initial;
  while (true) {
    std::size_t best = 0;
    Merge merge;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
      if (const Merge here = lookup(symbols[i], symbols[i + 1]); here.priority < merge.priority)
        merge = here, best = i;
    if (merge.priority == Merge::kNever) return symbols;
    symbols[best].id = merge.result;
    symbols[best].end = symbols[best + 1].end;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Merging in chunks, in one go, and by the definition come to the same.
void check_merging(Input input) {
  std::map<std::pair<TokenId, TokenId>, Merge> merges;
  for (std::uint32_t rank = input.byte() % 24; rank > 0; --rank) {
    const TokenId left = input.byte() % 12, right = input.byte() % 12;
    merges.try_emplace({left, right}, Merge{rank / 2, input.byte() % 12});
  }
  const auto lookup = [&](const Symbol& left, const Symbol& right) {
    const auto found = merges.find({left.id, right.id});
    return found == merges.end() || right.end - left.begin > 64 ? Merge{} : found->second;
  };
  std::vector<Symbol> symbols;
  for (const char c : input.rest().substr(0, 150)) {
    const auto at = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back({at, at + 1, static_cast<std::uint8_t>(c) % 4});
  }
  if (symbols.empty()) return;
  std::vector<std::uint64_t> queue;
  std::vector<Symbol> whole = symbols;
  const std::vector<Symbol> expected = merge_by_definition(symbols, lookup);
  merge_symbols(symbols, queue, lookup, 12);
  merge_symbols(whole, queue, lookup, 1u << 20);
  std::uint32_t i = 0;
  for (const Symbol& symbol : expected) {
    CHECK(i != Symbol::kNone && whole[i].id == symbol.id && whole[i].end == symbol.end, i);
    CHECK(symbols[i].id == symbol.id && symbols[i].end == symbol.end, i);
    CHECK(symbols[i].next == whole[i].next, i);
    i = whole[i].next;
  }
  CHECK(i == Symbol::kNone, i);
}

// Whether the vocabulary was taken for a good one, as all are to be but those that were damaged.
bool run(Input input) {
  const std::uint8_t mode = input.byte();
  if (mode % 8 == 0) {
    check_merging(input);
    return true;
  }
  Plan plan;
  Vocabulary vocabulary = mode % 2 ? make_bpe(input, plan) : make_sentence_piece(input, plan);
  add(vocabulary, "<|im_end|>", TokenKind::kControl, 0);
  for (int left = mode / 16 % 4; left > 0; --left)
    if (const std::string text = input.string(12); !text.empty() && is_valid_utf8(text))
      add(vocabulary, text, mode & 64 ? TokenKind::kUserDefined : TokenKind::kControl, -1000);
  vocabulary.eos = static_cast<TokenId>(vocabulary.tokens.size()) - 1;
  const bool is_damaged = mode >= 224;
  if (is_damaged) damage(vocabulary, input);
  const std::uint8_t repeats = input.byte();
  std::string text(input.rest());
  // A few long texts: what is not linear shows as a timeout.
  const std::size_t max_size = repeats == 255 ? 20'000 : repeats >= 224 ? 1'000 : 0;
  while (!text.empty() && 2 * text.size() <= max_size) text += text;
  try {
    const Tokenizer tokenizer(vocabulary);
    if (is_damaged) {
      check_decoding(tokenizer, tokenizer.encode(text, true, true));
      return true;
    }
    check_text(tokenizer, vocabulary, plan, text);
    check_spans(tokenizer, vocabulary, plan, text, input);
    return true;
  } catch (const Error& error) {
    const std::string_view reason = error.what();
    CHECK(error.kind() == ErrorKind::kInvalidArgument, reason);
    CHECK(reason.starts_with("tokenizer.ggml."), reason);
    // Merges may come to the text of a token that ends a turn.
    CHECK(is_damaged || reason.ends_with("is a special token"), reason);
    return false;
  }
}

}  // namespace
}  // namespace larder

bool try_input(const std::uint8_t* data, std::size_t size) {
  return larder::run(larder::Input(data, size));
}
