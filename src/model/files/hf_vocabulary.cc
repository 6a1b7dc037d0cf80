#include "model/files/hf_vocabulary.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "model/files/hf_json.h"
#include "tokenizer/tokenizer.h"

namespace larder {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxTokens = std::size_t{1} << 24;

// Takes the two long lists as they are read: kept as JSON they would have ten times their size.
class ListReader {
 public:
  explicit ListReader(const std::string& path) : path_(path) {}

  std::vector<std::pair<std::string, std::uint64_t>> vocabulary;  // texts and ids
  std::vector<std::string> merges;

  // As parse_hf_json() wants it.
  bool keeps(int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if (event == Event::key && depth >= 1 && depth <= 3) {
      keys_[static_cast<std::size_t>(depth)] = value.get_ref<const std::string&>();
      if (depth == 2) list_ = keys_[1] != "model" ? List::kNone
                              : keys_[2] == "vocab"  ? List::kVocabulary
                              : keys_[2] == "merges" ? List::kMerges
                                                     : List::kNone;
      if (depth == 1) list_ = List::kNone;
      return depth != 3 || list_ != List::kVocabulary;  // what is not kept is read all the same
    }
    if (list_ == List::kVocabulary && depth == 3 && event == Event::value) add_token(value);
    if (list_ != List::kMerges || depth != 3 || (event != Event::value && event != Event::array_end)) return true;
    add_merge(value);
    return false;
  }

 private:
  enum class List { kNone, kVocabulary, kMerges };

  void add_token(const json& id) {
    // Of a list, as other types of models have it, no key came before.
    if (!id.is_number_unsigned()) throw_invalid("{}: model.vocab: the id of '{}' is not one", path_, printable(keys_[3]));
    vocabulary.emplace_back(std::move(keys_[3]), id.get<std::uint64_t>());
  }

  // "left right", or both in a list; there, one with a space is of no text.
  void add_merge(const json& merge) {
    if (merge.is_string()) {
      merges.push_back(merge.get<std::string>());
      return;
    }
    if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string())
      throw_invalid("{}: model.merges[{}]: is not a pair of texts", path_, merges.size());
    const auto& left = merge[0].get_ref<const std::string&>();
    const auto& right = merge[1].get_ref<const std::string&>();
    if (left.find(' ') != left.npos || right.find(' ') != right.npos) return;
    merges.push_back(left + " " + right);
  }

  const std::string& path_;
  std::array<std::string, 4> keys_;  // by depth
  List list_ = List::kNone;
};

void check_model(const HfObject& model) {
  if (const std::string type = model.string("type"); type != "BPE")
    model.fail("type", fmt::format("'{}' is not supported; BPE is", printable(type)));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model.find_string(key).value_or("").empty()) model.fail(key, "not supported");
  if (model.find_number("dropout").value_or(0) != 0) model.fail("dropout", "not supported");
}

void put_token(HfVocabulary& vocabulary, std::uint64_t id, std::string text, TokenKind kind) {
  if (id >= vocabulary.tokens.size()) {
    vocabulary.tokens.resize(id + 1);
    vocabulary.kinds.resize(id + 1, static_cast<std::int32_t>(TokenKind::kUnused));
  }
  vocabulary.tokens[id] = std::move(text);
  vocabulary.kinds[id] = static_cast<std::int32_t>(kind);
}

bool is_byte_name(std::string_view text) {
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
}

