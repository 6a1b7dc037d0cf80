#include "model/vocabulary.h"

#include <limits>

#include "base/error.h"
#include "base/printable.h"
#include "model/families.h"
#include "tokenizer/jinja/chat_template.h"
#include "tokenizer/pre_tokenizer.h"

namespace larder {
namespace {

constexpr std::size_t kMaxTokens = std::size_t{1} << 24;
constexpr std::string_view kChatTemplate = "tokenizer.chat_template";

std::string key(std::string_view name) { return fmt::format("tokenizer.ggml.{}", name); }

std::optional<TokenId> find_token(const GgufFile& gguf, std::string_view name,
                                  std::size_t num_tokens) {
  constexpr std::uint64_t kNone = 0xFFFFFFFF;  // some converters write it where there is none
  const auto id = gguf.find_uint(key(name));
  if (!id || *id == kNone) return std::nullopt;
  if (*id >= num_tokens)
    throw_invalid("GGUF: {}: {} is not one of the {} tokens", key(name), *id, num_tokens);
  return static_cast<TokenId>(*id);
}

// Refuses before the lists are copied: an array may claim as many elements as the file has bytes.
void check_lengths(const GgufFile& gguf) {
  const GgufValue* tokens = gguf.find(key("tokens"));
  if (!tokens) throw_invalid("GGUF: {}: the key is missing", key("tokens"));
  if (tokens->count < 1 || tokens->count > kMaxTokens)
    throw_invalid("GGUF: {}: {} tokens are not in [1, {}]", key("tokens"), tokens->count,
                  kMaxTokens);
  const GgufTensor* embedding = gguf.find_tensor("token_embd.weight");
  if (embedding && static_cast<std::uint64_t>(embedding->num_rows()) != tokens->count)
    throw_invalid("GGUF: {}: {} tokens, but token_embd.weight has {} rows", key("tokens"),
                  tokens->count, embedding->num_rows());
  for (const char* name : {"scores", "token_type"})
    if (const GgufValue* list = gguf.find(key(name)); list && list->count != tokens->count)
      throw_invalid("GGUF: {}: {} values for {} tokens", key(name), list->count, tokens->count);
  if (const GgufValue* merges = gguf.find(key("merges")); merges && merges->count > 2 * kMaxTokens)
    throw_invalid("GGUF: {}: {} merges are more than {}", key("merges"), merges->count,
                  2 * kMaxTokens);
}

std::vector<TokenKind> read_kinds(const GgufFile& gguf) {
  const auto numbers = gguf.find_ints(key("token_type"));
  if (!numbers) return {};
  std::vector<TokenKind> kinds;
  kinds.reserve(numbers->size());
  for (const std::int64_t number : *numbers) {
    if (number < static_cast<int>(TokenKind::kNormal) ||
        number > static_cast<int>(TokenKind::kByte))
      throw_invalid("GGUF: {}: kind {} of token {} is unknown", key("token_type"), number,
                    kinds.size());
    kinds.push_back(static_cast<TokenKind>(number));
  }
  return kinds;
}

// Files of Phi 3 do not tell what its tokenizer.json does: all special tokens but these strip what is behind them.
void add_strips_behind(Vocabulary& vocabulary) {
  for (std::size_t id = 0; id < vocabulary.kinds.size(); ++id) {
    const std::string& text = vocabulary.tokens[id];
    const bool is_none = text == "<s>" || text == "<unk>" || text == "<|endoftext|>";
    if (text == "</s>" || (vocabulary.kinds[id] == TokenKind::kControl && !is_none))
      vocabulary.strips_right.push_back(static_cast<TokenId>(id));
  }
}

std::vector<TokenId> read_ids(const GgufFile& gguf, std::string_view key, std::size_t num_tokens) {
  std::vector<TokenId> ids;
  for (const std::int64_t id : gguf.find_ints(key).value_or(std::vector<std::int64_t>()))
    ids.push_back(id >= 0 && id < static_cast<std::int64_t>(num_tokens) ? static_cast<TokenId>(id) : -1);
  return ids;
}

// A file may have a token without a text, which means nothing and is never to be made of one: named as others do.
void name_empty_tokens(Vocabulary& vocabulary) {
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!vocabulary.tokens[id].empty()) continue;
    vocabulary.tokens[id] = fmt::format("[EMPTY_{}]", id);
    if (!vocabulary.kinds.empty()) vocabulary.kinds[id] = TokenKind::kControl;
  }
}

}  // namespace

