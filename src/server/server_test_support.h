// A server over a tiny random model, and a client that sends bytes as they are.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/engine_test_support.h"
#include "server/api/server_config.h"
#include "server/chat/served_model.h"
#include "server/http/http_server.h"
#include "server/json_reader.h"

namespace larder {

// The printable ASCII characters, a space and a newline, each a token; then ChatML's.
inline Vocabulary tiny_vocabulary() {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = "smollm";
  for (char c = '!'; c <= '~'; ++c) vocabulary.tokens.emplace_back(1, c);
  vocabulary.tokens.emplace_back("\u0120");
  vocabulary.tokens.emplace_back("\u010A");
  vocabulary.kinds.assign(vocabulary.tokens.size(), TokenKind::kNormal);
  for (const char* name : {"<|im_start|>", "<|im_end|>"}) {
    vocabulary.tokens.emplace_back(name);
    vocabulary.kinds.push_back(TokenKind::kControl);
  }
  vocabulary.eos = static_cast<TokenId>(vocabulary.tokens.size()) - 1;
  while (vocabulary.tokens.size() < 128) {
    vocabulary.tokens.push_back(fmt::format("x{}", vocabulary.tokens.size()));
    vocabulary.kinds.push_back(TokenKind::kNormal);
  }
  return vocabulary;
}

// One connection, blocking.
class RawClient {
 public:
  // receive_buffer: bytes that the system takes for it; 0 = as many as it likes.
  explicit RawClient(int port, int timeout_s = 20, int receive_buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    timeval timeout{.tv_sec = timeout_s, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int result = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    CHECK(result == 0, port);
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // False when the server has gone.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // Everything until the server closes, or until the end of the text, or the timeout.
  std::string receive(std::string_view end = {}) {
    std::string text;
    char piece[4096];
    while (end.empty() || text.find(end) == std::string::npos) {
      const auto got = ::recv(socket_, piece, sizeof piece, 0);
      closed_ = got == 0;
      if (got <= 0) break;
      text.append(piece, static_cast<std::size_t>(got));
    }
    return text;
  }
  bool closed_by_server() const { return closed_; }
  // Nothing more will be sent; what comes is still read.
  void end_sending() { ::shutdown(socket_, SHUT_WR); }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }

 private:
  int socket_;
  bool closed_ = false;
};

// Asks until the answer is yes. False = it was not, after the seconds.
template <class Condition>
bool eventually(const Condition& condition, int seconds = 30) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

class TestServer {
 public:
  static constexpr int kMaxModelLen = 240;

  // chat_template: "" = ChatML. attention: of requests that do not say; with a window, the model has
  // no end tokens, so that there are answers without an end.
  explicit TestServer(ServerConfig config = {}, EngineConfig engine_config = default_engine(),
                      const std::string& chat_template = "", AttentionSpan attention = {})
      : tiny_("tiny_llama", 1),
        tokenizer_(tiny_vocabulary()),
        template_(chat_template),
        storage_(tiny_.layout, engine_config.num_blocks),
        transformer_(tiny_.config, tiny_.weights, tiny_.layout, select_kernels(), tiny_.pool,
                     {.max_batch_tokens = engine_config.max_batch_tokens,
                      .max_logit_rows = 64,
                      .max_context_len = engine_config.max_model_len}),
        engine_(engine_config, transformer_, storage_, tiny_.layout,
                attention.window > 0 ? std::span<const TokenId>() : tokenizer_.end_tokens(), clock_),
        model_{.name = "tiny",
               .aliases = {"small"},
               .tokenizer = tokenizer_,
               .chat_template = template_,
               .engine = engine_,
               .max_model_len = engine_config.max_model_len,
               .attention = attention,
               .created_s = 1} {
    config.port = 0;
    config.log_interval = std::chrono::milliseconds(0);
    engine_.start();
    server_ = std::make_unique<HttpServer>(config, model_);
    thread_ = std::thread([this] { server_->run(); });
  }
  ~TestServer() {
    server_->shutdown(false);
    join();
    engine_.stop(false);
  }

  static EngineConfig default_engine() {
    return {.num_blocks = 400, .max_model_len = kMaxModelLen, .max_batch_tokens = 128};
  }

  int port() const { return server_->port(); }
  Engine& engine() { return engine_; }
  HttpServer& server() { return *server_; }
  const ServedModel& model() const { return model_; }
  pthread_t thread() { return thread_.native_handle(); }  // that listens
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  struct Answer {
    int status = 0;
    std::string head;
    std::string body;
    Json json() const { return parse_json(body, {}); }
    std::string param() const { return json()["error"]["param"].get<std::string>(); }
  };

  static Answer split(const std::string& text) {
    Answer answer;
    const auto end = text.find("\r\n\r\n");
    if (end == std::string::npos || !text.starts_with("HTTP/1.1 ")) return answer;
    answer.status = std::stoi(text.substr(9, 3));
    answer.head = text.substr(0, end);
    answer.body = text.substr(end + 4);
    return answer;
  }

  // Sends bytes and reads until the server closes.
  Answer exchange(const std::string& bytes) const {
    RawClient client(port());
    client.send(bytes);
    return split(client.receive());
  }
  static std::string request(const std::string& path, const std::string& body,
                             const std::string& headers = "Connection: close\r\n") {
    return "POST " + path +
           " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
  }
  Answer post(const std::string& path, const std::string& body,
              const std::string& headers = "") const {
    return exchange(request(path, body, "Connection: close\r\n" + headers));
  }
  Answer get(const std::string& path, const std::string& headers = "") const {
    return exchange(fmt::format(
        "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}\r\n", path, headers));
  }

  // Waits until the engine has nothing to do. False = it still had, after the seconds.
  bool becomes_idle(int seconds = 10) {
    return eventually(
        [&] {
          const EngineStats stats = engine_.stats();
          return stats.num_running == 0 && stats.num_waiting == 0 && stats.kv.num_held == 0;
        },
        seconds);
  }

 private:
  TinyModel tiny_;
  SteadyClock clock_;
  Tokenizer tokenizer_;
  ChatTemplate template_;
  KvStorage storage_;
  Transformer transformer_;
  Engine engine_;
  ServedModel model_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

}  // namespace larder
