// Servers for the remote tier's tests: the real one, and one that does as it is told.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "kv/tiers/remote_connection.h"
#include "kv/tiers/remote_request.h"
#include "kv/tiers/remote_tier.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {

// A socket bound to a free port of 127.0.0.1.
inline int bind_loopback(int& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  socklen_t size = sizeof address;
  CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port = ntohs(address.sin_port);
  return fd;
}

// redis-server in a directory of its own.
class RedisServer {
 public:
  explicit RedisServer(std::vector<std::string> options = {}, std::string password = {})
      : options_(std::move(options)), password_(std::move(password)) {
    if (!password_.empty()) options_.insert(options_.end(), {"--requirepass", password_});
    ::close(bind_loopback(port_));
    start();
  }
  ~RedisServer() { kill(); }

  static bool is_installed() { return std::system("command -v redis-server >/dev/null") == 0; }

  std::string url() const { return fmt::format("redis://127.0.0.1:{}", port_); }
  void signal(int number) const { ::kill(process_, number); }
  void kill() {
    if (process_ > 0) {
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
    }
    process_ = 0;
  }
  void start() {
    std::vector<std::string> words = {
        "redis-server", "--port", std::to_string(port_), "--bind", "127.0.0.1",
        "--save",       "",       "--appendonly",        "no",     "--dir",
        dir_.path()};
    words.insert(words.end(), options_.begin(), options_.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that dies leaves no server
      const int null = ::open("/dev/null", O_RDWR);
      ::dup2(null, 1);
      ::dup2(null, 2);
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    wait_until([&] { return !ask({"PING"}).empty(); });
  }

  // The answers to one command, as text; "" where there is none.
  std::string ask(std::initializer_list<std::string_view> command) const {
    std::atomic<bool> stop = false;
    RemoteHost host("127.0.0.1", port_);
    RemoteConnection connection(
        {.host = "127.0.0.1", .port = port_, .user = "", .password = password_, .db = 0}, host, stop);
    const std::int64_t deadline_ns = SteadyClock().now_ns() + 5'000'000'000;
    if (connection.open(deadline_ns) != RemoteOutcome::kOk) return "";
    std::string request;
    append_command(request, command);
    std::string answer;
    RemoteExchange exchange{.pieces = {std::as_bytes(std::span(request))},
                            .num_replies = 1,
                            .max_reply_bytes = 1 << 20};
    exchange.on_reply = [&](int, const RemoteReply& reply) {
      answer = reply.kind == RemoteReply::Kind::kInteger ? std::to_string(reply.integer)
                                                         : std::string(reply.text());
    };
    return connection.exchange(exchange, deadline_ns) == RemoteOutcome::kOk ? answer : "";
  }

 private:
  TempDir dir_;
  std::vector<std::string> options_;
  std::string password_;
  int port_ = 0;
  pid_t process_ = 0;
};

// Tests against it, without its log.
class RedisTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::is_installed()) GTEST_SKIP() << "redis-server is not installed";
    spdlog::set_level(spdlog::level::off);
  }
  void TearDown() override { spdlog::set_level(spdlog::level::info); }

  static RemoteTierConfig config(const std::string& url, std::int64_t block_bytes) {
    RemoteTierConfig config;
    config.url = url;
    config.batch_size_bytes = 10 * block_bytes;
    config.staging_size_bytes = 100 * block_bytes;
    config.first_retry_ms = config.max_retry_ms = 5;
    // So that a machine under load is not taken for a fault.
    config.connect_timeout_ms = config.batch_timeout_ms = 20'000;
    return config;
  }
};

// Accepts connections and answers each command by what `answer` says.
class ScriptedServer {
 public:
  struct Action {
    std::string bytes;
    bool then_close = false;
    bool then_hang = false;  // reads on, but answers nothing more
  };
  using Script = std::function<Action(const std::vector<std::string>& command)>;

