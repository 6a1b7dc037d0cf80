// Text that knows where each of its bytes came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/jinja_budget.h"

namespace larder::jinja {

// kTrusted: the template's own text. Otherwise from outside: kOutside, or one of the caller's
// sources (>= 0).
enum class Origin : std::int32_t { kTrusted = -2, kOutside = -1 };

// Of two parts of one whole: untrusted when either is, and then of the first that is.
constexpr Origin merge(Origin a, Origin b) { return a == Origin::kTrusted ? b : a; }

struct Run {
  std::size_t end = 0;  // bytes; begins where the run before ends
  Origin origin = Origin::kTrusted;
};

// Immutable once shared. Thread: any.
class Text {
 public:
  Text() = default;
  Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)), origin_(origin) {}
  // runs: at least one, in order, covering the bytes, of which none is trusted.
  Text(std::string bytes, std::vector<Run> runs);

  std::string_view bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Of the whole: the first untrusted origin in it.
  Origin origin() const { return origin_; }
  bool is_uniform() const { return runs_.empty(); }
  // Marked as safe HTML by `safe` or `escape`: what is then added to it is escaped first.
  bool is_markup() const { return is_markup_; }

  // Calls visit(begin, end, origin) for each run inside [begin, end), in order.
  template <class Visit>
  void for_each_run(std::size_t begin, std::size_t end, Visit&& visit) const {
    if (begin >= end) return;
    if (runs_.empty()) return visit(begin, end, origin_);
    for (std::size_t i = first_run_after(begin); begin < end; ++i) {
      const std::size_t run_end = runs_[i].end < end ? runs_[i].end : end;
      visit(begin, run_end, runs_[i].origin);
      begin = run_end;
    }
  }

 private:
  friend class TextBuilder;
  std::size_t first_run_after(std::size_t position) const;

  std::string bytes_;
  Origin origin_ = Origin::kTrusted;
  bool is_markup_ = false;
  std::vector<Run> runs_;  // empty: all of one origin. Neighbours differ.
  Charge charge_;
};

using TextRef = std::shared_ptr<const Text>;

// Grows a Text, charging the budget before it grows.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget);

  void append(std::string_view bytes, Origin origin);
  void append(const Text& text) { append(text, 0, text.size()); }
  void append(const Text& text, std::size_t begin, std::size_t end);
  void append_repeated(const Text& text, std::uint64_t count);
  std::size_t size() const { return text_.bytes_.size(); }
  void set_markup(bool is_markup) { text_.is_markup_ = is_markup; }
  // The builder is spent.
  Text take();
  TextRef finish();

 private:
  void append_run(std::string_view bytes, Origin origin);

  Budget& budget_;
  Text text_;
  Origin last_ = Origin::kTrusted;
};

}  // namespace larder::jinja
