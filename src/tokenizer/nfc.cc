#include "tokenizer/nfc.h"

#include <unicode/bytestream.h>
#include <unicode/edits.h>
#include <unicode/normalizer2.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

// A real character has fewer marks; UAX #15's stream-safe text has up to 30.
constexpr int kLongRun = 64;

using Instance = const icu::Normalizer2* (*)(UErrorCode&);

const icu::Normalizer2& form(Instance instance) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = instance(status);
  CHECK(U_SUCCESS(status), u_errorName(status));
  return *normalizer;
}
const icu::Normalizer2& nfc() { return form(icu::Normalizer2::getNFCInstance); }
const icu::Normalizer2& nfd() { return form(icu::Normalizer2::getNFDInstance); }

icu::StringPiece piece_of(std::string_view text) {
  return {text.data(), static_cast<std::int32_t>(text.size())};
}

// Appends one stretch of valid UTF-8 that begins at `offset` of the source.
void append_valid(std::string_view text, std::size_t offset, NormalizedText& out) {
  icu::Edits edits;
  UErrorCode status = U_ZERO_ERROR;
  icu::StringByteSink<std::string> sink(&out.text, static_cast<std::int32_t>(text.size()));
  nfc().normalizeUTF8(0, piece_of(text), sink, &edits, status);
  CHECK(U_SUCCESS(status), u_errorName(status));
  auto edit = edits.getFineIterator();
  while (edit.next(status)) {
    for (int i = 0; i < edit.newLength(); ++i) {
      const int within = edit.hasChange() ? 0 : i;
      out.origin.push_back(static_cast<std::uint32_t>(offset) + edit.sourceIndex() + within);
    }
  }
  CHECK(U_SUCCESS(status) && out.origin.size() == out.text.size(), out.text.size());
}

// What a run of marks is the same as: decomposed, and each mark behind those of lower classes.
std::u32string in_order(std::string_view marks) {
  std::u32string chars;
  icu::UnicodeString decomposed;
  for (std::size_t i = 0; i < marks.size();) {
    const Utf8Char c = read_utf8(marks, i);
    i += c.length;
    if (!nfd().getDecomposition(static_cast<UChar32>(c.code_point), decomposed)) {
      chars.push_back(c.code_point);
      continue;
    }
    for (std::int32_t k = 0; k < decomposed.length(); k = decomposed.moveIndex32(k, 1))
      chars.push_back(static_cast<char32_t>(decomposed.char32At(k)));
  }
  const auto class_of = [](char32_t c) { return nfd().getCombiningClass(static_cast<UChar32>(c)); };
  const auto is_mark = [&](char32_t c) { return class_of(c) != 0; };
  for (auto begin = chars.begin(); begin != chars.end();) {
    begin = std::find_if(begin, chars.end(), is_mark);
    const auto end = std::find_if_not(begin, chars.end(), is_mark);
    std::stable_sort(begin, end, [&](char32_t a, char32_t b) { return class_of(a) < class_of(b); });
    begin = end;
  }
  return chars;
}

// ICU puts marks in order by insertion: a run of all of a long text's characters would take it hours.
class LongRuns {
 public:
  explicit LongRuns(std::string_view text) : text_(text) {}

  // nullopt = there is none.
  std::optional<NormalizedText> put_in_order() {
    std::size_t begin = 0;  // of the run
    int num_chars = 0;
    for (std::size_t i = 0; i < text_.size();) {
      const Utf8Char c = read_utf8(text_, i);
      if (c.valid && c.length > 1 && !nfc().hasBoundaryBefore(static_cast<UChar32>(c.code_point))) {
        if (num_chars++ == 0) begin = i;
      } else if (std::exchange(num_chars, 0) > kLongRun) {
        replace(begin, i);
      }
      i += c.length;
    }
    if (num_chars > kLongRun) replace(begin, text_.size());
    if (num_taken_ == 0) return std::nullopt;
    keep(text_.size());
    return std::move(out_);
  }

 private:
  void keep(std::size_t end) {
    out_.text += text_.substr(num_taken_, end - num_taken_);
    for (; num_taken_ < end; ++num_taken_)
      out_.origin.push_back(static_cast<std::uint32_t>(num_taken_));
  }

  void replace(std::size_t begin, std::size_t end) {
    keep(begin);
    for (const char32_t c : in_order(text_.substr(begin, end - begin))) append_utf8(c, out_.text);
    out_.origin.resize(out_.text.size(), static_cast<std::uint32_t>(begin));
    num_taken_ = end;
  }

  const std::string_view text_;
  std::size_t num_taken_ = 0;
  NormalizedText out_;
};

bool is_nfc(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const bool is_normal = nfc().isNormalizedUTF8(piece_of(text), status);
  CHECK(U_SUCCESS(status), u_errorName(status));
  return is_normal;
}

NormalizedText compose(std::string_view text) {
  NormalizedText out;
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = begin;
    Utf8Char c;
    while (end < text.size() && (c = read_utf8(text, end)).valid) end += c.length;
    if (end > begin) append_valid(text.substr(begin, end - begin), begin, out);
    if (end == text.size()) break;
    for (std::uint32_t k = 0; k < c.length; ++k) {
      out.text.push_back(text[end + k]);
      out.origin.push_back(static_cast<std::uint32_t>(end + k));
    }
    begin = end + c.length;
  }
  return out;
}

}  // namespace

std::optional<NormalizedText> to_nfc(std::string_view text) {
  const std::optional<NormalizedText> ordered = LongRuns(text).put_in_order();
  if (!ordered) return is_nfc(text) ? std::nullopt : std::optional(compose(text));
  NormalizedText out = compose(ordered->text);
  for (std::uint32_t& origin : out.origin) origin = ordered->origin[origin];
  return out;
}

}  // namespace larder
