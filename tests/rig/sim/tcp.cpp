#include "tests/rig/sim/tcp.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/rig/sim/network.h"
#include "tests/rig/sim/streams.h"

namespace nccl_ha::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// As Linux has them by default: a segment that is not acknowledged goes out again after 200 ms,
// then at doubled intervals; a connect tries again after 1, 2, 4 ... seconds, and a neighbour that
// does not answer ARP is unreachable after three.
constexpr Duration first_retry = milliseconds(200);
constexpr Duration longest_retry = seconds(120);
constexpr Duration first_dial = seconds(1);
constexpr Duration last_dial = seconds(32);
constexpr Duration neighbour_limit = seconds(3);
// As uv_streams.cpp asks for them.
constexpr Duration keepalive_idle = seconds(10);
constexpr Duration keepalive_interval = seconds(10);
constexpr size_t backlog_max = 1 << 20;

Error refused() { return fail(Errc::remote, "cannot connect", ECONNREFUSED); }
Error broke(int why) { return fail(Errc::remote, "the connection broke", why); }

std::pair<Ip, Ip> between(Ip one, Ip other) { return {std::min(one, other), std::max(one, other)}; }

}  // namespace

size_t Tcp::held(std::span<const Ip> addresses) const {
  return static_cast<size_t>(std::ranges::count_if(ends_, [&](const auto& one) {
    const TcpEndPtr end = one.lock();
    return end && end->face != nullptr &&
           std::ranges::find(addresses, end->local.ip) != addresses.end();
  }));
}

void Tcp::set_middlebox(Ip one, Ip other, const Middlebox& box) {
  boxes_[between(one, other)] = box;
}

void Tcp::forget_flows(Ip one, Ip other, bool resets) {
  Middlebox& box = boxes_[between(one, other)];
  box.resets = resets;
  box.forgot_at = network_.now();
}

void Tcp::end_flows(Ip one, Ip other, bool reset) {
  for (const auto& weak : ends_) {
    const TcpEndPtr end = weak.lock();
    if (!end || end->state != TcpEnd::State::open ||
        between(end->local.ip, end->remote.ip) != between(one, other)) {
      continue;
    }
    if (reset) {
      ++counts_.resets;
      die(end, fail(Errc::remote, "the connection broke", ECONNRESET));
    } else {
      tell_end(end, fail(Errc::closed, "the connection was closed"));
    }
  }
}

void Tcp::filter(Ip from, Ip to, bool drops) {
  if (drops) {
    filters_.insert({from, to});
  } else {
    filters_.erase({from, to});
  }
}

bool Tcp::lost(Ip from, Ip to) const {
  return network_.blocked(from, to) || (!filters_.empty() && filters_.contains({from, to}));
}

bool Tcp::answers_come(const TcpEnd& end) const {
  const auto box = boxes_.find(between(end.local.ip, end.remote.ip));
  return (box == boxes_.end() || !box->second.dark) && !lost(end.remote.ip, end.local.ip);
}

Tcp::Way Tcp::way(const TcpEnd& from) {
  if (lost(from.local.ip, from.remote.ip)) {
    ++network_.counts_.cut;
    return Way::lost;
  }
  const auto box = boxes_.find(between(from.local.ip, from.remote.ip));
  if (box == boxes_.end() || !from.flow) {
    return Way::open;
  }
  if (box->second.dark) {
    return Way::lost;
  }
  TcpFlow& flow = *from.flow;
  const Instant now = network_.now();
  if (!flow.forgotten &&
      ((box->second.forgot_at != Instant{} && flow.opened <= box->second.forgot_at) ||
       now - flow.used > box->second.idle_limit)) {
    flow.forgotten = true;
    ++counts_.forgotten;
  }
  flow.used = now;
  return !flow.forgotten ? Way::open : box->second.resets ? Way::reset : Way::lost;
}

// --- sending

Result<void> Tcp::write(const TcpEndPtr& end, std::span<const std::byte> bytes) {
  if (end->state != TcpEnd::State::open || end->told_end) {
    return fail(Errc::closed, "the stream is not open");
  }
  if (end->under_way > backlog_max) {
    return fail(Errc::again, "the peer does not read its control stream");
  }
  if (pieces_.longest != 0) {
    push_pieces(end, bytes);
  } else {
    push(end, {{}, {bytes.begin(), bytes.end()}});
  }
  return {};
}

