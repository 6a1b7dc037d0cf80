#include "cluster/message_stream.h"

#include "base/clock.h"
#include "base/error.h"

namespace larder {

bool MessageStream::receive_header(MessageHeader& header, std::int64_t patience_ns) {
  HeaderBytes bytes;
  return receive(bytes, patience_ns) && read_header(bytes, header);
}

bool MessageStream::read_header(const HeaderBytes& bytes, MessageHeader& header) {
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
  const std::int64_t deadline_ns = steady_now_ns() + patience_ns;
  return receive_header(header, patience_ns) && begin_text(header) && receive(text_, deadline_ns - steady_now_ns());
}

bool MessageStream::begin_text(const MessageHeader& header) {
  if (header.type == MessageType::kStageInput || header.type == MessageType::kStageOutputs)
    return fail("a stage's message before the handshake has ended");
  text_.resize(header.payload_bytes);  // at most kMaxTextBytes
  return true;
}

bool MessageStream::receive_text_now(MessageHeader& header) {
  if (num_come_ < kMessageHeaderBytes) {
    num_come_ += receive_now(std::span(header_bytes_).subspan(num_come_));
    if (num_come_ < kMessageHeaderBytes || !read_header(header_bytes_, header_) || !begin_text(header_)) return false;
  }
  num_come_ += receive_now(std::span(text_).subspan(num_come_ - kMessageHeaderBytes));
  if (!is_open() || num_come_ < kMessageHeaderBytes + text_.size()) return false;
  num_come_ = 0;
  header = header_;
  return true;
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
