#include "cluster/worker_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "cluster/worker_address.h"

namespace larder {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(WorkerProtocol, HeadersComeBackAsTheyWere) {
  const MessageHeader header{.type = MessageType::kStageInput,
                             .stage = {Stage::kGate, false, 77},
                             .num_rows = 512,
                             .exchange = 1ULL << 40,
                             .payload_bytes = 123456789012};
  const MessageHeader again = decode_header(encode_header(header));
  EXPECT_EQ(again.type, header.type);
  EXPECT_EQ(again.stage, header.stage);
  EXPECT_EQ(again.num_rows, header.num_rows);
  EXPECT_EQ(again.exchange, header.exchange);
  EXPECT_EQ(again.payload_bytes, header.payload_bytes);
}

TEST(WorkerProtocol, WhatNoHeaderCanBeIsRefused) {
  const HeaderBytes good = encode_header({.type = MessageType::kStageInput, .num_rows = 1});
  const auto error_with = [&](std::size_t place, int value) {
    HeaderBytes bytes = good;
    bytes[place] = static_cast<std::byte>(value);
    return error_of([&] { decode_header(bytes); });
  };
  EXPECT_THAT(error_with(0, 0), HasSubstr("not a message of Larder's workers"));
  EXPECT_THAT(error_with(4, 0), HasSubstr("a message of type 0"));
  EXPECT_THAT(error_with(4, 10), HasSubstr("a message of type 10"));
  EXPECT_THAT(error_with(6, 5), HasSubstr("a header with stage 5"));
  EXPECT_THAT(error_with(7, 2), HasSubstr("a header with"));
  EXPECT_THAT(error_with(11, 0x80), HasSubstr("a header with"));
  EXPECT_THAT(error_with(15, 0x80), HasSubstr("a header with"));
  EXPECT_THAT(error_with(39, 1), HasSubstr("a header with"));
  HeaderBytes text = encode_header({.type = MessageType::kHello, .payload_bytes = kMaxTextBytes + 1});
  EXPECT_THAT(error_of([&] { decode_header(text); }), HasSubstr("a message of 65537 bytes; 65536 are possible"));
}

TEST(WorkerProtocol, TheHandshakeComesBackAsItWas) {
  const Welcome welcome{.nonce = "abc", .wants_key = true};
  const Welcome welcomed = read_welcome(bytes_of(write_text(welcome)));
  EXPECT_EQ(welcomed.nonce, "abc");
  EXPECT_TRUE(welcomed.wants_key);
  const Hello hello{.kernels = "avx2", .activations = "f32", .model = "m", .proof = "p"};
  const Hello helloed = read_hello(bytes_of(write_text(hello)));
  EXPECT_EQ(helloed.kernels, "avx2");
  EXPECT_EQ(helloed.activations, "f32");
  EXPECT_EQ(helloed.model, "m");
  EXPECT_EQ(helloed.proof, "p");
  EXPECT_EQ(read_offer(bytes_of(write_text(Offer{12.5}))).bytes_per_second, 12.5);
  const Assign assign{{3, 2, 1}, 2, {512, 64}};
  EXPECT_EQ(read_assign(bytes_of(write_text(assign))), assign);
  EXPECT_EQ(read_refusal(bytes_of(write_text(Refusal{"no"}))).message, "no");
  // A log gets one line of it, whatever it is.
  EXPECT_EQ(read_refusal(bytes_of(write_text(Refusal{"a\nb\x1b[31m\xff"}))).message.find_first_of("\n\x1b"),
            std::string::npos);
}

TEST(WorkerProtocol, EveryFieldIsChecked) {
  const auto assign_error = [](const std::string& text) { return error_of([&] { read_assign(bytes_of(text)); }); };
  EXPECT_THAT(assign_error("[]"), HasSubstr("Assign: not a JSON object"));
  EXPECT_THAT(assign_error("{\"shares\":"), HasSubstr("Assign: not a JSON object"));
  EXPECT_THAT(assign_error("{}"), HasSubstr("Assign: shares is missing"));
  EXPECT_THAT(assign_error(R"({"shares": [1]})"), HasSubstr("of 2 machines at least"));
  EXPECT_THAT(assign_error(R"({"shares": [1, 0]})"), HasSubstr("shares must be a whole number from 1 to 1048576"));
  EXPECT_THAT(assign_error(R"({"shares": [1, -1]})"), HasSubstr("shares must be"));
  EXPECT_THAT(assign_error(R"({"shares": [1, 1.5]})"), HasSubstr("shares must be"));
  EXPECT_THAT(assign_error(R"({"shares": [1, 1], "machine": 0})"), HasSubstr("machine must be a whole number from 1 to 1"));
  EXPECT_THAT(assign_error(R"({"shares": [1, 1], "machine": 2})"), HasSubstr("machine must be"));
  EXPECT_THAT(assign_error(R"({"shares": [1, 1], "machine": 1, "max_rows": 8193})"), HasSubstr("max_rows must be"));
  EXPECT_THAT(assign_error(R"({"shares": [1, 1], "machine": 1, "max_rows": 4, "max_logit_rows": 5})"),
              HasSubstr("max_logit_rows must be a whole number from 1 to 4"));
  EXPECT_THAT(error_of([] { read_offer(bytes_of(R"({"bytes_per_second": -1})")); }), HasSubstr("at least 0"));
  EXPECT_THAT(error_of([] { read_hello(bytes_of(R"({"protocol": 1, "kernels": 7})")); }), HasSubstr("kernels must be a text"));
  // Of another protocol only its number is looked at.
  EXPECT_EQ(read_welcome(bytes_of(R"({"protocol": 2})")).protocol, 2);
}

TEST(WorkerProtocol, AProofIsOfItsKeyAndItsNonce) {
  EXPECT_EQ(key_proof("n", ""), "");
  EXPECT_TRUE(same_proof(key_proof("n", "k"), key_proof("n", "k")));
  EXPECT_FALSE(same_proof(key_proof("n", "k"), key_proof("m", "k")));
  EXPECT_FALSE(same_proof(key_proof("n", "k"), key_proof("n", "l")));
  EXPECT_FALSE(same_proof("", key_proof("n", "k")));
}

TEST(WorkerAddress, HostsAndPorts) {
  EXPECT_EQ(parse_worker_address("10.0.0.2:7070").display(), "10.0.0.2:7070");
  EXPECT_EQ(parse_worker_address("[::1]:1").display(), "[::1]:1");
  EXPECT_EQ(parse_worker_address("node-2.lan:65535").host, "node-2.lan");
  EXPECT_EQ(parse_worker_address("a:0", true).port, 0);
  for (const char* text : {"", "a", "a:", ":1", "a:0", "a:65536", "a:1x", "::1:7", "[]:1", "a b:1", "http://a:1"})
    EXPECT_THAT(error_of([&] { parse_worker_address(text); }), HasSubstr("HOST:PORT")) << text;
}

}  // namespace
}  // namespace larder
