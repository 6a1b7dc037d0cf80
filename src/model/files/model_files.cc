#include "model/files/model_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace larder {
namespace {

// As many as a name has digits for.
constexpr std::uint64_t kMaxPieces = 99'999;

// What precedes "-00002-of-00003.gguf" in the path of piece 2 of 3.
std::string_view name_of_all(std::string_view path, std::uint64_t number, std::uint64_t count) {
  const std::string end = fmt::format("-{:05}-of-{:05}.gguf", number, count);
  if (!path.ends_with(end))
    throw_invalid("GGUF: split.no: this is piece {} of {}, but its name does not end in {}, so the others are not found; "
                  "give it back its name, or join them: llama-gguf-split --merge FIRST JOINED.gguf",
                  number, count, end);
  return path.substr(0, path.size() - end.size());
}

// A file's path goes before what is wrong with it.
template <class Function>
auto named(const std::string& path, const Function& function) {
  try {
    return function();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", path, error.what()));
  }
}

void check_is_piece(const GgufFile& gguf, std::uint64_t number, std::uint64_t count) {
  const std::uint64_t own_number = gguf.find_uint("split.no").value_or(0) + 1;
  const std::uint64_t own_count = gguf.find_uint("split.count").value_or(1);
  if (own_number != number || own_count != count)
    throw_invalid("GGUF: split.no: this is piece {} of {}, where {} of {} belongs", own_number, own_count, number, count);
}

// Pieces say how many tensors they have together.
void check_is_whole(const GgufFile& gguf) {
  const auto num_tensors = gguf.find_uint("split.tensors.count");
  if (num_tensors && *num_tensors != gguf.tensors().size())
    throw_invalid("GGUF: split.tensors.count: {}, but the pieces have {} tensors", *num_tensors, gguf.tensors().size());
}

}  // namespace

ModelFiles::ModelFiles(const std::string& path) {
  if (std::error_code ignored; std::filesystem::is_directory(path, ignored)) {
    folder_ = std::make_unique<const HfModel>(path);
    return;
  }
  MappedFile file(path);
  std::uint64_t count = 1;
  const std::string name = named(path, [&]() -> std::string {
    GgufFile gguf(file.bytes());
    count = gguf.find_uint("split.count").value_or(1);
    if (count < 2) {
      gguf_ = std::move(gguf);
      return "";
    }
    const std::uint64_t number = gguf.find_uint("split.no").value_or(0) + 1;
    if (count > kMaxPieces || number > count)
      throw_invalid("GGUF: split.count: piece {} of {}; at most {} are taken", number, count, kMaxPieces);
    return std::string(name_of_all(path, number, count));
  });
  if (gguf_) {
    files_.push_back(std::move(file));
    return;
  }
  for (std::uint64_t number = 1; number <= count; ++number) {
    const MappedFile& piece =
        files_.emplace_back(fmt::format("{}-{:05}-of-{:05}.gguf", name, number, count));
    named(piece.path(), [&] {
      GgufFile gguf(piece.bytes());
      check_is_piece(gguf, number, count);
      if (number == 1)
        gguf_ = std::move(gguf);
      else
        gguf_->add_tensors_of(gguf);
    });
  }
  named(files_[0].path(), [&] { check_is_whole(*gguf_); });
}

std::size_t ModelFiles::size_bytes() const {
  std::size_t size_bytes = 0;
  for (const MappedFile& file : files()) size_bytes += file.bytes().size();
  return size_bytes;
}

void ModelFiles::drop_pages() const {
  for (const MappedFile& file : files()) file.drop_pages();
}

}  // namespace larder
