#include "tokenizer/jinja/jinja_text.h"

#include <algorithm>

namespace larder::jinja {

Text::Text(std::string bytes, std::vector<Run> runs)
    : bytes_(std::move(bytes)), origin_(runs.front().origin) {
  if (runs.size() > 1) runs_ = std::move(runs);
}

std::size_t Text::first_run_after(std::size_t position) const {
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), position,
                                    [](std::size_t at, const Run& r) { return at < r.end; });
  return static_cast<std::size_t>(run - runs_.begin());
}

TextBuilder::TextBuilder(Budget& budget) : budget_(budget) {
  budget.step();
  text_.charge_ = Charge(budget);
  text_.charge_.add(sizeof(Text));
}

void TextBuilder::append(std::string_view bytes, Origin origin) {
  budget_.scan(bytes.size());
  append_run(bytes, origin);
}

void TextBuilder::append(const Text& text, std::size_t begin, std::size_t end) {
  budget_.scan(end - begin);
  text.for_each_run(begin, end, [&](std::size_t from, std::size_t to, Origin origin) {
    append_run(text.bytes().substr(from, to - from), origin);
  });
}

void TextBuilder::append_repeated(const Text& text, std::uint64_t count) {
  if (text.empty()) return;
  for (; count > 0; --count) {
    budget_.step();
    append(text);
  }
}

void TextBuilder::append_run(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  text_.charge_.add(bytes.size());
  if (text_.bytes_.empty()) {
    text_.origin_ = origin;
  } else if (last_ != origin) {
    text_.charge_.add(sizeof(Run));
    budget_.step();
    if (text_.runs_.empty()) text_.runs_.push_back({text_.bytes_.size(), last_});
    text_.runs_.push_back({text_.bytes_.size(), origin});
    text_.origin_ = merge(text_.origin_, origin);
  }
  last_ = origin;
  text_.bytes_.append(bytes);
  if (!text_.runs_.empty()) text_.runs_.back().end = text_.bytes_.size();
}

Text TextBuilder::take() { return std::move(text_); }

TextRef TextBuilder::finish() { return std::make_shared<const Text>(std::move(text_)); }

}  // namespace larder::jinja
