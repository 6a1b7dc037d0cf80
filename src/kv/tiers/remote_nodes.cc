#include "kv/tiers/remote_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace larder {
namespace {

constexpr std::int64_t kSlowestBytesPerMs = 50'000;
constexpr std::size_t kMaxNodes = 1024;  // a cluster has no more
constexpr int kMaxRounds = 4;            // of commands that others have to be asked for
constexpr std::string_view kAsking = "*1\r\n$6\r\nASKING\r\n";
constexpr std::int64_t kMaxAskingReplyBytes = 64;

// Takes the word before the next blank off the front of rest.
std::string_view take_word(std::string_view& rest) {
  const std::string_view word = rest.substr(0, rest.find(' '));
  rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  return word;
}

// -1: it is none.
int number_of(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? value : -1;
}

}  // namespace

RemoteNodes::Node::Node(const RemoteUrl& at, const RemoteTls* tls, const std::atomic<bool>& stop)
    : url(at), host(url.host, url.port), connection(url, host, stop, tls) {}

RemoteNodes::RemoteNodes(const RemoteUrl& url, const RemoteTls* tls, const RemoteTimeouts& timeouts,
                         const std::atomic<bool>& stop)
    : url_(url), tls_(tls), timeouts_(timeouts), stop_(stop), slots_(kNumSlots, kUnknown) {
  nodes_.push_back(std::make_unique<Node>(url_, tls_, stop_));
}

void RemoteNodes::close() {
  for (const auto& node : nodes_) node->connection.close();
}

void RemoteNodes::settle() {
  if (is_full_ || std::ranges::any_of(nodes_, [](const auto& node) { return node->has_failed; })) forget_nodes();
  if (!is_left_.exchange(false)) return;
  for (const auto& node : nodes_) node->host.forget();
  close();
}

// Those that have failed, or all: whoever still has slots is named again. The address' own stays.
void RemoteNodes::forget_nodes() {
  std::vector<std::unique_ptr<Node>> kept;
  std::vector<std::uint16_t> places(nodes_.size(), kUnknown);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (i > 0 && (is_full_ || nodes_[i]->has_failed)) continue;
    places[i] = static_cast<std::uint16_t>(kept.size());
    kept.push_back(std::move(nodes_[i]));
  }
  nodes_ = std::move(kept);
  for (std::uint16_t& node : slots_)
    if (node != kUnknown) node = places[node];
  entry_ = places[entry_] == kUnknown ? 0 : places[entry_];
  nodes_[0]->has_failed = is_full_ = false;
}

RemoteOutcome RemoteNodes::fail(std::uint16_t node, RemoteOutcome outcome) {
  const std::string& reason = nodes_[node]->connection.error();
  error_ = node == 0 ? reason : fmt::format("{}: {}", nodes_[node]->url.display(), reason);
  std::ranges::replace(slots_, node, kUnknown);
  nodes_[node]->has_failed = !nodes_[node]->host.has_lookup();  // what a slow resolver says late is for the next attempt
  if (node != entry_) return outcome;
  const auto when = [](const std::unique_ptr<Node>& one) { return one->has_failed ? -1 : one->answered_ns; };
  entry_ = node == 0 ? static_cast<std::uint16_t>(std::ranges::max_element(nodes_, {}, when) - nodes_.begin()) : 0;
  return outcome;
}

RemoteOutcome RemoteNodes::open() {
  settle();
  const std::uint16_t entry = entry_;
  const RemoteOutcome outcome = nodes_[entry]->connection.open(steady_now_ns() + timeouts_.connect_ms * kNsPerMs);
  return outcome == RemoteOutcome::kOk ? outcome : fail(entry, outcome);
}

// The node at host:port; a host that is left out is the teller's own. nullopt: it is none, or one too many.
std::optional<std::uint16_t> RemoteNodes::node_at(std::string_view address, const Node& teller) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  RemoteUrl url = url_;
  url.host = colon == 0 ? teller.url.host : address.substr(0, colon);
  url.port = number_of(address.substr(colon + 1));
  url.names = {url.host, url_.host};
  if (!is_host(url.host) || url.port < 1 || url.port > 65535) return std::nullopt;
  const auto found = std::ranges::find_if(
      nodes_, [&](const auto& node) { return node->url.host == url.host && node->url.port == url.port; });
  if (found == nodes_.end()) {
    is_full_ = nodes_.size() == kMaxNodes;
    if (is_full_) return std::nullopt;
    nodes_.push_back(std::make_unique<Node>(url, tls_, stop_));
    return static_cast<std::uint16_t>(nodes_.size() - 1);
  }
  return static_cast<std::uint16_t>(found - nodes_.begin());
}

