#include "actors/rejoin.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "actors/route.h"
#include "runtime/base/log.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha {
namespace {

constexpr size_t ways_max = 64;

const sockaddr* any_or(const sockaddr_storage& address) {
  return address.ss_family == 0 ? nullptr : reinterpret_cast<const sockaddr*>(&address);
}

/// The same but for the port.
bool same_host(const sockaddr_storage& one, const sockaddr_storage& other) {
  const auto ip = IpAddress::from_sockaddr(any_or(one));
  const auto ip_other = IpAddress::from_sockaddr(any_or(other));
  if (!ip || !ip_other) {
    return !ip && !ip_other;
  }
  return ip->same_as(*ip_other);
}

/// And link-local addresses are those of one interface, which may have another number by now.
bool same_end(const sockaddr_storage& one, const sockaddr_storage& other) {
  const auto ip = IpAddress::from_sockaddr(any_or(one));
  const auto ip_other = IpAddress::from_sockaddr(any_or(other));
  return same_host(one, other) && (!ip || !ip_other || ip->scope_id == ip_other->scope_id);
}

bool same_way(const Rejoin::Way& one, const Rejoin::Way& other) {
  return same_end(one.to, other.to) && same_end(one.from, other.from);
}

/// This host has that address no more, or not the interface that it belongs to.
bool is_no_own_address(const Error& error) {
  return error.sys == EADDRNOTAVAIL || error.sys == ENODEV;
}

}  // namespace

Rejoin::Rejoin(Owner& owner) : owner_(owner) {
  timer_.bind([](void* self) { static_cast<Rejoin*>(self)->on_timer(); }, this);
}

Rejoin::~Rejoin() { stop(); }

void Rejoin::prepare(Context& context, ControlType call, std::vector<Way> ways,
                     const RejoinPoint& peer) {
  context_ = &context;
  call_ = call;
  ways_ = std::move(ways);
  peer_ = peer;
}

void Rejoin::add_missing(std::vector<Way>& ways, const std::vector<Way>& others) {
  for (const Way& other : others) {
    if (std::ranges::none_of(ways, [&](const Way& one) { return same_host(one.to, other.to); })) {
      ways.push_back(other);
    }
  }
}

bool Rejoin::add(const std::vector<Way>& now) {
  const auto is_of_now = [&](const Way& one) {
    return std::ranges::any_of(now, [&](const Way& other) { return same_way(one, other); });
  };
  const size_t before = ways_.size();
  for (const Way& way : now) {
    if (std::ranges::none_of(ways_, [&](const Way& one) {
          return same_end(one.to, way.to) && (one.from.ss_family == 0 || is_of_now(one));
        })) {
      ways_.push_back(way);
    }
  }
  const bool any = ways_.size() != before;
  if (ways_.size() > ways_max) {
    drop_all();  // their numbers change
    const auto older = std::stable_partition(ways_.begin(), ways_.end(), is_of_now);
    const auto unproven = std::stable_partition(older, ways_.end(), std::mem_fn(&Way::proven));
    const auto excess = static_cast<ptrdiff_t>(ways_.size() - ways_max);
    ways_.erase(unproven, unproven + std::min(excess, ways_.end() - unproven));
    ways_.resize(std::min(ways_.size(), ways_max));
    dial_now();
  }
  return any;
}

void Rejoin::add_proven(const Way& way) {
  std::erase_if(ways_, [&](const Way& one) {
    return same_host(one.to, way.to) && same_host(one.from, way.from);
  });
  ways_.insert(ways_.begin(), way);
  ways_.front().proven = true;
  ways_.resize(std::min(ways_.size(), ways_max));
}

Rejoin::Way Rejoin::way_between(const sockaddr_storage& peer, const sockaddr_storage& local) {
  Way way{peer, local, true};
  if (local.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&way.from)->sin6_port = 0;
  } else {
    reinterpret_cast<sockaddr_in*>(&way.from)->sin_port = 0;
  }
  return way;
}

bool Rejoin::leads_to(const RejoinPoint& peer, const sockaddr_storage& to) {
  const auto ip = IpAddress::from_sockaddr(any_or(to));
  return ip && ip->family == peer.family && ip->bytes == peer.address;
}

