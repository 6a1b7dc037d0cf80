#include "server/text_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"

namespace larder {
namespace {

constexpr std::uint32_t kMatchLimit = 200'000;  // steps of one match, some 10 ms

}  // namespace

TextPattern::Code::~Code() { pcre2_code_free(static_cast<pcre2_code*>(code)); }

TextPattern::TextPattern(const char* pattern) {
  int error = 0;
  PCRE2_SIZE place = 0;
  auto code = std::make_shared<Code>();
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                             PCRE2_CASELESS | PCRE2_EXTENDED, &error, &place, nullptr);
  CHECK(code->code != nullptr, pattern, error, place);
  pcre2_jit_compile(static_cast<pcre2_code*>(code->code), PCRE2_JIT_COMPLETE);
  code_ = std::move(code);
}

std::string TextPattern::replace_all(std::string_view text, std::string_view replacement) const {
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  // Matches are not empty, so that no text grows by more than this.
  std::string out(text.size() * (replacement.size() + 1) + 1, '\0');
  PCRE2_SIZE size = out.size();
  const int result = pcre2_substitute(
      static_cast<const pcre2_code*>(code_->code), reinterpret_cast<PCRE2_SPTR>(text.data()),
      text.size(), 0, PCRE2_SUBSTITUTE_GLOBAL, nullptr, context.get(),
      reinterpret_cast<PCRE2_SPTR>(replacement.data()), replacement.size(),
      reinterpret_cast<PCRE2_UCHAR*>(out.data()), &size);
  if (result < 0) return std::string(text);
  out.resize(size);
  return out;
}

}  // namespace larder
