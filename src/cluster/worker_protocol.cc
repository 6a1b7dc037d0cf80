#include "cluster/worker_protocol.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "base/printable.h"

namespace larder {
namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kMagic = 0x5744524c;  // "LRDW"
constexpr std::size_t kMaxMessage = 2000;

struct WireHeader {
  std::uint32_t magic;
  std::uint16_t type;
  std::uint8_t stage;
  std::uint8_t has_queries;
  std::uint32_t layer;
  std::uint32_t num_rows;
  std::uint64_t exchange;
  std::uint64_t payload_bytes;
  std::uint64_t reserved;  // 0
};
static_assert(sizeof(WireHeader) == kMessageHeaderBytes);

bool is_of_stage(MessageType type) { return type == MessageType::kStageInput || type == MessageType::kStageOutputs; }

// A message of the handshake, field by field.
class Fields {
 public:
  Fields(std::span<const std::byte> text, const char* message) : message_(message) {
    const auto* begin = reinterpret_cast<const char*>(text.data());
    json_ = Json::parse(begin, begin + text.size(), nullptr, /*allow_exceptions=*/false);
    if (!json_.is_object()) throw_invalid("{}: not a JSON object", message_);
  }

  std::int64_t integer(const char* name, std::int64_t least, std::int64_t most) const {
    return checked_integer(find(name), name, least, most);
  }
  double number(const char* name) const {
    const Json& value = find(name);
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!(number >= 0) || !std::isfinite(number)) fail(name, "a number of at least 0");
    return number;
  }
  bool boolean(const char* name) const {
    const Json& value = find(name);
    if (!value.is_boolean()) fail(name, "true or false");
    return value.get<bool>();
  }
  std::string text(const char* name, std::size_t most) const {
    const Json& value = find(name);
    if (!value.is_string() || value.get_ref<const std::string&>().size() > most)
      throw_invalid("{}: {} must be a text of at most {} bytes", message_, name, most);
    return value.get<std::string>();
  }
  std::vector<std::uint32_t> shares(const char* name) const {
    const Json& value = find(name);
    if (!value.is_array() || value.size() > OutputSplit::kMaxMachines) fail(name, "an array of few numbers");
    std::vector<std::uint32_t> shares;
    for (const Json& share : value)
      shares.push_back(static_cast<std::uint32_t>(checked_integer(share, name, 1, OutputSplit::kMaxShare)));
    return shares;
  }

 private:
  const Json& find(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) throw_invalid("{}: {} is missing", message_, name);
    return *found;
  }
  std::int64_t checked_integer(const Json& value, const char* name, std::int64_t least, std::int64_t most) const {
    if (value.is_number_unsigned() && value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most) &&
        static_cast<std::int64_t>(value.get<std::uint64_t>()) >= least)
      return static_cast<std::int64_t>(value.get<std::uint64_t>());
    throw_invalid("{}: {} must be a whole number from {} to {}", message_, name, least, most);
  }
  [[noreturn]] void fail(const char* name, const char* what) const {
    throw_invalid("{}: {} must be {}", message_, name, what);
  }

  const char* message_;
  Json json_;
};

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

constexpr int kMostProtocols = 1'000'000;

}  // namespace