void Rejoin::start(Duration in, const Error& lost) {
  if (running_ || !possible() || ways_.empty()) {
    return;
  }
  running_ = true;
  lost_ = lost;
  begin();
  // Later even if it is to be now: the stream that was lost may still be speaking.
  context_->timers().arm(timer_, context_->now() + in);
  context_->request_stream_turns(1000);
}

/// The way that was proven last comes first.
void Rejoin::begin() {
  const auto proven =
      std::find_if(ways_.begin(), ways_.end(), [](const Way& w) { return w.proven; });
  redial_.begin(ways_.size(),
                proven == ways_.end() ? 0 : static_cast<size_t>(proven - ways_.begin()),
                context_->now());
}

void Rejoin::stop() {
  running_ = false;
  if (context_ != nullptr) {
    context_->timers().cancel(timer_);
  }
  drop_all();
}

/// Who has taken a stream already goes on: it was reached.
void Rejoin::dial_now() {
  if (!running_) {
    return;
  }
  std::erase_if(attempts_, [](const Attempt& one) { return !one.open; });
  begin();
  for (const Attempt& one : attempts_) {
    redial_.keep(one.way, context_->now());
  }
  context_->timers().arm(timer_, context_->now());
  context_->request_stream_turns(1000);
}

void Rejoin::write(std::span<const std::byte> frame) {
  for (const Attempt& one : attempts_) {
    if (one.spoken && call_ == ControlType::rejoin) {
      static_cast<void>(one.stream->write(frame));
    }
  }
}

void Rejoin::drop(Attempts::iterator one) {
  if (one->spoken) {
    one->stream->set_owner(nullptr);
    // The peer may have taken it already.
    static_cast<void>(one->stream->write(encode_retire()));
    one->stream->shutdown_then_close();
  }
  attempts_.erase(one);
}

void Rejoin::drop_all() {
  while (!attempts_.empty()) {
    drop(attempts_.begin());
  }
}

Rejoin::Attempts::iterator Rejoin::find(const Stream& stream) {
  return std::ranges::find_if(attempts_,
                              [&](const Attempt& one) { return one.stream.get() == &stream; });
}

void Rejoin::on_timer() {
  const Instant now = context_->now();
  for (auto late = attempts_.begin(); running_ && late != attempts_.end();) {
    if (now < late->until) {
      ++late;
      continue;
    }
    on_answer(late, Answer::silence, fail(Errc::timed_out, "no answer"));
    late = attempts_.begin();
  }
  if (const auto way = running_ ? redial_.take(now) : std::nullopt) {
    if (!ways_[*way].proven) {
      make_room();
    }
    dial(*way);
  }
  arm();
}

void Rejoin::arm() {
  if (!running_) {
    return;
  }
  std::optional<Instant> due = redial_.next();
  for (const Attempt& one : attempts_) {
    due = std::min(due.value_or(one.until), one.until);
  }
  if (due) {
    context_->timers().arm(timer_, *due);
  }
}

/// For one more dial of a way that never led to the peer.
void Rejoin::make_room() {
  const auto is_one = [&](const Attempt& one) { return !one.open && !ways_[one.way].proven; };
  if (static_cast<size_t>(std::ranges::count_if(attempts_, is_one)) >= ha::Redial::unproven_max) {
    on_answer(std::ranges::find_if(attempts_, is_one), Answer::silence,
              fail(Errc::timed_out, "no answer, and others wait to be dialled"));
  }
}

void Rejoin::dial(size_t at) {
  owner_.on_attempt();
  if (!running_) {
    return;
  }
  Attempt attempt;
  attempt.way = at;
  attempt.until = context_->now() + ha::Redial::longest_dial;
  sockaddr_storage to = ways_[at].to;
  if (to.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&to)->sin6_port = htons(peer_.port);
  } else {
    reinterpret_cast<sockaddr_in*>(&to)->sin_port = htons(peer_.port);
  }
  const sockaddr_storage& from = ways_[at].from;
  auto made = owner_.connect({to, from}, this);
  if (!made && from.ss_family != 0 && is_no_own_address(made.error())) {
    made = owner_.connect({to, {}}, this);  // the kernel knows this host's addresses of now
  }
  const bool dialled = static_cast<bool>(made);
  if (dialled) {
    attempt.stream = std::move(*made);
    context_->request_stream_turns(1000);
  }
  attempts_.push_back(std::move(attempt));
  if (!dialled) {
    on_answer(std::prev(attempts_.end()), Answer::silence, made.error());
  }
}