void add_tokens(const std::string& path, ListReader& lists, const HfObject& model, std::size_t num_rows,
                HfVocabulary& vocabulary) {
  const bool has_bytes = model.find_bool("byte_fallback").value_or(false);
  if (has_bytes && !vocabulary.rules.is_sentence_piece) model.fail("byte_fallback", "true is not supported of such a pre_tokenizer");
  vocabulary.unknown = model.find_string("unk_token").value_or("");
  for (auto& [text, id] : lists.vocabulary) {
    if (id >= num_rows)
      throw_invalid("{}: model.vocab: token '{}' has the id {}, but the embedding {} rows", path, printable(text), id, num_rows);
    if (id < vocabulary.tokens.size() && !vocabulary.tokens[id].empty())
      throw_invalid("{}: model.vocab: '{}' and '{}' have the id {}", path, printable(vocabulary.tokens[id]), printable(text), id);
    TokenKind kind = TokenKind::kNormal;
    if (has_bytes && is_byte_name(text)) kind = TokenKind::kByte;
    if (vocabulary.rules.is_sentence_piece && text == vocabulary.unknown) kind = TokenKind::kUnknown;
    put_token(vocabulary, id, std::move(text), kind);
  }
  if (vocabulary.rules.is_sentence_piece && !has_bytes && !model.find_bool("fuse_unk").value_or(false))
    model.fail("fuse_unk", "false is supported with byte_fallback only");
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<signed char>(c) >= 0; });
}

// Whether a text may hold both so that they have bytes in common.
bool may_overlap(std::string_view one, std::string_view other) {
  if (one.find(other) != one.npos || other.find(one) != other.npos) return true;
  for (std::size_t size = 1; size < std::min(one.size(), other.size()); ++size) {
    if (one.ends_with(other.substr(0, size)) || other.ends_with(one.substr(0, size))) return true;
  }
  return false;
}

// Tokens that the library looks for in the normalized text, behind those of the text as it is. Larder looks for all of
// them at once, in the text as it is: only those are taken of which that finds the same.
class NormalizedTokens {
 public:
  void add(const HfObject& token, const std::string& content) {
    // Absent = false, as the library reads it.
    auto& list = token.find_bool("normalized").value_or(false) ? normalized_ : others_;
    list.push_back(content);
  }

  void check(HfNormalizer normalizer) const {
    // Comparing two takes as long as the product of their lengths.
    const auto sum_of_sizes = [](const std::vector<std::string>& tokens) {
      std::size_t sum = 0;
      for (const std::string& token : tokens) sum += token.size();
      return sum;
    };
    const bool is_pairable = normalized_.empty() || sum_of_sizes(others_) <= kMaxSteps / sum_of_sizes(normalized_);
    for (const std::string& token : normalized_) {
      const bool is_changed =
          normalizer == HfNormalizer::kPrefixed || (normalizer == HfNormalizer::kNfc && !is_ascii(token)) ||
          (normalizer == HfNormalizer::kSpaces && (token.find(' ') != token.npos || token.find(kSpace) != token.npos));
      if (is_changed) fail(token, "the normalizer changes it, or the text around it");
      if (!is_pairable) fail(token, "there are too many tokens to compare it with");
      const auto other = std::ranges::find_if(others_, [&](const std::string& text) { return may_overlap(token, text); });
      if (other != others_.end()) fail(token, fmt::format("a text may hold it and '{}' at one place", printable(*other)));
    }
  }

 private:
  static constexpr std::size_t kMaxSteps = std::size_t{1} << 36;
  static constexpr std::string_view kSpace = "\u2581";

  [[noreturn]] static void fail(const std::string& token, const std::string& reason) {
    throw_invalid("tokenizer.json: added_tokens: normalized: true, of '{}', is not supported: {}", printable(token), reason);
  }

  std::vector<std::string> normalized_, others_;
};

void add_added_tokens(const HfObject& tokenizer, std::size_t num_rows, HfVocabulary& vocabulary) {
  const json* added = tokenizer.find("added_tokens");
  if (!added) return;
  if (!added->is_array()) tokenizer.fail("added_tokens", "is not a list");
  NormalizedTokens normalized;
  for (const json& entry : *added) {
    const HfObject token("tokenizer.json: added_tokens", entry);
    const auto id = token.find_uint("id");
    std::string content = token.string("content");
    if (!id || content.empty()) token.fail("id", "missing, or a token without a text");
    if (*id >= kMaxTokens) token.fail("id", fmt::format("{} is more than {}", *id, kMaxTokens));
    if (token.find_bool("single_word").value_or(false))
      token.fail("single_word", fmt::format("true, of '{}', is not supported", printable(content)));
    if (*id >= num_rows) continue;  // such as that of images, in a model of texts
    normalized.add(token, content);
    const bool is_unknown = vocabulary.rules.is_sentence_piece && content == vocabulary.unknown;
    const TokenKind kind = token.find_bool("special").value_or(false) ? TokenKind::kControl : TokenKind::kUserDefined;
    if (token.find_bool("lstrip").value_or(false)) vocabulary.strips_left.push_back(static_cast<std::int32_t>(*id));
    if (token.find_bool("rstrip").value_or(false)) vocabulary.strips_right.push_back(static_cast<std::int32_t>(*id));
    put_token(vocabulary, *id, std::move(content), is_unknown ? TokenKind::kUnknown : kind);
  }
  normalized.check(vocabulary.rules.normalizer);
}

