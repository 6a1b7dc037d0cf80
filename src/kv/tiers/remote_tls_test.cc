// TLS to the real server: who is trusted, and that nothing is said to anybody else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kv/tiers/remote_connection.h"
#include "kv/tiers/remote_test_server.h"
#include "kv/tiers/remote_tier.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kBlockBytes = 50'000;

// Two authorities, and certificates of the first: one for 127.0.0.1, one for another host, one for a client.
class Certificates {
 public:
  Certificates() {
    for (const char* authority : {"ca", "other"})
      run(fmt::format("openssl req -x509 -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={0} "
                      "-keyout {0}.key -out {0}.pem",
                      authority));
    issue("server", "IP:127.0.0.1");
    issue("elsewhere", "DNS:elsewhere.test");
    issue("client", "DNS:client.test");
  }

  std::string file(const std::string& name) const { return dir_.path() + "/" + name; }
  std::vector<std::string> server_options(int port, const std::string& name = "server", bool asks_client = false) const {
    return {"--tls-port",         std::to_string(port), "--tls-cert-file",    file(name + ".pem"), "--tls-key-file", file(name + ".key"),
            "--tls-ca-cert-file", file("ca.pem"),       "--tls-auth-clients", asks_client ? "yes" : "no"};
  }

 private:
  void run(const std::string& command) const {
    ASSERT_EQ(std::system(fmt::format("cd {} && {} >/dev/null 2>&1", dir_.path(), command).c_str()), 0) << command;
  }
  void issue(const std::string& name, const std::string& whom) const {
    run(fmt::format("openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={0} -keyout {0}.key "
                    "-out {0}.csr && echo subjectAltName={1} >{0}.ext && "
                    "openssl x509 -req -in {0}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile {0}.ext -out {0}.pem",
                    name, whom));
  }

  TempDir dir_;
};

int free_port() {
  int port = 0;
  ::close(bind_loopback(port));
  return port;
}

class RemoteTlsTest : public RedisTest {
 protected:
  static void SetUpTestSuite() { certificates = std::make_unique<Certificates>(); }
  static void TearDownTestSuite() { certificates = nullptr; }

