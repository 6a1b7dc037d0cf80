// Messages of the worker protocol on a connection.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cluster/socket_stream.h"
#include "cluster/worker_protocol.h"

namespace larder {

// As SocketStream: false = it failed and is closed, and error() says why, also where what came is no message.
class MessageStream : public SocketStream {
 public:
  using SocketStream::SocketStream;

  bool receive_header(MessageHeader& header, std::int64_t patience_ns);

  // One of the handshake.
  bool send_text(MessageType type, const std::string& text, std::int64_t patience_ns);
  // The next one, of any type but a stage's; its payload is text(). Both within patience_ns.
  bool receive_text(MessageHeader& header, std::int64_t patience_ns);
  // The same without waiting: false = not all of it has come yet, or it failed.
  bool receive_text_now(MessageHeader& header);
  // The next one has to be of that type; what a Refusal says is the error.
  bool expect_text(MessageType type, std::int64_t patience_ns);
  std::span<const std::byte> text() const { return text_; }

 private:
  bool read_header(const HeaderBytes& bytes, MessageHeader& header);
  bool begin_text(const MessageHeader& header);

  std::vector<std::byte> text_;
  // Of receive_text_now(): what has come of a message.
  HeaderBytes header_bytes_{};
  MessageHeader header_;
  std::size_t num_come_ = 0;
};

}  // namespace larder