// What a text gets before and behind it, of which other kinds of post_processor put none or several.
void read_template(const HfObject& tokenizer, HfVocabulary& vocabulary) {
  const json* processor = tokenizer.find("post_processor");
  if (!processor) return;
  std::vector<const json*> steps = {processor};
  const HfObject object("tokenizer.json: post_processor", *processor);
  if (object.string("type") == "Sequence") {
    const json* list = object.find("processors");
    if (!list || !list->is_array()) object.fail("processors", "is not a list");
    steps.clear();
    for (const json& step : *list) steps.push_back(&step);
  }
  for (const json* value : steps) {
    const HfObject step("tokenizer.json: post_processor", *value);
    const std::string type = step.string("type");
    if (type == "ByteLevel") continue;
    const json* single = step.find("single");
    if (type != "TemplateProcessing" || !single || !single->is_array())
      step.fail("type", fmt::format("'{}' is not supported; TemplateProcessing is", printable(type)));
    bool is_behind = false;
    for (const json& piece : *single) {
      const HfObject part("tokenizer.json: post_processor: single", piece);
      if (part.find("Sequence")) {
        is_behind = true;
        continue;
      }
      const auto token = part.find_object("SpecialToken");
      std::string& place = is_behind ? vocabulary.after : vocabulary.before;
      if (!token || !place.empty()) part.fail("SpecialToken", "missing, or several on one side of a text");
      place = token->string("id");
    }
  }
}

}  // namespace

TokenId HfVocabulary::find(std::string_view text) const {
  const auto found = std::ranges::find(tokens, text);
  return text.empty() || found == tokens.end() ? -1 : static_cast<TokenId>(found - tokens.begin());
}

HfVocabulary read_hf_vocabulary(const std::string& path, std::string_view text, std::size_t num_rows) {
  if (num_rows > kMaxTokens) throw_invalid("{}: {} rows of the embedding are more than {}", path, num_rows, kMaxTokens);
  ListReader lists(path);
  const json root = parse_hf_json(path, text, [&](int depth, json::parse_event_t event, json& value) {
    return lists.keeps(depth, event, value);
  });
  const HfObject tokenizer(path, root);
  const auto model = tokenizer.find_object("model");
  if (!model) tokenizer.fail("model", "missing");
  check_model(*model);
  HfVocabulary vocabulary;
  vocabulary.rules = read_hf_text_rules(path, root, model->find_bool("ignore_merges").value_or(false));
  vocabulary.tokens.reserve(std::min(num_rows, lists.vocabulary.size() + 4096));
  add_tokens(path, lists, *model, num_rows, vocabulary);
  add_added_tokens(tokenizer, num_rows, vocabulary);
  vocabulary.tokens.resize(num_rows);
  vocabulary.kinds.resize(num_rows, static_cast<std::int32_t>(TokenKind::kUnused));
  for (std::size_t id = 0; id < num_rows; ++id)
    if (vocabulary.tokens[id].empty()) vocabulary.tokens[id] = fmt::format("[PAD{}]", id);
  vocabulary.merges = std::move(lists.merges);
  if (vocabulary.merges.empty()) model->fail("merges", "missing or empty");
  read_template(tokenizer, vocabulary);
  return vocabulary;
}

}  // namespace larder
