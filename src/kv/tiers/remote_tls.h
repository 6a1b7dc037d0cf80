// TLS to a Redis or Valkey server, over a socket that does not block.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

struct ssl_ctx_st;
struct ssl_st;

namespace larder {

// Files in PEM; empty = none.
struct RemoteTlsFiles {
  std::string ca{};           // whom to trust; none: whom the system does, or SSL_CERT_FILE and SSL_CERT_DIR name
  std::string certificate{};  // the client's own, for servers that ask for one
  std::string key{};          // of it; none: in the certificate's file

  bool empty() const { return ca.empty() && certificate.empty() && key.empty(); }
};

// Whom connections trust, and as whom they come. Thread: any.
class RemoteTls {
 public:
  // Throws Error{kInvalidArgument} that names the file.
  explicit RemoteTls(const RemoteTlsFiles& files);

  ssl_ctx_st* context() const { return context_.get(); }

 private:
  std::shared_ptr<ssl_ctx_st> context_;
};

// null: is_wanted is not. Throws as RemoteTls does, and for files that nobody wants.
std::unique_ptr<const RemoteTls> make_remote_tls(bool is_wanted, const RemoteTlsFiles& files);

// One connection, TLS 1.2 or 1.3. Calls return what send() and recv() do: bytes, 0 for the other side's end, -1 with EAGAIN
// where the socket has to be waited for, and -1 otherwise for an error that error() says. Thread: one at a time.
class TlsStream {
 public:
  // names: of which the certificate has to be for one, host names or addresses. Throws std::bad_alloc.
  TlsStream(const RemoteTls& tls, int fd, std::vector<std::string> names);
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // 1: the other side is who it should be, and nothing else may be called before.
  ssize_t shake_hands();
  // Of the pieces' bytes from the first on, some; after EAGAIN the same bytes have to come again.
  ssize_t send(std::span<const std::span<const std::byte>> pieces, std::size_t first_offset);
  ssize_t receive(std::span<char> bytes);

  // Bytes that the socket does not show any more.
  bool has_received() const;
  // The last EAGAIN was for room to send, whatever was called.
  bool wants_to_send() const { return wants_to_send_; }
  const std::string& error() const { return error_; }

 private:
  ssize_t result_of(int done);
  bool is_for_a_name() const;
  ssize_t fail(std::string error);

  const std::vector<std::string> names_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  bool wants_to_send_ = false;
  std::string error_;
};

}  // namespace larder
