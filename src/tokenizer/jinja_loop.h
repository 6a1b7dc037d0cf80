// The `loop` of a for block.
#pragma once

#include "tokenizer/jinja_interpreter.h"

namespace larder::jinja {

class Loop final : public Object {
 public:
  Loop(Interpreter& interpreter, ListRef items, int depth0)
      : interpreter_(interpreter),
        items_(std::move(items)),
        length_(items_->items.size()),
        depth0_(depth0) {}

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

  void go_to(std::size_t index0) { index0_ = index0; }
  void set_recursive(const Stmt& stmt, ScopeRef scope);

  std::string_view type_name() const override { return "LoopContext"; }
  bool is_callable() const override { return true; }
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
  void append_repr(Budget& budget, TextBuilder& out, Origin origin) const override;
  Value call(Runtime& runtime, std::string_view method, const Args& args) override;

 private:
  void release();
  Value changed(Runtime& runtime, const Args& args);

  Interpreter& interpreter_;
  ListRef items_;  // null once released
  std::size_t length_;
  std::size_t index0_ = 0;
  int depth0_;
  const Stmt* recursive_ = nullptr;  // what loop(...) runs again, in scope_
  ScopeRef scope_;
  Value last_changed_;
};

}  // namespace larder::jinja