void Rejoin::on_answer(Attempts::iterator one, Answer answer, const Error& what) {
  const size_t at = one->way;
  NHA_LOG_DEBUG("control connection to {}, attempt {}: {}", address_text(ways_[at].to),
                redial_.dialled(), what.message());
  drop(one);
  const bool dead = redial_.on_answer(at, answer, ways_[at].proven, owner_.life(), context_->now());
  if (redial_.broken() != nullptr) {
    stop();
    owner_.on_broken(redial_.broken());
    return;
  }
  if (dead) {
    stop();
    owner_.on_peer_dead(fail(Errc::remote, fmt::format("{}; the control connection was lost: {}",
                                                       what.message(), lost_.message())));
    return;
  }
  speak();
  arm();
}

/// To one at a time: of two streams of a connection the peer would let one go.
void Rejoin::speak() {
  if (std::ranges::any_of(attempts_, &Attempt::spoken)) {
    return;
  }
  const auto one = std::ranges::find_if(attempts_, &Attempt::open);
  if (one == attempts_.end()) {
    return;
  }
  one->spoken = true;
  one->until = context_->now() + ha::Redial::longest_dial;
  const bool shares = one->stream->session() != 0;
  static_cast<void>(
      one->stream->write(encode(call_, RejoinCall{peer_.token, peer_.process, shares})));
  if (call_ == ControlType::rejoin) {
    owner_.write_unconfirmed(*one->stream);
  }
  context_->request_stream_turns(1000);
}

void Rejoin::on_stream_open(Stream& stream) {
  if (const auto one = find(stream); one != attempts_.end()) {
    one->open = true;
    speak();
  }
}

void Rejoin::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  const auto one = find(stream);
  if (one == attempts_.end()) {
    return;
  }
  static_cast<void>(one->reader.feed(bytes));
  const auto message = one->reader.next();
  if (message) {
    on_message(one, *message);
  } else if (one->reader.broken()) {
    on_answer(one, Answer::silence, fail(Errc::remote, "who answers is no nccl-ha"));
  }
}

void Rejoin::on_message(Attempts::iterator one, const ControlReader::Message& message) {
  if (message.type == ControlType::failure) {
    if (const auto why = decode_refusal(message.payload)) {
      stop();
      owner_.on_peer_failed(*why);
      return;
    }
  }
  Way& way = ways_[one->way];
  const auto process = decode_process(message.payload);
  if (message.type == ControlType::absent && process) {
    // Also on a way that may lead elsewhere, if it is the peer's own process that says so.
    way.proven = way.proven || *process == peer_.process;
    on_answer(one, Answer::absent,
              fail(Errc::closed, "its process no longer knows this connection"));
    return;
  }
  if (message.type != ControlType::present || !process || *process != peer_.process) {
    on_answer(one, Answer::silence, fail(Errc::remote, "who answers is another process"));
    return;
  }
  way.proven = true;
  if (call_ == ControlType::probe) {
    NHA_LOG_DEBUG("control connection to {}: the peer is there", address_text(way.to));
    drop_all();
    redial_.rest(context_->now());
    arm();
    return;
  }
  auto stream = std::move(one->stream);
  auto reader = std::move(one->reader);
  const Way good = way;
  attempts_.erase(one);
  stop();
  add_proven(good);
  owner_.on_rejoined(std::move(stream), std::move(reader));
}

void Rejoin::on_stream_closed(Stream& stream, const Error& error) {
  if (const auto one = find(stream); one != attempts_.end()) {
    // A sealed one may have been there without being open for this side.
    on_answer(one,
              one->open || error.code == Errc::closed ? Answer::broken
              : error.sys == ECONNREFUSED             ? Answer::refused
                                                      : Answer::silence,
              error);
  }
}

}  // namespace nccl_ha
