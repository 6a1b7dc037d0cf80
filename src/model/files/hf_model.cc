#include "model/files/hf_model.h"

#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "model/files/hf_config.h"
#include "model/files/hf_json.h"
#include "model/files/hf_text_part.h"
#include "model/files/hf_tokenizer.h"
#include "model/files/safetensors.h"

namespace larder {
namespace {

namespace fs = std::filesystem;

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// The names of the files with weights, in order.
std::vector<std::string> weight_files(const std::string& folder) {
  if (exists(folder + "/model.safetensors")) return {"model.safetensors"};
  const std::string path = folder + "/model.safetensors.index.json";
  const auto index = find_hf_json(path);
  if (!index)
    throw Error(ErrorKind::kNotFound,
                fmt::format("{}: has neither model.safetensors nor model.safetensors.index.json; weights of other "
                            "formats are not read", folder));
  const HfObject object(path, *index);
  const auto map = object.find("weight_map");
  if (!map || !map->is_object() || map->empty()) object.fail("weight_map", "missing, or no object");
  std::set<std::string> names;
  for (const auto& [tensor, name] : map->items()) {
    const std::string text = name.is_string() ? name.get<std::string>() : "";
    if (!text.ends_with(".safetensors") || text.find('/') != text.npos)
      object.fail("weight_map", fmt::format("'{}' is not in a file *.safetensors beside it", printable(tensor)));
    names.insert(text);
  }
  return {names.begin(), names.end()};
}

std::vector<SafetensorsTensor> read_tensors(const MappedFile& file) {
  try {
    return read_safetensors(file.bytes());
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", file.path(), error.what()));
  }
}

// Its last part, which may be followed by slashes.
std::string name_of(const std::string& folder) {
  std::error_code ignored;
  fs::path path = fs::absolute(folder, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

}  // namespace

HfModel::HfModel(const std::string& folder) {
  const std::string config_path = folder + "/config.json";
  if (!exists(config_path))
    throw Error(ErrorKind::kNotFound,
                fmt::format("{}: a folder without config.json; give a GGUF file, or a folder as Hugging Face keeps models", folder));
  const MappedFile& config_file = files.emplace_back(config_path);
  nlohmann::json json = parse_hf_json(config_path, text_of(config_file));
  const bool is_part = has_text_part(json);
  if (is_part) json = read_text_part(config_path, json);
  GgufBuilder builder;
  const HfConfig config = read_hf_config(config_path, json, builder);
  builder.add_string("general.name", name_of(folder));

  std::vector<SafetensorsTensor> tensors;
  for (const std::string& name : weight_files(folder)) {
    auto more = read_tensors(files.emplace_back(folder + "/" + name));
    std::ranges::move(more, std::back_inserter(tensors));
  }
  if (is_part) take_text_tensors(tensors);
  const auto embedding = std::ranges::find(tensors, "model.embed_tokens.weight", &SafetensorsTensor::name);
  if (embedding == tensors.end() || embedding->shape.empty() || embedding->data.empty())
    throw_invalid("{}: tensor 'model.embed_tokens.weight' is missing", folder);
  add_hf_tokenizer(folder, json, static_cast<std::size_t>(embedding->shape.front()), builder);

  metadata = builder.build();
  gguf = std::make_unique<GgufFile>(metadata);
  try {
    add_hf_tensors(config, tensors, owned, *gguf);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", folder, error.what()));
  }
#ifdef __GLIBC__
  // What reading took many times over is free again, but a plan counts what the process holds.
  ::malloc_trim(0);
#endif
}

}  // namespace larder