void Tcp::push_pieces(const TcpEndPtr& from, std::span<const std::byte> bytes) {
  for (bool within = false; !bytes.empty(); within = true) {
    const size_t length =
        std::min<size_t>(bytes.size(), 1 + network_.random_.below(pieces_.longest));
    TcpEnd::Segment piece;
    piece.bytes.assign(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
    piece.within = within;
    const auto apart = static_cast<uint64_t>(pieces_.apart.count());
    push(from, std::move(piece), Duration(network_.random_.below(apart + 1)));
    counts_.pieces += within ? 1 : 0;
    bytes = bytes.subspan(length);
  }
}

void Tcp::close(const TcpEndPtr& end) {
  end->owner = nullptr;
  end->told_end = true;
  if (end->state == TcpEnd::State::dialling) {
    end->state = TcpEnd::State::dead;
  }
  if (end->state != TcpEnd::State::open) {
    return;
  }
  end->state = TcpEnd::State::closing;
  if (end->unread == 0 && end->early.empty()) {
    push(end, {{}, {}, TcpEnd::Segment::Kind::fin});
    return;
  }
  // Unread input turns the FIN into a reset, and what was not acknowledged is not sent again.
  std::erase_if(end->sent, [&](const auto& one) { return one.due <= network_.now(); });
  push(end, {{}, {}, TcpEnd::Segment::Kind::reset});
}

void Tcp::push(const TcpEndPtr& from, TcpEnd::Segment segment, Duration later) {
  segment.due = network_.now() + network_.link(from->local.ip, from->remote.ip).delay;
  if (!from->sent.empty()) {
    segment.due = std::max(segment.due, from->sent.back().due);
  }
  segment.due += later;
  from->under_way += segment.bytes.size();
  const Instant due = segment.due;
  from->sent.push_back(std::move(segment));
  network_.at(due, [this, from] {
    if (!from->stalled) {
      flush(from);
    }
  });
}

/// Everything that is due arrives, or the first that does not is sent again later.
void Tcp::flush(const TcpEndPtr& from) {
  if (from->state == TcpEnd::State::dead || from->sent.empty() ||
      from->sent.front().due > network_.now()) {
    return;
  }
  const TcpEndPtr to = from->other.lock();
  const Way there = way(*from);
  const bool back = answers_come(*from);
  if (there == Way::reset) {
    reset(from);
    return;
  }
  for (TcpEnd::Segment& segment : from->sent) {
    if (segment.due > network_.now() || there == Way::lost) {
      break;
    }
    if (segment.arrived) {
      if (to) {
        to->heard = network_.now();  // what comes again shows that its sender is there
      }
      continue;
    }
    if (!to || to->state == TcpEnd::State::dead ||
        (to->state == TcpEnd::State::closing && segment.kind == TcpEnd::Segment::Kind::data)) {
      if (to) {
        to->state = TcpEnd::State::dead;  // it answers with a reset and forgets the connection
      }
      if (back) {
        reset(from);
        return;
      }
      break;
    }
    segment.arrived = true;
    deliver(to, segment);
    if (from->state == TcpEnd::State::dead) {
      return;
    }
  }
  while (back && !from->sent.empty() && from->sent.front().arrived) {
    from->under_way -= from->sent.front().bytes.size();
    const bool last = from->sent.front().kind != TcpEnd::Segment::Kind::data;
    from->sent.pop_front();
    from->heard = network_.now();
    from->unanswered_since.reset();
    from->stalled = false;
    if (last) {
      from->state = TcpEnd::State::dead;
      return;
    }
  }
  if (!from->sent.empty() && from->sent.front().due <= network_.now()) {
    if (from->sent.front().kind == TcpEnd::Segment::Kind::reset) {
      from->state = TcpEnd::State::dead;  // sent once
      return;
    }
    arm_retry(from);
  }
}

void Tcp::arm_retry(const TcpEndPtr& from) {
  const Instant now = network_.now();
  if (!from->unanswered_since) {
    from->unanswered_since = now;
    from->retry = first_retry;
  }
  const Instant limit = *from->unanswered_since + from->user_timeout;
  if (now >= limit) {
    give_up(from);
    return;
  }
  if (std::exchange(from->retry_armed, true)) {
    return;
  }
  network_.at(std::min(now + from->retry, limit), [this, from] {
    from->retry_armed = false;
    from->stalled = from->unanswered_since.has_value();
    flush(from);
  });
  from->retry = std::min(2 * from->retry, longest_retry);
}

void Tcp::deliver(const TcpEndPtr& to, const TcpEnd::Segment& segment) {
  to->heard = network_.now();
  switch (segment.kind) {
    case TcpEnd::Segment::Kind::data:
      tell_bytes(to, segment.bytes);
      return;
    case TcpEnd::Segment::Kind::fin:
      tell_end(to, fail(Errc::closed, "the connection was closed"));
      return;
    case TcpEnd::Segment::Kind::reset:
      ++counts_.resets;
      die(to, broke(ECONNRESET));
      return;
  }
}

// --- ends of connections

/// The peer's kernel, or a box in between, does not know this connection.
void Tcp::reset(const TcpEndPtr& end) {
  network_.at(network_.now() + network_.link(end->remote.ip, end->local.ip).delay, [this, end] {
    if (end->state != TcpEnd::State::dead) {
      ++counts_.resets;
      die(end, broke(ECONNRESET));
    }
  });
}

void Tcp::reset_other(const TcpEnd& from) {
  if (const TcpEndPtr to = from.other.lock(); to && way(from) == Way::open) {
    reset(to);
  }
}

void Tcp::give_up(const TcpEndPtr& end) {
  ++counts_.timeouts;
  const bool unreachable = network_.link(end->local.ip, end->remote.ip).no_neighbour;
  die(end, broke(unreachable ? EHOSTUNREACH : ETIMEDOUT));
}

void Tcp::die(const TcpEndPtr& end, const Error& error) {
  end->state = TcpEnd::State::dead;
  const auto next = std::find_if(end->sent.begin(), end->sent.end(),
                                 [](const TcpEnd::Segment& one) { return !one.arrived; });
  counts_.torn += next != end->sent.end() && next->within ? 1 : 0;
  end->sent.clear();
  end->under_way = 0;
  tell_end(end, error);
}

void Tcp::arm_keepalive(const TcpEndPtr& end, Instant due) {
  network_.at(due, [this, weak = std::weak_ptr(end)] {
    if (const TcpEndPtr known = weak.lock(); known && known->state == TcpEnd::State::open) {
      keep_alive(known);
    }
  });
}

void Tcp::keep_alive(const TcpEndPtr& end) {
  const Instant now = network_.now();
  if (!end->sent.empty()) {  // retransmissions tell
    arm_keepalive(end, now + keepalive_idle);
    return;
  }
  const Duration silent = now - end->heard;
  if (silent < keepalive_idle) {
    end->probed = false;
    arm_keepalive(end, end->heard + keepalive_idle);
    return;
  }
  if (end->probed && silent >= end->user_timeout) {
    reset_other(*end);
    give_up(end);
    return;
  }
  const TcpEndPtr other = end->other.lock();
  const Way there = way(*end);
  if (there == Way::reset || (there == Way::open && answers_come(*end) &&
                              (!other || other->state == TcpEnd::State::dead))) {
    reset(end);
    return;
  }
  if (there == Way::open && other) {  // gone: its host's answer does not come
    other->heard = now;
    if (answers_come(*end)) {
      end->heard = now;
      end->probed = false;
      arm_keepalive(end, now + keepalive_idle);
      return;
    }
  }
  end->probed = true;
  arm_keepalive(end, now + keepalive_interval);
}

void Tcp::host_dies(Ip host) {
  for (const auto& weak : ends_) {
    if (const TcpEndPtr end = weak.lock(); end && network_.same_host(end->local.ip, host)) {
      end->state = TcpEnd::State::dead;
      end->sent.clear();
    }
  }
  std::erase_if(listening_,
                [&](const auto& one) { return network_.same_host(one.second.at.ip, host); });
}

void Tcp::process_dies(SimStreams& factory) {
  std::erase_if(accepted_, [&](const auto& entry) {
    const auto listener = listening_.find(entry.second->listener);
    const bool own = listener != listening_.end() && listener->second.factory == &factory;
    if (own) {
      close(entry.second);
    }
    return own;
  });
  std::erase_if(listening_, [&](const auto& one) { return one.second.factory == &factory; });
  for (const auto& weak : ends_) {
    if (const TcpEndPtr end = weak.lock(); end && end->factory == &factory) {
      close(end);
      end->factory = nullptr;
    }
  }
}

void Tcp::forget(SimStreams& factory) {
  for (auto& [token, listening] : listening_) {
    if (listening.factory == &factory) {
      listening.owner = nullptr;
      listening.factory = nullptr;
    }
  }
  for (const auto& weak : ends_) {
    if (const TcpEndPtr end = weak.lock(); end && end->factory == &factory) {
      end->factory = nullptr;
      end->told_end = true;
    }
  }
}

// --- what processes are told, on their next turn

void Tcp::tell_bytes(const TcpEndPtr& to, std::vector<std::byte> bytes) {
  network_.mix(static_cast<uint64_t>(network_.now().time_since_epoch().count()));
  network_.mix(uint64_t{to->local.port} << 32 | bytes.size());
  counts_.bytes += bytes.size();
  if (to->told_end) {
    return;
  }
  if (to->factory == nullptr) {
    to->early.push_back(std::move(bytes));
    return;
  }
  ++to->unread;
  to->factory->inbox_.emplace_back([to, bytes = std::move(bytes)] {
    --to->unread;
    if (to->face != nullptr && to->owner != nullptr && !to->told_end) {
      to->owner->on_stream_data(*to->face, bytes);
    }
  });
}

void Tcp::tell_end(const TcpEndPtr& to, const Error& error) {
  network_.mix(static_cast<uint64_t>(network_.now().time_since_epoch().count()));
  network_.mix(uint64_t{to->local.port} << 8 | static_cast<uint64_t>(error.code));
  if (to->told_end) {
    return;
  }
  if (to->factory == nullptr) {
    to->early_end = to->early_end ? to->early_end : error;
    return;
  }
  to->factory->inbox_.emplace_back([to, error] {
    if (!to->told_end && to->face != nullptr) {
      to->told_end = true;
      if (to->owner != nullptr) {
        to->owner->on_stream_closed(*to->face, error);
      }
    }
  });
}

// --- beginnings

void Tcp::remember(const TcpEndPtr& end) {
  if (ends_.size() % 64 == 63) {
    std::erase_if(ends_, [](const auto& weak) { return weak.expired(); });
  }
  ends_.push_back(end);
}

int Tcp::listen(Ip local, uint16_t port, bool everywhere) {
  const int token = next_token_--;
  listening_[token] = {{local, port}, everywhere};
  return token;
}

Result<void> Tcp::serve(int token, SimStreams& factory, AcceptorOwner* owner) {
  const auto found = listening_.find(token);
  if (found == listening_.end() || found->second.owner != nullptr) {
    return fail(Errc::invalid_argument, "not a free listening socket of the simulated network");
  }
  found->second.factory = &factory;
  found->second.owner = owner;
  return {};
}

TcpEndPtr Tcp::dial(SimStreams& factory, const Endpoint& from, const Endpoint& to,
                    Duration timeout) {
  auto end = std::make_shared<TcpEnd>();
  end->factory = &factory;
  end->local = from;
  end->remote = to;
  end->user_timeout = timeout;
  end->flow = std::make_shared<TcpFlow>(TcpFlow{network_.now(), network_.now()});
  remember(end);
  send_syn(end, first_dial, network_.now());
  return end;
}

/// A SYN on its way; the answer comes back after the delay of the other direction.
void Tcp::send_syn(const TcpEndPtr& from, Duration retry, Instant since) {
  const Link& link = network_.link(from->local.ip, from->remote.ip);
  network_.at(network_.now() + link.delay, [this, from, retry, since] {
    if (from->state != TcpEnd::State::dialling) {
      return;  // given up meanwhile
    }
    from->flow->opened = network_.now() + Duration(1);
    if (const int error = network_.link(from->local.ip, from->remote.ip).dial_error; error != 0) {
      die(from, fail(Errc::remote, "cannot connect", error));
      return;
    }
    if (way(*from) != Way::lost && answers_come(*from)) {
      looked_for_.erase({from->local.ip, from->remote.ip});
      on_syn(from);
      return;
    }
    const Instant now = network_.now();
    if (network_.link(from->local.ip, from->remote.ip).no_neighbour) {
      // A kernel goes on looking for a neighbour, whoever dials.
      const std::pair neighbour{from->local.ip, from->remote.ip};
      const Instant asked = looked_for_.try_emplace(neighbour, since).first->second;
      if (now - asked >= neighbour_limit) {
        looked_for_.erase(neighbour);
        die(from, fail(Errc::remote, "cannot connect", EHOSTUNREACH));
        return;
      }
    }
    if (retry > last_dial || now - since >= from->user_timeout) {
      die(from, fail(Errc::remote, "cannot connect", ETIMEDOUT));
      return;
    }
    network_.at(now + retry, [this, from, retry, since] { send_syn(from, 2 * retry, since); });
  });
}

void Tcp::on_syn(const TcpEndPtr& from) {
  const auto listener = std::find_if(listening_.begin(), listening_.end(), [&](const auto& entry) {
    const Listening& one = entry.second;
    return one.owner != nullptr && one.at.port == from->remote.port &&
           (one.at.ip == from->remote.ip ||
            (one.everywhere && network_.same_host(one.at.ip, from->remote.ip)));
  });
  const Instant answer = network_.now() + network_.link(from->remote.ip, from->local.ip).delay;
  if (listener == listening_.end()) {
    ++counts_.refused;
    network_.at(answer, [this, from] {
      if (from->state == TcpEnd::State::dialling) {
        die(from, refused());
      }
    });
    return;
  }
  auto accepted = std::make_shared<TcpEnd>();
  accepted->local = from->remote;
  accepted->remote = from->local;
  accepted->other = from;
  accepted->flow = from->flow;
  accepted->user_timeout = from->user_timeout;
  accepted->listener = listener->first;
  remember(accepted);
  from->other = accepted;
  network_.at(answer, [this, from, accepted, token = listener->first] {
    establish(from, accepted, token);
  });
}

void Tcp::establish(const TcpEndPtr& from, const TcpEndPtr& accepted, int listener) {
  const auto found = listening_.find(listener);
  if (from->state != TcpEnd::State::dialling || from->factory == nullptr ||
      found == listening_.end() || found->second.factory == nullptr) {
    accepted->state = TcpEnd::State::dead;
    if (from->state == TcpEnd::State::dialling) {
      die(from, refused());
    }
    return;
  }
  for (const TcpEndPtr& end : {from, accepted}) {
    end->state = TcpEnd::State::open;
    end->heard = network_.now();
    arm_keepalive(end, network_.now() + keepalive_idle);
  }
  const int token = next_token_--;
  accepted_[token] = accepted;
  found->second.factory->inbox_.emplace_back([this, token, listener] {
    const auto known = listening_.find(listener);
    if (known != listening_.end() && known->second.owner != nullptr) {
      known->second.owner->on_accept(token);
    }
  });
  from->factory->inbox_.emplace_back([from] {
    if (from->face != nullptr && from->owner != nullptr && !from->told_end) {
      from->owner->on_stream_open(*from->face);
    }
  });
}

Result<TcpEndPtr> Tcp::adopt(int token, SimStreams& factory, StreamOwner* owner, Duration timeout) {
  const auto found = accepted_.find(token);
  if (found == accepted_.end()) {
    return fail(Errc::invalid_argument, "not a connection of the simulated network");
  }
  TcpEndPtr end = std::move(found->second);
  accepted_.erase(found);
  end->factory = &factory;
  end->owner = owner;
  end->user_timeout = timeout;
  return end;
}

void Tcp::tell_early(const TcpEndPtr& end) {
  for (auto& bytes : std::exchange(end->early, {})) {
    tell_bytes(end, std::move(bytes));
  }
  if (end->early_end) {
    tell_end(end, *end->early_end);
  }
}

}  // namespace nccl_ha::sim
