#include "grammar/lark_common.h"

#include <algorithm>
#include <iterator>

namespace larder {
namespace {

struct Terminal {
  std::string_view name, expression;
};

constexpr Terminal kTerminals[] = {
    {"DIGIT", R"([0-9])"},
    {"HEXDIGIT", R"([0-9a-fA-F])"},
    {"INT", R"([0-9]+)"},
    {"SIGNED_INT", R"([+-]?[0-9]+)"},
    {"DECIMAL", R"([0-9]+\.[0-9]*|\.[0-9]+)"},
    {"_EXP", R"([eE][+-]?[0-9]+)"},
    {"FLOAT", R"([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_FLOAT", R"([+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?))"},
    {"NUMBER", R"(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_NUMBER", R"([+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"_STRING_INNER", R"([^\n]*)"},
    {"_STRING_ESC_INNER", R"(([^\\\n]|\\[^\n])*)"},
    {"ESCAPED_STRING", R"("([^"\\\n]|\\[^\n])*")"},
    {"LCASE_LETTER", R"([a-z])"},
    {"UCASE_LETTER", R"([A-Z])"},
    {"LETTER", R"([A-Za-z])"},
    {"WORD", R"([A-Za-z]+)"},
    {"CNAME", R"([A-Za-z_][A-Za-z_0-9]*)"},
    {"WS_INLINE", R"([ \t]+)"},
    {"WS", R"([ \t\f\r\n]+)"},
    {"CR", R"(\r)"},
    {"LF", R"(\n)"},
    {"NEWLINE", R"((\r?\n)+)"},
    {"SH_COMMENT", R"(#[^\n]*)"},
    {"CPP_COMMENT", R"(//[^\n]*)"},
    {"C_COMMENT", R"(/\*([^*]|\*+[^*/])*\*+/)"},
    {"SQL_COMMENT", R"(--[^\n]*)"},
};

}  // namespace

std::string_view lark_common_terminal(std::string_view name) {
  const auto* found = std::ranges::find(kTerminals, name, &Terminal::name);
  return found == std::end(kTerminals) ? std::string_view() : found->expression;
}

}  // namespace larder
