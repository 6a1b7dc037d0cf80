// Bytes -> what a server and a worker read from each other: a header, the handshake's texts, an address. A header is tried
// as it is and as a stage's input of the size that the model asks for, which has to lie within the buffers.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "cluster/worker_address.h"
#include "cluster/worker_protocol.h"
#include "fuzz_target.h"
#include "model/files/gguf_builder.h"
#include "model/forward/weights.h"
#include "model/gguf.h"
#include "refuse_or.h"

namespace {

using namespace larder;

constexpr StageLimits kLimits{.max_rows = 8, .max_logit_rows = 2};

// A model of one layer, as the second of two machines has it.
struct Model {
  Model() : bytes(build()), gguf(bytes), config(read_model_config(gguf)) {}

  static std::vector<std::byte> build() {
    GgufBuilder builder;
    builder.add_string("general.architecture", "llama")
        .add_uint("llama.embedding_length", 64)
        .add_uint("llama.context_length", 64)
        .add_uint("llama.attention.head_count", 4)
        .add_uint("llama.block_count", 1)
        .add_uint("llama.feed_forward_length", 64)
        .add_float("llama.attention.layer_norm_rms_epsilon", 1e-5F)
        .add_tensor("token_embd.weight", {64, 96}, GgmlType::kF32, 64 * 96 * 4);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
      builder.add_tensor(std::string("blk.0.") + name + ".weight", {64, 64}, GgmlType::kQ8_0, 64 * 2 * 34);
    for (const char* name : {"blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"})
      builder.add_tensor(std::string(name) + ".weight", {64}, GgmlType::kF32, 64 * 4);
    return builder.build();
  }

  std::vector<std::byte> bytes;
  GgufFile gguf;
  ModelConfig config;
  ThreadPool pool{1};
  MachineShare share{OutputSplit(std::vector<std::uint32_t>{1, 1}), 1};
  Weights weights{config, gguf, pool, {}, nullptr, config.num_layers(), share};
  SharedModel model{config, weights, *kernels_for(Isa::kGeneric), true};
  StageComputer computer{model, share, select_kernels(), pool, kLimits};
};

// What is taken for a stage's input is computed, from memory that ends where it ends.
bool compute(MessageHeader header) {
  static Model model;
  std::size_t size_bytes = 0;
  if (!refuse_or([&] { size_bytes = checked_input_bytes(header, model.model, kLimits); })) return false;
  CHECK(size_bytes == header.payload_bytes && size_bytes <= max_stage_input_bytes(model.config, kLimits), size_bytes);
  AlignedBuffer input(size_bytes + StageComputer::kSlackBytes);
  const auto outputs = model.computer.compute(header.stage, header.num_rows, {input.data(), size_bytes});
  CHECK(outputs.size() <= max_stage_reply_bytes(model.config, kLimits, model.share), outputs.size());
  return true;
}

bool try_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kMessageHeaderBytes) return false;
  HeaderBytes header_bytes;
  std::memcpy(header_bytes.data(), bytes.data(), header_bytes.size());
  MessageHeader header;
  if (!refuse_or([&] { header = decode_header(header_bytes); })) return false;
  CHECK(encode_header(header) == header_bytes);
  bool is_taken = compute(header);
  // As one of the right size.
  static Model model;
  header.type = MessageType::kStageInput;
  header.stage.layer = 0;
  header.num_rows = 1 + header.num_rows % 2;
  header.payload_bytes = stage_input_bytes(model.model.stage(header.stage), header.num_rows);
  CHECK(compute(header));
  return is_taken || bytes.size() == kMessageHeaderBytes;
}

// What is taken comes back as it was.
bool try_texts(std::span<const std::byte> text) {
  const auto as_bytes = [](const std::string& written) { return std::as_bytes(std::span(written)); };
  bool is_taken = refuse_or([&] { (void)read_welcome(text); });
  is_taken |= refuse_or([&] {
    const Hello hello = read_hello(text);
    if (hello.protocol == kWorkerProtocol) CHECK(hello.activations == "int8" || hello.activations == "f32");
  });
  is_taken |= refuse_or([&] { CHECK(read_offer(text).bytes_per_second >= 0); });
  is_taken |= refuse_or([&] {
    const Assign assign = read_assign(text);
    const std::string written = write_text(assign);
    CHECK(read_assign(as_bytes(written)) == assign);
    const OutputSplit split(assign.shares);
    CHECK(split.rows_of(split.num_machines() - 1, 1 << 30).end == 1 << 30);
  });
  is_taken |= refuse_or([&] {
    for (const char c : read_refusal(text).message) CHECK(c >= 0x20 && c < 0x7f);
  });
  is_taken |= refuse_or([&] {
    const std::string_view address(reinterpret_cast<const char*>(text.data()), text.size());
    CHECK(parse_worker_address(parse_worker_address(address).display()).port > 0);
  });
  return is_taken;
}

}  // namespace

bool try_input(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const bool is_header = try_header(bytes);
  return try_texts(bytes) || is_header;
}
