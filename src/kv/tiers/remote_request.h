// Commands to Redis or Valkey, each of one key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

inline constexpr int kNumSlots = 16384;  // of a cluster's keys

// Which one a key is in: CRC-16 (XMODEM) of it. For keys without braces, which would name a part of it.
int slot_of(std::string_view key);

// Adds a command in the protocol's own form.
void append_command(std::string& text, std::initializer_list<std::string_view> args);

// Thread: one at a time.
class RemoteRequest {
 public:
  // args: the command, its key, the rest.
  void add(std::initializer_list<std::string_view> args);
  // With one more argument, the value: header and payload, which have to stay until the request is sent.
  void add(std::initializer_list<std::string_view> args, std::span<const std::byte> header,
           std::span<const std::byte> payload);

  int num_commands() const { return static_cast<int>(commands_.size()); }
  int slot(int command) const { return commands_[static_cast<std::size_t>(command)].slot; }
  std::int64_t size_bytes() const { return static_cast<std::int64_t>(text_.size()) + value_bytes_; }
  // Of a command, behind what is in pieces. They hold until the next add().
  void append_pieces(int command, std::vector<std::span<const std::byte>>& pieces) const;

 private:
  struct Command {
    int slot;
    std::size_t begin, end;  // in text_
    std::array<std::span<const std::byte>, 2> value;
  };

  std::string text_;
  std::int64_t value_bytes_ = 0;
  std::vector<Command> commands_;
};

}  // namespace larder
