// Any text as each of the JSON files of a model's folder: refused with an Error, or read, and what it says then read
// again as a GGUF file's.
#include <cstdlib>
#include <string>

#include "fuzz_target.h"
#include "model/files/gguf_builder.h"
#include "model/files/hf_config.h"
#include "model/files/hf_json.h"
#include "model/files/hf_text_part.h"
#include "model/files/hf_vocabulary.h"
#include "refuse_or.h"

bool try_input(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const bool is_config = refuse_or([&] {
    larder::GgufBuilder metadata;
    nlohmann::json json = larder::parse_hf_json("config.json", text);
    if (larder::has_text_part(json)) json = larder::read_text_part("config.json", json);
    larder::read_hf_config("config.json", json, metadata);
    const auto bytes = metadata.build();
    if (!larder::GgufFile(bytes).find("general.architecture")) std::abort();
  });
  const bool is_vocabulary = refuse_or([&] {
    constexpr std::size_t kNumRows = 400;
    const auto vocabulary = larder::read_hf_vocabulary("tokenizer.json", text, kNumRows);
    if (vocabulary.tokens.size() != kNumRows || vocabulary.kinds.size() != kNumRows) std::abort();
  });
  return is_config || is_vocabulary;
}