HeaderBytes encode_header(const MessageHeader& header) {
  const WireHeader wire{.magic = kMagic,
                        .type = static_cast<std::uint16_t>(header.type),
                        .stage = static_cast<std::uint8_t>(header.stage.stage),
                        .has_queries = header.stage.has_queries,
                        .layer = static_cast<std::uint32_t>(header.stage.layer),
                        .num_rows = static_cast<std::uint32_t>(header.num_rows),
                        .exchange = header.exchange,
                        .payload_bytes = header.payload_bytes,
                        .reserved = 0};
  HeaderBytes bytes;
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

MessageHeader decode_header(const HeaderBytes& bytes) {
  WireHeader wire;
  std::memcpy(&wire, bytes.data(), sizeof wire);
  if (wire.magic != kMagic) throw_invalid("not a message of Larder's workers");
  constexpr auto kLast = static_cast<std::uint16_t>(MessageType::kStageOutputs);
  if (wire.type < static_cast<std::uint16_t>(MessageType::kWelcome) || wire.type > kLast)
    throw_invalid("a message of type {}, which is none", wire.type);
  constexpr std::uint32_t kMost = std::numeric_limits<std::int32_t>::max();
  if (wire.stage >= kNumStages || wire.has_queries > 1 || wire.layer > kMost || wire.num_rows > kMost ||
      wire.reserved != 0)
    throw_invalid("a header with stage {}, layer {} and {} rows, which is none", wire.stage, wire.layer, wire.num_rows);
  MessageHeader header{.type = static_cast<MessageType>(wire.type),
                       .stage = {static_cast<Stage>(wire.stage), wire.has_queries != 0, static_cast<int>(wire.layer)},
                       .num_rows = static_cast<int>(wire.num_rows),
                       .exchange = wire.exchange,
                       .payload_bytes = wire.payload_bytes};
  if (!is_of_stage(header.type) && header.payload_bytes > kMaxTextBytes)
    throw_invalid("a message of {} bytes; {} are possible", header.payload_bytes, kMaxTextBytes);
  return header;
}

std::string write_text(const Welcome& welcome) {
  return dump({{"protocol", welcome.protocol}, {"nonce", welcome.nonce}, {"wants_key", welcome.wants_key}});
}

Welcome read_welcome(std::span<const std::byte> text) {
  const Fields fields(text, "Welcome");
  // Of another protocol the rest may be anything.
  Welcome welcome;
  welcome.protocol = static_cast<int>(fields.integer("protocol", 1, kMostProtocols));
  if (welcome.protocol != kWorkerProtocol) return welcome;
  welcome.nonce = fields.text("nonce", 64);
  welcome.wants_key = fields.boolean("wants_key");
  return welcome;
}

std::string write_text(const Hello& hello) {
  return dump({{"protocol", hello.protocol},
               {"kernels", hello.kernels},
               {"activations", hello.activations},
               {"model", hello.model},
               {"proof", hello.proof}});
}

Hello read_hello(std::span<const std::byte> text) {
  const Fields fields(text, "Hello");
  Hello hello;
  hello.protocol = static_cast<int>(fields.integer("protocol", 1, kMostProtocols));
  if (hello.protocol != kWorkerProtocol) return hello;
  hello.kernels = fields.text("kernels", 32);
  hello.activations = fields.text("activations", 32);
  hello.model = fields.text("model", 64);
  hello.proof = fields.text("proof", 64);
  if (hello.activations != "int8" && hello.activations != "f32")
    throw_invalid("Hello: activations must be int8 or f32, not {}", printable(hello.activations));
  return hello;
}

std::string write_text(const Offer& offer) { return dump({{"bytes_per_second", offer.bytes_per_second}}); }

Offer read_offer(std::span<const std::byte> text) {
  return {.bytes_per_second = Fields(text, "Offer").number("bytes_per_second")};
}

std::string write_text(const Assign& assign) {
  return dump({{"shares", assign.shares},
               {"machine", assign.machine},
               {"max_rows", assign.limits.max_rows},
               {"max_logit_rows", assign.limits.max_logit_rows}});
}

Assign read_assign(std::span<const std::byte> text) {
  const Fields fields(text, "Assign");
  Assign assign;
  assign.shares = fields.shares("shares");
  if (assign.shares.size() < 2) throw_invalid("Assign: shares must be of 2 machines at least");
  assign.machine = static_cast<int>(fields.integer("machine", 1, static_cast<std::int64_t>(assign.shares.size()) - 1));
  assign.limits.max_rows = static_cast<int>(fields.integer("max_rows", 1, kMaxStageRows));
  assign.limits.max_logit_rows = static_cast<int>(fields.integer("max_logit_rows", 1, assign.limits.max_rows));
  return assign;
}

std::string write_text(const Refusal& refusal) {
  return dump({{"message", refusal.message.substr(0, kMaxMessage)}});
}

Refusal read_refusal(std::span<const std::byte> text) {
  // It goes to a log and a terminal.
  std::string line;
  for (const char c : Fields(text, "Refusal").text("message", 2 * kMaxMessage))
    line += c >= 0x20 && c < 0x7f ? c : '?';
  return {.message = line};
}

std::string key_proof(const std::string& nonce, const std::string& key) {
  if (key.empty()) return "";
  const std::string text = nonce + " " + key;
  return to_hex(sha256(std::as_bytes(std::span(text))));
}

bool same_proof(const std::string& left, const std::string& right) {
  if (left.size() != right.size()) return false;
  int difference = 0;
  for (std::size_t i = 0; i < left.size(); ++i) difference |= left[i] ^ right[i];
  return difference == 0;
}

std::size_t checked_input_bytes(const MessageHeader& header, const SharedModel& model, const StageLimits& limits) {
  if (header.type != MessageType::kStageInput) throw_invalid("a message that is no stage's input");
  const ModelConfig& config = model.config();
  const bool is_logits = header.stage.stage == Stage::kLogits;
  if (is_logits ? header.stage.layer != 0 : header.stage.layer >= config.num_layers())
    throw_invalid("layer {}; the model has {}", header.stage.layer, config.num_layers());
  if (!SharedModel::is_shared(config, header.stage))
    throw_invalid("stage {} of layer {} is not shared out", static_cast<int>(header.stage.stage), header.stage.layer);
  const int most = is_logits ? limits.max_logit_rows : limits.max_rows;
  if (header.num_rows < 1 || header.num_rows > most)
    throw_invalid("a stage of {} rows; 1 to {} are possible", header.num_rows, most);
  const std::size_t size_bytes = stage_input_bytes(model.stage(header.stage), header.num_rows);
  if (header.payload_bytes != size_bytes)
    throw_invalid("a stage's input of {} bytes; {} are expected", header.payload_bytes, size_bytes);
  return size_bytes;
}

}  // namespace larder
