// Birth, connectivity check and death of a datagram path.
//
// The check sends a small and a full-size datagram (usnic's connectivity check): which of them come
// back tells a firewall or a missing route from a hop with a smaller MTU.  It doubles as MTU
// discovery after RFC 8899: sizes are tried from the largest down until one is answered.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/log.h"
#include "runtime/fabric/datagram/datagram_path.h"

namespace nccl_ha::fabric {
namespace {

constexpr Duration check_first = std::chrono::milliseconds(5);
constexpr Duration check_longest = std::chrono::milliseconds(100);
constexpr uint32_t candidate_tries_max = 4;
constexpr uint32_t udp_payload_max = 65507;
// Common sizes between the interface's own and the smallest that IPv6 guarantees (RFC 8200).
constexpr std::array<uint32_t, 5> mtu_ladder{9000, 4200, 1500, 1400, 1280};

/// What a datagram holds of an MTU, which counts the IP header of a UDP datagram.
uint32_t datagram_payload(uint32_t mtu, const SocketAddress& to) {
  if (to.is_ud()) {
    return mtu;
  }
  const uint32_t ip = to.storage.ss_family == AF_INET6 ? 40 : 20;
  return std::min(mtu - ip - 8, udp_payload_max);
}

/// The address of the NIC alone.
std::string nic_text(const SocketAddress& address) {
  if (address.is_ud()) {
    const UdAddress& pair = address.ud();
    if (pair.lid != 0) {
      return fmt::format("LID {}", pair.lid);
    }
    sockaddr_in6 gid{};
    gid.sin6_family = AF_INET6;
    std::memcpy(&gid.sin6_addr, pair.gid.data(), pair.gid.size());
    return IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&gid))->text();
  }
  const auto ip = IpAddress::from_sockaddr(address.get());
  return ip ? ip->text() : std::string("?");
}

}  // namespace

DatagramPath::DatagramPath(PathEnvironment& environment, const PathOptions& options,
                           PathOwner* owner, uint32_t id)
    : env_(environment),
      owner_(owner),
      options_(options),
      id_(id),
      requests_(std::bit_ceil(options.writes_max)),
      request_mask_(static_cast<uint32_t>(requests_.size()) - 1),
      rtt_(environment.options.rtt),
      congestion_({environment.options.target_delay, 10, 1,
                   static_cast<double>(environment.options.window)}),
      window_(environment.options.window),
      receives_(std::bit_ceil(std::max(options.receives_max, 1U))),
      receive_mask_(static_cast<uint32_t>(receives_.size()) - 1),
      counters_({environment.counters.file, options.counted_under},
                "datagrams " + text(environment.stage.io().local(Channel::command))) {
  local_.command = env_.stage.io().local(Channel::command);
  local_.data = env_.stage.io().local(Channel::data);
  local_.path = id;
  local_.token = env_.random->next();
  local_.mtu =
      env_.options.mtu != 0 ? std::min(env_.options.mtu, env_.interface_mtu) : env_.interface_mtu;
  local_.socket_bytes = static_cast<uint32_t>(
      std::clamp<size_t>(env_.stage.io().receive_buffer_bytes(), 4096, UINT32_MAX));
  local_.window = env_.options.window;
  local_.tiny_bytes = std::min(env_.options.tiny_bytes,
                               static_cast<uint32_t>(env_.stage.command_bytes() - header_bytes));
  encode(local_, local_bytes_);
  timer_.bind([](void* self) { static_cast<DatagramPath*>(self)->on_timer(); }, this);
}

DatagramPath::~DatagramPath() {
  env_.on_landing(in_flight_bytes_);
  for (Segment& segment : segments_) {
    env_.hotel.check_out(segment.room);
  }
  env_.timers->cancel(timer_);
  env_.table.remove(*this);
}

