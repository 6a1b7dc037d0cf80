// What a server and its workers say to each other over TCP.
//
// Every message is a header of fixed size and a payload whose size it names. Those of the handshake are JSON, few and
// small; a stage's input and its outputs are bytes whose size both ends know beforehand (model/forward/shared_products.h), so
// that another one is an error. Numbers are little-endian.
//
//     worker: Welcome              what it speaks, and a number used once
//     server: Hello                which model, which kernels, and the proof of a key
//     worker: Offer                how fast it reads its memory, and it is this server's now; or Refusal
//     server: Assign               shares of all machines, limits
//     worker: Loading ... Ready    while it loads its share; or Refusal
//     server: StageInput, worker: StageOutputs, for every stage
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/forward/product_partners.h"
#include "model/forward/shared_products.h"

namespace larder {

inline constexpr int kWorkerProtocol = 1;

enum class MessageType : std::uint16_t {
  kWelcome = 1,
  kHello,
  kOffer,
  kAssign,
  kLoading,
  kReady,
  kRefusal,
  kStageInput,
  kStageOutputs,
};

struct MessageHeader {
  MessageType type = MessageType::kWelcome;
  // Of the last two.
  StageId stage = {};
  int num_rows = 0;
  std::uint64_t exchange = 0;  // counts up; an answer has its question's
  std::uint64_t payload_bytes = 0;
};
inline constexpr std::size_t kMessageHeaderBytes = 40;
using HeaderBytes = std::array<std::byte, kMessageHeaderBytes>;
inline constexpr std::uint64_t kMaxTextBytes = 64 * 1024;  // of a message of the handshake

HeaderBytes encode_header(const MessageHeader& header);
// Throws Error{kInvalidArgument} for what no header can be, and for one of the handshake with too long a payload.
MessageHeader decode_header(const HeaderBytes& bytes);

// The handshake. Each is written as JSON, and read_ throws Error{kInvalidArgument} naming the field.
struct Welcome {
  int protocol = kWorkerProtocol;
  std::string nonce;  // 64 hexadecimal digits
  bool wants_key = false;
};
struct Hello {
  int protocol = kWorkerProtocol;
  std::string kernels;      // KernelTable::name
  std::string activations;  // int8 or f32
  std::string model;        // content_hash()
  std::string proof;        // key_proof(), "" without a key
};
struct Offer {
  double bytes_per_second = 0;  // that its threads read from memory
};
struct Assign {
  std::vector<std::uint32_t> shares;  // of all machines, see OutputSplit
  int machine = 0;                    // which one it is, from 1 on
  StageLimits limits;

  bool operator==(const Assign& other) const {
    return shares == other.shares && machine == other.machine && limits.max_rows == other.limits.max_rows &&
           limits.max_logit_rows == other.limits.max_logit_rows;
  }
};
struct Refusal {
  std::string message;  // one line
};
inline constexpr const char* kBusyMessage = "it computes for another server already";
inline constexpr int kMaxStageRows = 8192;  // of a batch, as --batch-tokens

std::string write_text(const Welcome& welcome);
std::string write_text(const Hello& hello);
std::string write_text(const Offer& offer);
std::string write_text(const Assign& assign);
std::string write_text(const Refusal& refusal);
Welcome read_welcome(std::span<const std::byte> text);
Hello read_hello(std::span<const std::byte> text);
Offer read_offer(std::span<const std::byte> text);
Assign read_assign(std::span<const std::byte> text);
Refusal read_refusal(std::span<const std::byte> text);

// What shows that one has the key and does not tell it.
std::string key_proof(const std::string& nonce, const std::string& key);
// Takes the same time for every wrong proof of its length.
bool same_proof(const std::string& left, const std::string& right);

// The size of a StageInput's payload, for a worker with that model and these limits. Throws Error{kInvalidArgument}
// where the model has no such stage, or the header names other sizes.
std::size_t checked_input_bytes(const MessageHeader& header, const SharedModel& model, const StageLimits& limits);

}  // namespace larder
