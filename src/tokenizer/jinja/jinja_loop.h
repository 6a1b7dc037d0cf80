// The `loop` of a for block.
#pragma once

#include <cstddef>
#include <vector>

#include "tokenizer/jinja/jinja_interpreter.h"

namespace larder::jinja {

class Loop final : public Object {
 public:
  // items: with those that the block's condition does not want.
  Loop(Interpreter& interpreter, const Stmt& stmt, ScopeRef scope, ListRef items, int depth0);

  // Lets go of the elements when the loop ends, though the template may keep the loop.
  class Release {
   public:
    explicit Release(Loop& loop) : loop_(loop) {}
    ~Release() { loop_.release(); }
    Release(const Release&) = delete;
    Release& operator=(const Release&) = delete;

   private:
    Loop& loop_;
  };

  // Whether so many and one more are wanted. As in Jinja, the condition is asked about an item only when
  // that one is needed: what a body sets can end the loop.
  bool has(std::size_t index0) const;
  // has() has been true.
  const Value& item(std::size_t index0) const;
  void go_to(std::size_t index0) { index0_ = index0; }

  std::string_view type_name() const override { return "LoopContext"; }
  bool is_callable() const override { return true; }
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
  void append_repr(Budget& budget, TextBuilder& out, Origin origin) const override;
  Value call(Runtime& runtime, std::string_view method, const Args& args) override;

 private:
  void release();
  std::size_t length() const;
  Value changed(Runtime& runtime, const Args& args);

  Interpreter& interpreter_;
  const Stmt& stmt_;
  ScopeRef scope_;  // around the block; null once released, as items_
  ListRef items_;
  // What is known of the items.
  mutable std::size_t num_asked_ = 0;        // of all
  mutable std::size_t num_wanted_ = 0;       // of these
  mutable std::vector<std::size_t> wanted_;  // where they are, with a condition
  mutable bool is_asking_ = false;
  std::size_t index0_ = 0;
  int depth0_;
  Value last_changed_;
};

}  // namespace larder::jinja
