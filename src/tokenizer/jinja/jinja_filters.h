// Filters and tests by name.
#pragma once

#include <string_view>
#include <unordered_map>

#include "tokenizer/jinja/jinja_runtime.h"

namespace larder::jinja {

using Filter = Value (*)(Runtime& runtime, const Value& value, const Args& args);
using Test = bool (*)(Runtime& runtime, const Value& value, const Args& args);
using FilterTable = std::unordered_map<std::string_view, Filter>;
using TestTable = std::unordered_map<std::string_view, Test>;

const FilterTable& text_filters();
const FilterTable& list_filters();
const FilterTable& selection_filters();
const TestTable& tests();
// nullptr: no filter of that name.
Filter find_filter(std::string_view name);

}  // namespace larder::jinja