Result<void> DatagramPath::connect(std::span<const std::byte> peer_address) {
  if (state_ != PathState::idle) {
    return nccl_ha::fail(Errc::invalid_usage, "datagram path: connect() called twice");
  }
  const auto peer = decode_address(peer_address);
  if (!peer || peer->command.storage.ss_family != local_.command.storage.ss_family) {
    return nccl_ha::fail(Errc::invalid_argument,
                         "datagram path: the peer's address block is malformed or of another "
                         "address family");
  }
  peer_ = *peer;
  if (peer_.command.storage.ss_family == AF_INET6) {
    const uint32_t scope =
        reinterpret_cast<const sockaddr_in6*>(&local_.command.storage)->sin6_scope_id;
    reinterpret_cast<sockaddr_in6*>(&peer_.command.storage)->sin6_scope_id = scope;
    reinterpret_cast<sockaddr_in6*>(&peer_.data.storage)->sin6_scope_id = scope;
  }
  stale_peer_ = false;
  const uint32_t window = std::min(local_.window, peer_.window);
  segments_ = std::vector<Segment>(window);
  for (Segment& segment : segments_) {
    segment.path = this;
  }
  segment_mask_ = window - 1;
  limit_ = window;
  congestion_ = CongestionControl({env_.options.target_delay, 10, 1, static_cast<double>(window)});
  tiny_max_ = std::min(local_.tiny_bytes, peer_.tiny_bytes);
  // The socket's buffer holds the kernel's bookkeeping too (it counts whole pages), and other paths
  // of the port share it: half of it is what one path may fill.
  bytes_max_ = peer_.socket_bytes / 2;
  const uint32_t first = std::min(local_.mtu, peer_.mtu);
  candidates_.push_back(first);
  for (const uint32_t mtu : mtu_ladder) {
    if (mtu < first) {
      candidates_.push_back(mtu);
    }
  }
  state_ = PathState::connecting;
  timer_use_ = TimerUse::check;
  env_.refresh();
  check_deadline_ = env_.now + connect_limit();
  const GuardScope guard(env_.guard);
  for (auto& early : early_pings_) {
    if (early) {
      on_ping(*early);
      early.reset();
    }
  }
  send_check();
  env_.flush_all();
  return {};
}

void DatagramPath::send_check() {
  env_.mark_active();
  FrameHeader header;
  header.type = FrameType::ping;
  header.path = peer_.path;
  header.token = peer_.token;
  header.sent_us = env_.now_us();
  header.immediate = attempt_;
  if (!small_answered_) {
    header.fragment_length = header_bytes;
    env_.stage.command(peer_.command, header, {});
  }
  if (!full_answered_) {
    if (candidate_tries_ == candidate_tries_max && candidate_ + 1 < candidates_.size()) {
      ++candidate_;
      candidate_tries_ = 0;
    }
    // Where nothing gets through, as during an outage, size is not to blame.
    candidate_tries_ += small_answered_ ? 1 : 0;
    const uint32_t size = datagram_payload(candidates_[candidate_], peer_.data);
    header.payload_length = static_cast<uint16_t>(size - header_bytes);
    header.fragment_length = size;
    header.immediate = static_cast<uint32_t>(candidate_);
    static_cast<void>(env_.stage.probe(peer_.data, header, size - header_bytes));
  }
  const Duration wait =
      std::min(check_longest,
               check_first * (1U << std::min(small_answered_ ? candidate_tries_ : attempt_, 6U)));
  ++attempt_;
  env_.timers->arm(timer_, env_.now + wait);
}

void DatagramPath::on_ping(const FrameHeader& header) {
  env_.mark_active();
  if (stale_peer_) {
    // The peer knows us before we know the peer: answered as soon as connect() tells its address.
    early_pings_[header.payload_length == 0 ? 0 : 1] = header;
    return;
  }
  FrameHeader answer;
  answer.type = FrameType::pong;
  answer.path = peer_.path;
  answer.token = peer_.token;
  answer.sent_us = env_.now_us();
  answer.flags = flag_echo;
  answer.echo_us = header.sent_us;
  answer.fragment_length = header.payload_length + static_cast<uint32_t>(header_bytes);
  answer.immediate = header.immediate;
  env_.stage.command(peer_.command, answer, {});
}

void DatagramPath::on_pong(const FrameHeader& header) {
  if (state_ != PathState::connecting) {
    return;
  }
  const uint32_t elapsed = env_.now_us() - header.echo_us;
  if (elapsed < 10'000'000U) {
    rtt_.sample(std::chrono::microseconds(elapsed));
  }
  if (header.fragment_length == header_bytes) {
    small_answered_ = true;
  } else if (!full_answered_ && header.immediate < candidates_.size() &&
             header.fragment_length ==
                 datagram_payload(candidates_[header.immediate], peer_.data)) {
    full_answered_ = true;
    candidate_ = header.immediate;
  }
  if (small_answered_ && full_answered_) {
    finish_check(candidates_[candidate_]);
  }
}

void DatagramPath::finish_check(uint32_t mtu) {
  mtu_ = mtu;
  if (mtu < candidates_.front()) {
    NHA_LOG_WARN(
        "path {}: datagrams of {} bytes get lost on the way although both interfaces allow them; "
        "using {}. Check the MTU of the switches between, or set HA_NCCL_DGRAM_MTU={}",
        describe(), candidates_.front(), mtu, mtu);
  }
  const uint32_t payload = datagram_payload(mtu, peer_.data) - static_cast<uint32_t>(header_bytes);
  segment_payload_max_ = payload / line_bytes * line_bytes;
  env_.timers->cancel(timer_);
  timer_use_ = TimerUse::none;
  state_ = PathState::ready;
  counters_.rename(options_.counted_under, describe());
  progress_ = env_.now;
  env_.queue_state(*this);
  if (sendable()) {
    make_ready();
  }
}

