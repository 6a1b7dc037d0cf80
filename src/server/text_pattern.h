// Regular expressions over what strangers sent: bounded in time, compiled once.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace larder {

// Immutable. Thread: any, concurrently.
class TextPattern {
 public:
  // A PCRE2 pattern that is known to be right; a bug in it is a CHECK.
  explicit TextPattern(const char* pattern);

  // The text with every match replaced. A text on which matching at one place takes too long comes back as
  // it is; for a long text a pattern must not fail late at many places.
  std::string replace_all(std::string_view text, std::string_view replacement) const;

 private:
  struct Code {
    void* code = nullptr;
    ~Code();
  };
  std::shared_ptr<const Code> code_;
};

}  // namespace larder
