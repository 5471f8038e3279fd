#include "actors/rejoin.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
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
  return ip->family == ip_other->family && ip->bytes == ip_other->bytes;
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

void Rejoin::add_proven(const Way& way) {
  std::erase_if(ways_, [&](const Way& one) {
    return same_host(one.to, way.to) && same_host(one.from, way.from);
  });
  ways_.insert(ways_.begin(), way);
  ways_.front().proven = true;
  ways_.resize(std::min(ways_.size(), ways_max));
  redial_.reorder(ways_.size());
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
  // The way that was proven last comes first.
  const auto proven =
      std::find_if(ways_.begin(), ways_.end(), [](const Way& w) { return w.proven; });
  redial_.begin(ways_.size(),
                proven == ways_.end() ? 0 : static_cast<size_t>(proven - ways_.begin()));
  // Later even if it is to be now: the stream that was lost may still be speaking.
  context_->timers().arm(timer_, context_->now() + in);
  context_->request_stream_turns(1000);
}

void Rejoin::stop() {
  running_ = false;
  if (context_ != nullptr) {
    context_->timers().cancel(timer_);
  }
  drop_attempt();
}

void Rejoin::write(std::span<const std::byte> frame) {
  if (open_ && call_ == ControlType::rejoin) {
    static_cast<void>(stream_->write(frame));
  }
}

void Rejoin::drop_attempt() {
  if (std::exchange(open_, false)) {
    stream_->set_owner(nullptr);
    // The peer may have taken it already.
    static_cast<void>(stream_->write(encode_retire()));
    stream_->shutdown_then_close();
  }
  stream_.reset();
  reader_ = {};
}

void Rejoin::on_timer() {
  if (stream_) {
    on_answer(Answer::silence, fail(Errc::timed_out, "no answer"));
  } else {
    attempt();
  }
}

void Rejoin::attempt() {
  owner_.on_attempt();
  if (!running_) {
    return;
  }
  redial_.on_dial();
  sockaddr_storage to = way().to;
  if (to.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&to)->sin6_port = htons(peer_.port);
  } else {
    reinterpret_cast<sockaddr_in*>(&to)->sin_port = htons(peer_.port);
  }
  auto made = context_->peer_streams().connect_tcp(reinterpret_cast<const sockaddr*>(&to),
                                                   any_or(way().from), this);
  if (!made) {
    on_answer(Answer::silence, made.error());
    return;
  }
  stream_ = std::move(*made);
  context_->request_stream_turns(1000);
  context_->timers().arm(timer_, context_->now() + redial_.limit());
}

void Rejoin::on_answer(Answer answer, const Error& what) {
  NHA_LOG_DEBUG("control connection to {}, attempt {}: {}", address_text(way().to), redial_.tried(),
                what.message());
  drop_attempt();
  context_->timers().cancel(timer_);
  const auto next = redial_.on_answer(answer, way().proven, owner_.life(), context_->now());
  if (redial_.broken() != nullptr) {
    stop();
    owner_.on_broken(redial_.broken());
    return;
  }
  if (next.dead) {
    running_ = false;
    owner_.on_peer_dead(fail(Errc::remote, fmt::format("{}; the control connection was lost: {}",
                                                       what.message(), lost_.message())));
    return;
  }
  context_->timers().arm(timer_, context_->now() + next.in);
}

void Rejoin::on_stream_open(Stream& stream) {
  open_ = true;
  static_cast<void>(stream.write(encode(call_, RejoinCall{peer_.token, peer_.process})));
  if (call_ == ControlType::rejoin) {
    owner_.write_unconfirmed(stream);
  }
  context_->request_stream_turns(1000);
}

void Rejoin::on_stream_data(Stream& stream, std::span<const std::byte> bytes) {
  if (&stream != stream_.get()) {
    return;
  }
  static_cast<void>(reader_.feed(bytes));
  const auto message = reader_.next();
  if (message) {
    on_message(*message);
  } else if (reader_.broken()) {
    on_answer(Answer::silence, fail(Errc::remote, "who answers is no nccl-ha"));
  }
}

void Rejoin::on_message(const ControlReader::Message& message) {
  if (message.type == ControlType::failure) {
    if (const auto why = decode_refusal(message.payload)) {
      stop();
      owner_.on_peer_failed(*why);
      return;
    }
  }
  const auto process = decode_process(message.payload);
  if (message.type == ControlType::absent && process) {
    // Also on a way that may lead elsewhere, if it is the peer's own process that says so.
    way().proven = way().proven || *process == peer_.process;
    on_answer(Answer::absent, fail(Errc::closed, "its process no longer knows this connection"));
    return;
  }
  if (message.type != ControlType::present || !process || *process != peer_.process) {
    on_answer(Answer::silence, fail(Errc::remote, "who answers is another process"));
    return;
  }
  way().proven = true;
  if (call_ == ControlType::probe) {
    on_answer(Answer::present, fail(Errc::ok, "the peer is there"));
    return;
  }
  add_proven(Way(way()));
  auto stream = std::move(stream_);
  auto reader = std::move(reader_);
  open_ = false;
  stop();
  owner_.on_rejoined(std::move(stream), std::move(reader));
}

void Rejoin::on_stream_closed(Stream& stream, const Error& error) {
  if (&stream == stream_.get()) {
    // A sealed one may have been there without being open for this side.
    on_answer(open_ || error.code == Errc::closed ? Answer::broken
              : error.sys == ECONNREFUSED         ? Answer::refused
                                                  : Answer::silence,
              error);
  }
}

}  // namespace nccl_ha
