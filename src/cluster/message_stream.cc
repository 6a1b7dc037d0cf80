#include "cluster/message_stream.h"

#include "base/error.h"

namespace larder {

bool MessageStream::receive_header(MessageHeader& header, std::int64_t patience_ns) {
  HeaderBytes bytes;
  if (!receive(bytes, patience_ns)) return false;
  try {
    header = decode_header(bytes);
    return true;
  } catch (const Error& error) {
    return fail(error.what());
  }
}

bool MessageStream::send_text(MessageType type, const std::string& text, std::int64_t patience_ns) {
  const HeaderBytes header = encode_header({.type = type, .payload_bytes = text.size()});
  return send({header, std::as_bytes(std::span(text))}, patience_ns);
}

bool MessageStream::receive_text(MessageHeader& header, std::int64_t patience_ns) {
  if (!receive_header(header, patience_ns)) return false;
  if (header.type == MessageType::kStageInput || header.type == MessageType::kStageOutputs)
    return fail("a stage's message before the handshake has ended");
  text_.resize(header.payload_bytes);  // at most kMaxTextBytes
  return receive(text_, patience_ns);
}

bool MessageStream::expect_text(MessageType type, std::int64_t patience_ns) {
  MessageHeader header;
  if (!receive_text(header, patience_ns)) return false;
  if (header.type == type) return true;
  if (header.type != MessageType::kRefusal) return fail("a message of another type than is due");
  try {
    return fail(read_refusal(text_).message);
  } catch (const Error& error) {
    return fail(error.what());
  }
}

}  // namespace larder
