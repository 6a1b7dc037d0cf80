#include "kv/tiers/remote_tls.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace larder {
namespace {

constexpr std::size_t kRecordBytes = std::size_t{16} << 10;  // the longest that TLS has

// The oldest error of this thread, whose others go with it.
std::string take_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "failed";
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : std::strerror(ERR_GET_REASON(code));
}

int socket_of(BIO* bio) { return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio))); }

bool is_to_be_tried_again(ssize_t num_bytes) { return num_bytes < 0 && (errno == EAGAIN || errno == EINTR); }

// OpenSSL's own writes to the socket raise SIGPIPE.
int send_to_socket(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = ::send(socket_of(bio), bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (is_to_be_tried_again(sent)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int receive_from_socket(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t received = ::recv(socket_of(bio), bytes, static_cast<std::size_t>(size), MSG_DONTWAIT);
  if (is_to_be_tried_again(received)) BIO_set_retry_read(bio);
  return static_cast<int>(received);
}

long control_socket(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

const BIO_METHOD* socket_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "socket without signals");
    if (made == nullptr) throw std::bad_alloc();
    BIO_meth_set_write(made, send_to_socket);
    BIO_meth_set_read(made, receive_from_socket);
    BIO_meth_set_ctrl(made, control_socket);
    return made;
  }();
  return method;
}

void check(int done, const char* what, const std::string& file) {
  if (done != 1) throw_invalid("remote tier: {} {}: {}", what, file, take_error());
}

}  // namespace

RemoteTls::RemoteTls(const RemoteTlsFiles& files) : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
  SSL_CTX* const context = context_.get();
  if (context == nullptr) throw Error(ErrorKind::kUnavailable, "remote tier: TLS cannot be set up: " + take_error());
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  // A connection that ends without a word of TLS has ended all the same: answers have lengths.
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Else it asks for a key's passphrase on the terminal, and waits.
  SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return -1; });
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  if (files.ca.empty()) {
    SSL_CTX_set_default_verify_paths(context);
  } else {
    check(SSL_CTX_load_verify_file(context, files.ca.c_str()), "the certificates to trust in", files.ca);
  }
  const std::string& key = files.key.empty() ? files.certificate : files.key;
  if (!files.certificate.empty()) {
    check(SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()), "the certificate in", files.certificate);
    check(SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM), "the certificate's key, which has to be without a passphrase, in", key);
  } else if (!files.key.empty()) {
    throw_invalid("remote tier: a key ({}) without its certificate", files.key);
  }
  ERR_clear_error();
}

std::unique_ptr<const RemoteTls> make_remote_tls(bool is_wanted, const RemoteTlsFiles& files) {
  if (is_wanted) return std::make_unique<RemoteTls>(files);
  if (!files.empty()) throw_invalid("remote tier: certificates are for a rediss:// address");
  return nullptr;
}

TlsStream::TlsStream(const RemoteTls& tls, int fd, std::vector<std::string> names)
    : names_(std::move(names)), ssl_(SSL_new(tls.context()), SSL_free) {
  CHECK(!names_.empty());
  BIO* const bio = ssl_ ? BIO_new(socket_method()) : nullptr;
  if (bio == nullptr) throw std::bad_alloc();
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_connect_state(ssl_.get());
  // The name that a router on the way goes by; addresses are none.
  const std::string& host = names_.front();
  std::array<unsigned char, sizeof(in6_addr)> address;
  const bool is_address = ::inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
                          ::inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
  if (!is_address) SSL_set_tlsext_host_name(ssl_.get(), host.c_str());
  ERR_clear_error();
}

ssize_t TlsStream::fail(std::string error) {
  error_ = std::move(error);
  errno = EPROTO;
  return -1;
}

// Of a call that has not done anything.
ssize_t TlsStream::result_of(int done) {
  const int system_error = errno;
  const int reason = SSL_get_error(ssl_.get(), done);
  wants_to_send_ = reason == SSL_ERROR_WANT_WRITE;
  if (wants_to_send_ || reason == SSL_ERROR_WANT_READ) {
    errno = EAGAIN;
    return -1;
  }
  if (reason == SSL_ERROR_ZERO_RETURN) return 0;
  if (reason == SSL_ERROR_SYSCALL && ERR_peek_error() == 0)
    return system_error == 0 ? 0 : fail(std::strerror(system_error));
  return fail("TLS: " + take_error());
}

bool TlsStream::is_for_a_name() const {
  const std::unique_ptr<X509, void (*)(X509*)> certificate(SSL_get1_peer_certificate(ssl_.get()), X509_free);
  return certificate && std::ranges::any_of(names_, [&](const std::string& name) {
           return X509_check_host(certificate.get(), name.data(), name.size(), 0, nullptr) == 1 ||
                  X509_check_ip_asc(certificate.get(), name.c_str(), 0) == 1;
         });
}

ssize_t TlsStream::shake_hands() {
  ERR_clear_error();
  errno = 0;
  const int done = SSL_do_handshake(ssl_.get());
  if (done != 1) {
    const ssize_t result = result_of(done);
    const long verified = SSL_get_verify_result(ssl_.get());
    if (result == 0) return fail("closed by the server in TLS's handshake");
    if (errno != EAGAIN && verified != X509_V_OK)
      return fail(std::string("its certificate is not trusted: ") + X509_verify_cert_error_string(verified));
    return result;
  }
  if (!is_for_a_name()) return fail("its certificate is not for " + names_.front());
  return 1;
}

ssize_t TlsStream::send(std::span<const std::span<const std::byte>> pieces, std::size_t first_offset) {
  // Short pieces share a record.
  std::array<std::byte, kRecordBytes> record;
  std::size_t size = 0;
  for (std::size_t i = 0; i < pieces.size() && size < record.size(); ++i) {
    const std::span<const std::byte> rest = pieces[i].subspan(i == 0 ? first_offset : 0);
    const std::size_t num_bytes = std::min(rest.size(), record.size() - size);
    std::memcpy(record.data() + size, rest.data(), num_bytes);
    size += num_bytes;
  }
  ERR_clear_error();
  errno = 0;
  const int sent = SSL_write(ssl_.get(), record.data(), static_cast<int>(size));
  return sent > 0 ? sent : result_of(sent);
}

ssize_t TlsStream::receive(std::span<char> bytes) {
  ERR_clear_error();
  errno = 0;
  const int received = SSL_read(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()));
  return received > 0 ? received : result_of(received);
}

bool TlsStream::has_received() const { return SSL_pending(ssl_.get()) > 0; }

}  // namespace larder