// "MOVED 3999 10.0.0.2:6379", for good, or "ASK ...", for this time.
std::optional<RemoteNodes::Errand> RemoteNodes::redirected(const Errand& errand, const RemoteReply& reply) {
  if (reply.kind != RemoteReply::Kind::kError) return std::nullopt;
  std::string_view rest = reply.text();
  const std::string_view word = take_word(rest);
  if (word != "MOVED" && word != "ASK") return std::nullopt;
  const int slot = number_of(take_word(rest));
  if (slot != errand.slot) return std::nullopt;
  const auto node = node_at(rest, *nodes_[errand.node]);
  if (!node) return std::nullopt;
  const bool asks = word == "ASK";
  if (!asks) slots_[static_cast<std::size_t>(slot)] = *node;
  return Errand{.command = errand.command, .slot = slot, .node = *node, .asks = asks};
}

RemoteOutcome RemoteNodes::exchange(const RemoteRequest& request, std::int64_t max_reply_bytes, const OnReply& on_reply) {
  settle();
  exchange_ns_ = 0;
  const std::int64_t num_bytes = request.size_bytes() + request.num_commands() * max_reply_bytes;
  Patience patience{.deadline_ns = steady_now_ns() + (timeouts_.batch_ms + num_bytes / kSlowestBytesPerMs) * kNsPerMs,
                    .connect_ns = timeouts_.connect_ms * kNsPerMs};
  std::vector<Errand> errands;
  for (int i = 0; i < request.num_commands(); ++i)
    errands.push_back({.command = i, .slot = request.slot(i), .node = node_of(request.slot(i)), .asks = false});
  for (int round = 1; !errands.empty(); ++round) {
    std::vector<Errand> next;
    const auto answer = [&](const Errand& errand, const RemoteReply& reply) {
      const auto elsewhere = round < kMaxRounds ? redirected(errand, reply) : std::nullopt;
      if (elsewhere) next.push_back(*elsewhere);
      else on_reply(errand.command, reply);
    };
    const auto whom = [](const Errand& errand) { return std::tuple(errand.node, errand.asks); };
    std::ranges::stable_sort(errands, {}, whom);
    for (auto first = errands.begin(); first != errands.end();) {
      const auto last = std::find_if(first, errands.end(), [&](const Errand& one) { return whom(one) != whom(*first); });
      const RemoteOutcome outcome =
          send(first->node, exchange_of({first, last}, request, max_reply_bytes, answer), patience);
      if (outcome != RemoteOutcome::kOk) return outcome;
      first = last;
    }
    errands = std::move(next);
  }
  return RemoteOutcome::kOk;
}

// Of errands to one node, which have to stay.
RemoteExchange RemoteNodes::exchange_of(std::span<const Errand> errands, const RemoteRequest& request,
                                        std::int64_t max_reply_bytes,
                                        const std::function<void(const Errand&, const RemoteReply&)>& answer) const {
  const bool asks = errands.front().asks;
  const int num_each = asks ? 2 : 1;
  const auto num_errands = static_cast<std::int64_t>(errands.size());
  RemoteExchange exchange{.pieces = {},
                          .num_replies = num_each * static_cast<int>(num_errands),
                          .max_reply_bytes = num_errands * (max_reply_bytes + (asks ? kMaxAskingReplyBytes : 0))};
  for (const Errand& errand : errands) {
    if (asks) exchange.pieces.push_back(std::as_bytes(std::span(kAsking)));
    request.append_pieces(errand.command, exchange.pieces);
  }
  exchange.on_reply = [errands, num_each, &answer](int index, const RemoteReply& reply) {
    if (index % num_each == num_each - 1) answer(errands[static_cast<std::size_t>(index / num_each)], reply);
  };
  return exchange;
}

// What it takes counts for all connections of an exchange, and not for what is exchanged.
RemoteOutcome RemoteNodes::open_connection(Node& node, Patience& patience) {
  const std::int64_t start_ns = steady_now_ns();
  const RemoteOutcome outcome = node.connection.open(start_ns + patience.connect_ns);
  const std::int64_t spent_ns = steady_now_ns() - start_ns;
  patience.connect_ns -= spent_ns;
  patience.deadline_ns += spent_ns;
  return outcome;
}

RemoteOutcome RemoteNodes::send(std::uint16_t to, RemoteExchange exchange, Patience& patience) {
  Node& node = *nodes_[to];
  bool any_reply = false;
  exchange.on_reply = [&any_reply, on_reply = std::move(exchange.on_reply)](int index, const RemoteReply& reply) {
    any_reply = true;
    on_reply(index, reply);
  };
  RemoteOutcome outcome = RemoteOutcome::kFailed;
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (!node.connection.is_fresh(timeouts_.max_idle_ms * kNsPerMs)) node.connection.close();
    const bool was_open = node.connection.is_open();
    outcome = was_open ? RemoteOutcome::kOk : open_connection(node, patience);
    const std::int64_t start_ns = steady_now_ns();
    if (outcome == RemoteOutcome::kOk) outcome = node.connection.exchange(exchange, patience.deadline_ns);
    exchange_ns_ += steady_now_ns() - start_ns;
    if (outcome != RemoteOutcome::kFailed || !was_open || any_reply) break;
  }
  if (outcome != RemoteOutcome::kOk) return fail(to, outcome);
  node.answered_ns = steady_now_ns();
  return outcome;
}

}  // namespace larder
