// What two processes that have the same model agree in.
#pragma once

#include <string>

#include "model/files/model_files.h"

namespace larder {

// 32 hexadecimal digits over all bytes of its files (XXH3), few of which are in memory at a time.
std::string content_hash(const ModelFiles& files);

}  // namespace larder
