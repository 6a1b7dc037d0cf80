// redis://[[user]:password@]host[:port][/db], rediss:// with TLS; also valkey:// and valkeys://
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace larder {

struct RemoteUrl {
  std::string host;  // a name, an IPv4 or, without its brackets, an IPv6 address
  int port = 6379;
  std::string user;      // of an ACL; empty = the default one
  std::string password;  // empty = no AUTH
  int db = 0;
  bool is_tls = false;
  std::vector<std::string> names{};  // with TLS: whom the server's certificate may be for, host the first of them

  // Without the password, for messages.
  std::string display() const;
};

// Whether it is a name or, without brackets, an address, as far as letters can tell.
bool is_host(std::string_view text);

// Throws Error{kInvalidArgument} that says what is wrong, never with the password. %XX in user and
// password is decoded.
RemoteUrl parse_remote_url(std::string_view url);

}  // namespace larder
