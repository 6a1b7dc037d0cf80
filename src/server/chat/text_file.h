// Files that come within a request, as clients of OpenAI send them.
#pragma once

#include <string>

#include "server/json_fields.h"

namespace larder {

// What the model reads of one: its filename, if it has one, and below it its text, which is its file_data,
// "data:text/plain;base64,...". Throws Error{kInvalidArgument} that names the field for all else: images, PDF files,
// those that are somewhere else.
std::string text_of_file(const Fields& file);

}  // namespace larder
