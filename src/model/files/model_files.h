// A model's file, or the pieces that it is published in: NAME-00001-of-00003.gguf and so on, as
// llama.cpp's gguf-split calls them. The first piece has the metadata, each has some of the tensors.
// Or a folder as Hugging Face keeps models.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "model/files/hf_model.h"
#include "model/gguf.h"

namespace larder {

// Immutable after construction. Thread: any.
class ModelFiles {
 public:
  // path: the file, any one of the pieces, beside which the others lie, or the folder. Throws, naming the file,
  // Error{kNotFound} where one is missing and Error{kInvalidArgument} where one is malformed or a
  // piece of something else.
  explicit ModelFiles(const std::string& path);

  // With the tensors of all pieces.
  const GgufFile& gguf() const { return folder_ ? *folder_->gguf : *gguf_; }
  // Those that decide what is computed.
  std::span<const MappedFile> files() const { return folder_ ? folder_->files : files_; }
  std::size_t size_bytes() const;
  // As MappedFile's.
  void drop_pages() const;

 private:
  std::unique_ptr<const HfModel> folder_;  // in place of the others
  std::vector<MappedFile> files_;
  std::optional<GgufFile> gguf_;
};

}  // namespace larder
