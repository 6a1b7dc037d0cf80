#include "server/api/prediction.h"

#include <fmt/format.h>

#include "server/json_fields.h"

namespace larder {

std::string read_prediction(const Fields& fields) {
  const Json* value = fields.find("prediction");
  if (value == nullptr) return "";
  const Fields inner(*value, "prediction");
  if (const auto type = inner.string("type", kMaxNameBytes); type && *type != "content")
    inner.fail("type", fmt::format("must be \"content\", it is \"{}\"", shorten(*type)));
  const Json* content = inner.find("content");
  if (content == nullptr) inner.fail("content", "is missing; send a string or text parts");
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array())
    inner.fail("content", fmt::format("must be a string or an array of parts, it is {}", describe_type(*content)));
  std::string text;
  for (std::size_t i = 0; i < content->size(); ++i) {
    const Fields part((*content)[i], fmt::format("prediction.content[{}]", i));
    if (const auto type = part.string("type", kMaxNameBytes); type && *type != "text")
      part.fail("type", fmt::format("must be \"text\", it is \"{}\"", shorten(*type)));
    const Json* part_text = part.find("text");
    if (part_text == nullptr || !part_text->is_string()) part.fail("text", "must be a string");
    text += part_text->get_ref<const std::string&>();
  }
  return text;
}

}  // namespace larder