void DatagramPath::on_timer() {
  env_.refresh();
  if (timer_use_ == TimerUse::tail_probe) {
    const GuardScope guard(env_.guard);
    send_tail_probe();
    return;
  }
  if (timer_use_ != TimerUse::check || state_ != PathState::connecting) {
    return;
  }
  if (env_.now < check_deadline_) {
    const GuardScope guard(env_.guard);
    send_check();
    env_.flush_all();
    return;
  }
  const char* diagnosis =
      small_answered_
          ? "small datagrams get through, full-size ones do not, whatever their size: check the "
            "MTU of interfaces and switches, and that fragments are not filtered"
      : full_answered_
          ? "large datagrams get through, small ones do not: check packet filters on the peer's "
            "command port"
          : "no datagram gets through, although the TCP control connection works: check that UDP "
            "is not filtered between the hosts and that the route back leads over the same network";
  break_path(
      CompletionStatus::retry_exceeded,
      nccl_ha::fail(Errc::remote,
                    fmt::format("connectivity check failed after {} ms: {} ({})",
                                connect_limit().count() / 1'000'000, diagnosis, describe())));
}

void DatagramPath::fail(const Error& why) { break_path(CompletionStatus::flushed, why); }

void DatagramPath::break_path(CompletionStatus first, const Error& why) {
  if (state_ == PathState::error) {
    return;
  }
  state_ = PathState::error;
  error_ = why;
  cause_ = first;
  env_.timers->cancel(timer_);
  timer_use_ = TimerUse::none;
  for (Segment& segment : segments_) {
    env_.hotel.check_out(segment.room);
    segment.state = Segment::State::free;
  }
  in_flight_ = 0;
  env_.on_landing(std::exchange(in_flight_bytes_, 0));
  CompletionStatus status = first;
  for (; request_head_ != request_tail_; ++request_head_) {
    const WorkRequest& request = requests_[request_head_ & request_mask_];
    Completion completion;
    completion.id = request.id;
    completion.path = this;
    completion.kind = request.kind;
    completion.status = status;
    env_.complete(completion);
    status = CompletionStatus::flushed;
  }
  request_next_ = request_tail_;
  for (; receive_head_ != receive_tail_; ++receive_head_) {
    Completion completion;
    completion.id = receives_[receive_head_ & receive_mask_].id;
    completion.path = this;
    completion.kind = CompletionKind::receive;
    completion.status = first == CompletionStatus::length_error ? first : CompletionStatus::flushed;
    env_.complete(completion);
  }
  env_.acks.remove(links_);
  links_.ack_urgent = false;
  if (env_.recorder != nullptr) {
    env_.recorder->record(TraceEvent::path_state, id_, static_cast<uint64_t>(state_), 0, env_.now);
  }
  env_.queue_state(*this);
}

void DatagramPath::failure_domains(FailureDomains& domains) const {
  using Kind = FailureDomain::Kind;
  domains.push_back({Kind::local_nic, options_.nic});
  if (!stale_peer_) {
    domains.push_back({Kind::remote_nic, nic_text(peer_.data)});
  }
}

std::string DatagramPath::describe() const {
  if (stale_peer_) {
    return fmt::format("datagram {} to unknown", text(local_.command));
  }
  return fmt::format("datagram {} to {} mtu {}", text(local_.command), text(peer_.command), mtu_);
}

std::optional<std::string> DatagramPath::self_check() const {
  uint32_t flying = 0;
  uint64_t bytes = 0;
  uint64_t open = 0;
  for (const Segment& segment : segments_) {
    const bool in_flight = segment.state == Segment::State::in_flight;
    flying += in_flight ? 1 : 0;
    bytes += in_flight ? segment.length : 0;
    open += in_flight || segment.state == Segment::State::resend ? 1 : 0;
    if (in_flight != segment.room.occupied()) {
      return fmt::format("segment {}: in flight and hotel disagree", segment.sequence);
    }
  }
  if (flying != in_flight_ || bytes != in_flight_bytes_) {
    return fmt::format("{} segments of {} bytes in flight, counted {} of {}", flying, bytes,
                       in_flight_, in_flight_bytes_);
  }
  if (state_ != PathState::error &&
      statistics_.segments_sent != statistics_.segments_acked + open) {
    return fmt::format("{} segments sent, {} acknowledged, {} open",
                       statistics_.segments_sent.get(), statistics_.segments_acked.get(), open);
  }
  if (statistics_.bytes_received != statistics_.bytes_direct + statistics_.bytes_copied) {
    return "bytes received are not the sum of direct and copied ones";
  }
  return std::nullopt;
}

}  // namespace nccl_ha::fabric