  explicit ScriptedServer(Script script) : script_(std::move(script)) {
    listener_ = bind_loopback(port_);
    CHECK(::listen(listener_, 16) == 0);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~ScriptedServer() {
    stop_ = true;
    acceptor_.join();
    ::close(listener_);
  }

  std::string url() const { return fmt::format("redis://127.0.0.1:{}", port_); }
  int num_commands() const { return num_commands_; }

  static std::string bulk(std::string_view bytes) {
    return fmt::format("${}\r\n{}\r\n", bytes.size(), bytes);
  }

 private:
  void accept_all() {
    std::vector<std::thread> clients;
    while (!stop_) {
      pollfd entry{.fd = listener_, .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 10) <= 0) continue;
      const int fd = ::accept(listener_, nullptr, nullptr);
      if (fd >= 0) clients.emplace_back([this, fd] { serve(fd); });
    }
    for (std::thread& client : clients) client.join();
  }

  void serve(int fd) {
    std::string input;
    bool hangs = false;
    while (!stop_) {
      pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 10) <= 0) continue;
      char buffer[65536];
      const ssize_t size = ::recv(fd, buffer, sizeof buffer, 0);
      if (size <= 0) break;
      input.append(buffer, static_cast<std::size_t>(size));
      std::vector<std::string> command;
      bool closes = false;
      while (!hangs && !closes && take_command(input, command)) {
        ++num_commands_;
        const Action action = script_(command);
        send_all(fd, action.bytes);
        hangs = action.then_hang;
        closes = action.then_close;
      }
      if (closes) break;
    }
    ::close(fd);
  }

  static void send_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

  // false: it is not whole yet.
  static bool take_command(std::string& input, std::vector<std::string>& command) {
    std::size_t at = 0;
    const auto number = [&](char mark, std::size_t& value) {
      const std::size_t end = input.find("\r\n", at);
      if (end == std::string::npos || input[at] != mark) return false;
      value = std::stoul(input.substr(at + 1, end - at - 1));
      at = end + 2;
      return true;
    };
    std::size_t num_args = 0;
    if (!number('*', num_args)) return false;
    command.clear();
    for (std::size_t i = 0; i < num_args; ++i) {
      std::size_t size = 0;
      if (!number('$', size) || input.size() < at + size + 2) return false;
      command.push_back(input.substr(at, size));
      at += size + 2;
    }
    input.erase(0, at);
    return true;
  }

  Script script_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_ = false;
  std::atomic<int> num_commands_ = 0;
  std::thread acceptor_;
};

// Takes what is stored, but answers the first SET commands otherwise.
class StoringServer {
 public:
  using Action = ScriptedServer::Action;

  explicit StoringServer(std::vector<Action> first)
      : first_(std::move(first)), server_([this](const auto& command) { return answer(command); }) {}

  std::string url() const { return server_.url(); }
  std::vector<std::string> stored() const {
    const std::lock_guard lock(mutex_);
    return stored_;
  }
  void break_value(const std::string& key) {
    const std::lock_guard lock(mutex_);
    values_.at(key)[30'000] ^= 1;
  }
  void hang_after_reads(int num_reads) {
    const std::lock_guard lock(mutex_);
    num_reads_left_ = num_reads;
  }
  void answer_next(std::vector<Action> next) {
    const std::lock_guard lock(mutex_);
    first_ = std::move(next);
    num_sets_ = 0;
  }

 private:
  Action answer(const std::vector<std::string>& command) {
    const std::lock_guard lock(mutex_);
    if (command[0] == "PING") return {.bytes = "+PONG\r\n"};
    const auto found = values_.find(command[1]);
    const std::string value = found == values_.end() ? "" : found->second;
    if (command[0] == "STRLEN") return {.bytes = fmt::format(":{}\r\n", value.size())};
    if (command[0] == "GETRANGE") {
      if (num_reads_left_-- == 0) return {.bytes = "", .then_hang = true};
      return {.bytes = ScriptedServer::bulk(value)};
    }
    CHECK(command[0] == "SET");
    if (num_sets_ < first_.size()) return first_[num_sets_++];
    values_[command[1]] = command[2];
    stored_.push_back(command[1]);
    return {.bytes = "+OK\r\n"};
  }

  mutable std::mutex mutex_;
  std::vector<Action> first_;
  std::size_t num_sets_ = 0;
  int num_reads_left_ = -1;  // below 0: any number
  std::vector<std::string> stored_;
  std::map<std::string, std::string> values_;
  ScriptedServer server_;
};

}  // namespace larder
