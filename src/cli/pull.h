// The models that Larder can fetch, and the folder that keeps them.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace larder {

// A GGUF inside Python packages, which mirrors and proxies everywhere already serve.
struct KnownModel {
  const char* name;
  const char* file;
  const char* sha256;
  std::vector<const char*> packages;  // pieces of the file, in order
  const char* license;
};

std::span<const KnownModel> known_models();

// ${XDG_CACHE_HOME:-~/.cache}/larder
std::string cache_folder();
// Within it.
std::string models_folder();

// The path of a model by name or path. A known model that is absent is fetched, with progress on
// stderr, checked by SHA-256, and only then put in place. Throws Error{kNotFound, kUnavailable}.
std::string find_model(const std::string& name_or_path);
// The same, and one that lies there but is damaged is fetched again.
std::string pull_model(const std::string& name_or_path);

}  // namespace larder
