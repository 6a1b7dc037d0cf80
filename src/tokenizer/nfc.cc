#include "tokenizer/nfc.h"

#include <unicode/bytestream.h>
#include <unicode/edits.h>
#include <unicode/normalizer2.h>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

const icu::Normalizer2& nfc() {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = icu::Normalizer2::getNFCInstance(status);
  CHECK(U_SUCCESS(status), u_errorName(status));
  return *normalizer;
}

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

}  // namespace

bool is_nfc(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const bool is_normal = nfc().isNormalizedUTF8(piece_of(text), status);
  CHECK(U_SUCCESS(status), u_errorName(status));
  return is_normal;
}

NormalizedText to_nfc(std::string_view text) {
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

}  // namespace larder