  RemoteTierConfig config() const {
    RemoteTierConfig config = RedisTest::config(fmt::format("rediss://127.0.0.1:{}", port_), kBlockBytes);
    config.tls.ca = certificates->file("ca.pem");
    return config;
  }
  // "": it was let in and answered, else why not.
  std::string reason(const RemoteTlsFiles& files) const { return reason(files, config().url, 20'000); }
  static std::string reason(const RemoteTlsFiles& files, const std::string& url, int patience_ms) {
    const RemoteUrl parsed = parse_remote_url(url);
    const auto tls = make_remote_tls(parsed.is_tls, files);
    const std::atomic<bool> stop = false;
    RemoteHost host(parsed.host, parsed.port);
    RemoteConnection connection(parsed, host, stop, tls.get());
    return connection.open(SteadyClock().now_ns() + patience_ms * kNsPerMs) == RemoteOutcome::kOk ? "" : connection.error();
  }

  static std::unique_ptr<Certificates> certificates;
  const int port_ = free_port();
};

std::unique_ptr<Certificates> RemoteTlsTest::certificates;

TEST_F(RemoteTlsTest, GivesBackWhatWasPut) {
  const RedisServer server(certificates->server_options(port_));
  const auto blocks = test_chain(1, 60);
  {
    RemoteTier tier(config(), test_format(kBlockBytes));
    put_all(tier, blocks, kBlockBytes);
    EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 60);
  }
  EXPECT_EQ(server.ask({"DBSIZE"}), "60");
  RemoteTier other(config(), test_format(kBlockBytes));
  EXPECT_EQ(count_right(other, blocks, kBlockBytes), 60);
  const TierStats stats = other.stats();
  EXPECT_EQ(stats.num_missed + stats.num_corrupt + stats.num_io_errors + stats.num_timeouts, 0u);
}

TEST_F(RemoteTlsTest, AValueOfManyRecordsComesWhole) {
  constexpr std::int64_t kLargeBytes = 3'000'000;
  const RedisServer server(certificates->server_options(port_));
  RemoteTierConfig large = config();
  large.batch_size_bytes = large.staging_size_bytes = 8 * kLargeBytes;
  RemoteTier tier(large, test_format(kLargeBytes));
  put_all(tier, test_chain(1, 6), kLargeBytes);
  EXPECT_EQ(count_right(tier, test_chain(1, 6), kLargeBytes), 6);
}

TEST_F(RemoteTlsTest, OnlyWhoIsTrustedIsAsked) {
  const RedisServer server(certificates->server_options(port_));
  EXPECT_EQ(reason({.ca = certificates->file("ca.pem")}), "");
  EXPECT_THAT(reason({.ca = certificates->file("other.pem")}), HasSubstr("certificate is not trusted"));
  EXPECT_THAT(reason({}), HasSubstr("certificate is not trusted"));
}

TEST_F(RemoteTlsTest, ACertificateForAnotherHostIsRefused) {
  const RedisServer server(certificates->server_options(port_, "elsewhere"));
  EXPECT_EQ(reason({.ca = certificates->file("ca.pem")}), "its certificate is not for 127.0.0.1");
  RemoteTier tier(config(), test_format(kBlockBytes));
  EXPECT_FALSE(tier.stats().is_on);
}

TEST_F(RemoteTlsTest, AClientsCertificateIsShown) {
  const RedisServer server(certificates->server_options(port_, "server", true));
  RemoteTlsFiles files{.ca = certificates->file("ca.pem")};
  EXPECT_NE(reason(files), "");
  files.certificate = certificates->file("client.pem");
  files.key = certificates->file("client.key");
  EXPECT_EQ(reason(files), "");
}

// A server in the clear waits for the rest of what it takes for a command.
TEST_F(RemoteTlsTest, WhoSpeaksNoTlsIsTold) {
  const RedisServer server(certificates->server_options(port_));
  EXPECT_THAT(reason({.ca = certificates->file("ca.pem")}, "rediss://" + server.url().substr(8), 300), HasSubstr("TLS"));
  EXPECT_THAT(reason({}, fmt::format("redis://127.0.0.1:{}", port_), 20'000), testing::Not(""));
}

TEST_F(RemoteTlsTest, IsOffWhileTheServerIsGoneAndComesBack) {
  RedisServer server(certificates->server_options(port_));
  RemoteTier tier(config(), test_format(kBlockBytes));
  put_all(tier, test_chain(1, 3), kBlockBytes);
  server.kill();
  EXPECT_EQ(count_right(tier, test_chain(1, 3), kBlockBytes), 0);
  EXPECT_FALSE(tier.stats().is_on);
  server.start();
  wait_until([&] { return tier.stats().is_on; });
  EXPECT_EQ(count_right(tier, test_chain(1, 3), kBlockBytes), 0);
  put_all(tier, test_chain(1, 3), kBlockBytes);
  EXPECT_EQ(count_right(tier, test_chain(1, 3), kBlockBytes), 3);
}

TEST_F(RemoteTlsTest, AConnectionThatTheServerClosedIsOpenedAgain) {
  const RedisServer server(certificates->server_options(port_));
  RemoteTier tier(config(), test_format(kBlockBytes));
  put_all(tier, test_chain(1, 3), kBlockBytes);
  EXPECT_EQ(count_right(tier, test_chain(1, 3), kBlockBytes), 3);
  server.ask({"CLIENT", "KILL", "TYPE", "normal"});
  EXPECT_EQ(count_right(tier, test_chain(1, 3), kBlockBytes), 3);
  EXPECT_EQ(tier.stats().num_io_errors, 0u);
}

TEST_F(RemoteTlsTest, AServerThatHangsInTheHandshakeStartsOff) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener, 16), 0);
  RemoteTierConfig brief = config();
  brief.connect_timeout_ms = 50;
  RemoteTier tier(brief, test_format(kBlockBytes));
  EXPECT_FALSE(tier.stats().is_on);
  EXPECT_GE(tier.stats().num_timeouts, 1u);
  ::close(listener);
}

TEST_F(RemoteTlsTest, RefusesFilesThatAreNone) {
  const auto refusal = [](const RemoteTlsFiles& files, bool is_wanted = true) {
    try {
      (void)make_remote_tls(is_wanted, files);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  EXPECT_THAT(refusal({.ca = "/nowhere.pem"}), HasSubstr("the certificates to trust in /nowhere.pem: "));
  EXPECT_THAT(refusal({.certificate = certificates->file("ca.key")}), HasSubstr("the certificate in "));
  EXPECT_THAT(refusal({.certificate = certificates->file("client.pem")}), HasSubstr("the certificate's key, "));
  EXPECT_THAT(refusal({.certificate = certificates->file("client.pem"), .key = certificates->file("server.key")}),
              HasSubstr("key values mismatch"));
  ASSERT_EQ(std::system(fmt::format("openssl ec -in {0} -aes128 -passout pass:secret -out {0}.locked 2>/dev/null",
                                    certificates->file("client.key")).c_str()), 0);
  EXPECT_THAT(refusal({.certificate = certificates->file("client.pem"), .key = certificates->file("client.key.locked")}),
              HasSubstr("without a passphrase"));
  EXPECT_THAT(refusal({.key = certificates->file("client.key")}), HasSubstr("without its certificate"));
  EXPECT_THAT(refusal({.ca = certificates->file("ca.pem")}, false), HasSubstr("rediss://"));
}

}  // namespace
}  // namespace larder