Vocabulary read_vocabulary(const GgufFile& gguf) {
  check_lengths(gguf);
  Vocabulary vocabulary;
  const auto model = gguf.find_string(key("model"));
  if (!model) throw_invalid("GGUF: {}: the key is missing", key("model"));
  if (*model != "gpt2" && *model != "llama")
    throw_invalid("GGUF: {}: '{}' is not supported; gpt2 and llama are", key("model"),
                  printable(*model));
  vocabulary.model = *model;
  vocabulary.pre_tokenizer = gguf.find_string(key("pre")).value_or("default");
  const auto tokens = gguf.find_strings(key("tokens"));
  vocabulary.tokens.assign(tokens->begin(), tokens->end());
  vocabulary.kinds = read_kinds(gguf);
  name_empty_tokens(vocabulary);
  const std::size_t num_tokens = vocabulary.tokens.size();
  auto scores = vocabulary.model == "llama" ? gguf.find_floats(key("scores")) : std::nullopt;
  if (scores) {
    vocabulary.scores = std::move(*scores);
  } else if (const auto merges = gguf.find_strings(key("merges"))) {
    vocabulary.merges.assign(merges->begin(), merges->end());
  } else {
    throw_invalid("GGUF: {}: the key is missing", key(vocabulary.model == "llama" ? "scores" : "merges"));
  }
  vocabulary.bos = find_token(gguf, "bos_token_id", num_tokens);
  vocabulary.eos = find_token(gguf, "eos_token_id", num_tokens);
  vocabulary.eot = find_token(gguf, "eot_token_id", num_tokens);
  vocabulary.eom = find_token(gguf, "eom_token_id", num_tokens);
  vocabulary.unk = find_token(gguf, "unknown_token_id", num_tokens);
  const bool is_sentence_piece = vocabulary.model == "llama";
  const PreTokenizerKind* kind = find_pre_tokenizer(vocabulary.pre_tokenizer);
  vocabulary.add_bos = gguf.find_bool(key("add_bos_token")).value_or(is_sentence_piece || (kind && kind->adds_bos));
  vocabulary.add_eos = gguf.find_bool(key("add_eos_token")).value_or(false);
  vocabulary.add_space_prefix = gguf.find_bool(key("add_space_prefix")).value_or(is_sentence_piece);
  vocabulary.prefixes_start_only = gguf.find_bool("larder.tokenizer.prefixes_start_only").value_or(false);
  vocabulary.prefixes_no_space = gguf.find_bool("larder.tokenizer.prefixes_no_space").value_or(false);
  vocabulary.ends = read_ids(gguf, "larder.tokenizer.end_ids", num_tokens);
  constexpr std::string_view kStripsRight = "larder.tokenizer.strips_right";
  vocabulary.strips_right = read_ids(gguf, kStripsRight, num_tokens);
  vocabulary.strips_left = read_ids(gguf, "larder.tokenizer.strips_left", num_tokens);
  const Family* family = find_family(gguf.find_string("general.architecture").value_or(""));
  const bool strips_behind = is_sentence_piece && family && family->strips_behind_specials;
  if (strips_behind && !gguf.find(kStripsRight)) add_strips_behind(vocabulary);
  return vocabulary;
}

std::string read_chat_template(const GgufFile& gguf) {
  const std::string_view plain = gguf.find_string(kChatTemplate).value_or("");
  const std::string_view with_tools = gguf.find_string("tokenizer.chat_template.tool_use").value_or("");
  std::string source = join_templates(plain, plain.empty() ? "" : with_tools);
  if (source.size() > kMaxTemplateBytes) {
    throw_invalid("GGUF: {}: it has {} bytes, {} at most are taken; give a shorter one with "
                  "--chat-template",
                  kChatTemplate, source.size(), kMaxTemplateBytes);
  }
  return source;
}

}  // namespace larder
