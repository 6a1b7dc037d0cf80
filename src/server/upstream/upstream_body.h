// A request's body as the upstream gets it: with another model's name, and else byte for byte.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace larder {

// Bytes [begin, end) of a body, and what takes their place. As it is made: nothing is changed.
struct BodyEdit {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::string replacement;

  std::size_t new_size(std::size_t size) const { return size - (end - begin) + replacement.size(); }
};

// Has the body's own "model" say this name; where there is none it becomes the first member. The body is one that
// parse_json() has taken: an object, without the same key twice. Time: linear, no memory.
BodyEdit edit_model(std::string_view body, const std::string& name);

// The edited body, in whole.
std::string apply_edit(std::string_view body, const BodyEdit& edit);

}  // namespace larder
