#include "kv/tiers/remote_request.h"

#include <fmt/format.h>

#include <iterator>

#include "base/check.h"

namespace larder {
namespace {

void append_args(std::string& text, std::initializer_list<std::string_view> args, std::size_t num_args) {
  fmt::format_to(std::back_inserter(text), "*{}\r\n", num_args);
  for (const std::string_view arg : args) fmt::format_to(std::back_inserter(text), "${}\r\n{}\r\n", arg.size(), arg);
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

int slot_of(std::string_view key) {
  constexpr unsigned kPolynomial = 0x1021;
  unsigned crc = 0;
  for (const char c : key) {
    crc ^= static_cast<unsigned>(static_cast<unsigned char>(c)) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? kPolynomial : 0);
    crc &= 0xffff;
  }
  return static_cast<int>(crc) % kNumSlots;
}

void append_command(std::string& text, std::initializer_list<std::string_view> args) {
  append_args(text, args, args.size());
}

void RemoteRequest::add(std::initializer_list<std::string_view> args) {
  CHECK(args.size() >= 2);
  const std::size_t begin = text_.size();
  append_command(text_, args);
  commands_.push_back({.slot = slot_of(args.begin()[1]), .begin = begin, .end = text_.size(), .value = {}});
}

void RemoteRequest::add(std::initializer_list<std::string_view> args, std::span<const std::byte> header,
                        std::span<const std::byte> payload) {
  CHECK(args.size() >= 2);
  const std::size_t begin = text_.size();
  append_args(text_, args, args.size() + 1);
  fmt::format_to(std::back_inserter(text_), "${}\r\n", header.size() + payload.size());
  commands_.push_back({.slot = slot_of(args.begin()[1]), .begin = begin, .end = text_.size(), .value = {header, payload}});
  value_bytes_ += static_cast<std::int64_t>(header.size() + payload.size()) + 2;
}

void RemoteRequest::append_pieces(int command, std::vector<std::span<const std::byte>>& pieces) const {
  const Command& one = commands_[static_cast<std::size_t>(command)];
  const std::span<const std::byte> text = bytes_of(text_).subspan(one.begin, one.end - one.begin);
  if (!pieces.empty() && pieces.back().data() + pieces.back().size() == text.data())
    pieces.back() = {pieces.back().data(), pieces.back().size() + text.size()};
  else
    pieces.push_back(text);
  if (one.value[0].empty()) return;
  pieces.insert(pieces.end(), {one.value[0], one.value[1], bytes_of("\r\n")});
}

}  // namespace larder
