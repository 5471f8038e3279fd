// Birth, connectivity check and death of a datagram path.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/fabric/datagram/datagram_path.h"

namespace nccl_ha::fabric {
namespace {

/// What a path tells its peer of this end.
WireAddress own_address(const PathEnvironment& env, uint32_t id, size_t overhead) {
  const DatagramOptions& options = env.options;
  WireAddress address;
  address.command = env.stage.io().local(Channel::command);
  address.data = env.stage.io().local(Channel::data);
  address.path = id;
  address.token = env.secrets->draw();
  address.mtu = options.mtu != 0 ? std::min(options.mtu, env.interface_mtu) : env.interface_mtu;
  address.socket_bytes = static_cast<uint32_t>(
      std::clamp<size_t>(env.stage.io().receive_buffer_bytes(), 4096, UINT32_MAX));
  address.window = options.window;
  address.tiny_bytes =
      std::min(options.tiny_bytes, static_cast<uint32_t>(env.stage.command_bytes() - overhead));
  return address;
}

}  // namespace

DatagramPath::DatagramPath(PathEnvironment& environment, const PathOptions& options,
                           PathOwner* owner, uint32_t id)
    : env_(environment),
      owner_(owner),
      options_(options),
      id_(id),
      ends_(own_address(environment, id, overhead())),
      counters_({environment.counters.file, options.counted_under},
                "datagrams " + text(ends_.local().command)),
      requests_(options.writes_max),
      outgoing_(environment.hotel, environment.activity),
      network_(environment.options.rtt, environment.options.target_delay,
               environment.options.window),
      incoming_(environment.options.window),
      receives_(options.receives_max),
      acks_(environment, *this, statistics_, options.ack_leisure) {
  timer_.bind([](void* self) { static_cast<DatagramPath*>(self)->on_timer(); }, this);
  env_.enter(*this);
}

DatagramPath::~DatagramPath() {
  env_.flush_all();  // staged frames point into the path
  const auto wrong = deep_checks() ? self_check() : std::nullopt;
  NHA_ASSERT(!wrong, wrong->c_str());
  outgoing_.close(env_.now);
  env_.timers->cancel(timer_);
  env_.leave(*this);
}

Result<void> DatagramPath::connect(std::span<const std::byte> peer_address) {
  if (state_ != PathState::idle) {
    return nccl_ha::fail(Errc::invalid_usage, "datagram path: connect() called twice");
  }
  if (!ends_.set_peer(peer_address)) {
    return nccl_ha::fail(Errc::invalid_argument,
                         "datagram path: the peer's address block is malformed or of another "
                         "address family");
  }
  if (options_.shared && options_.shared->encrypts) {
    env_.stage.prepare_encryption();
  }
  if (options_.shared) {
    seal_ = std::make_unique<FrameSeal>(*options_.shared, ends_.local(), ends_.peer());
  }
  ends_.leave_by(env_.stage.io().egress(ends_.peer().data));
  const WireAddress& local = ends_.local();
  const WireAddress& peer = ends_.peer();
  const uint32_t window = std::min(local.window, peer.window);
  // The socket's buffer holds the kernel's bookkeeping too (it counts whole pages), and other paths
  // of the port share it: half of it is what one path may fill.
  outgoing_.open(this, window, peer.socket_bytes / 2);
  network_.set_window_max(window);
  sizes_.set_tiny(std::min(local.tiny_bytes, peer.tiny_bytes));
  state_ = PathState::connecting;
  env_.refresh();
  check_.begin(std::min(local.mtu, peer.mtu), peer.data, env_.moment(), connect_limit());
  const GuardScope guard(env_.guard);
  check_.answer_kept([this](const FrameHeader& ping) { on_ping(ping); });
  send_check();
  env_.flush_all();
  return {};
}

Duration DatagramPath::connect_limit() const {
  return options_.connect_limit > Duration(0) ? options_.connect_limit
                                              : env_.options.connect_timeout;
}

void DatagramPath::send_check() {
  env_.activity.mark(env_.now);
  const PathCheck::Round round = check_.next_round();
  if (check_.through()) {
    finish_check();
    return;
  }
  FrameHeader header = ends_.header(FrameType::ping);
  header.sent_us = env_.now_us();
  if (round.small) {
    header.immediate = round.attempt;
    header.fragment_length = header_bytes;
    send_command(header);
  }
  if (round.full_bytes != 0) {
    const size_t padding = round.full_bytes - overhead();
    header.payload_length = static_cast<uint16_t>(padding);
    header.fragment_length = round.full_bytes;
    header.immediate = round.candidate;
    static_cast<void>(env_.stage.probe(ends_.peer().data, header, seal_.get()));
  }
  env_.timers->arm(timer_, env_.now + round.wait);
}

void DatagramPath::on_ping(const FrameHeader& header) {
  env_.activity.mark(env_.now);
  if (!ends_.peer_known()) {
    check_.keep(header);
    return;
  }
  FrameHeader answer = ends_.header(FrameType::pong);
  answer.sent_us = env_.now_us();
  answer.flags = flag_echo;
  answer.echo_us = header.sent_us;
  answer.fragment_length =
      header.payload_length == 0 ? header_bytes : header.payload_length + overhead();
  answer.immediate = header.immediate;
  send_command(answer);
}

void DatagramPath::on_pong(const FrameHeader& header) {
  if (state_ != PathState::connecting) {
    return;
  }
  constexpr uint32_t plausible_us = 10'000'000;
  const uint32_t elapsed = env_.now_us() - header.echo_us;
  if (elapsed < plausible_us) {
    network_.on_sample(std::chrono::microseconds(elapsed));
  }
  if (check_.on_pong(header, env_.moment())) {
    finish_check();
  }
}

void DatagramPath::finish_check() {
  sizes_.set_mtu(check_.mtu(), check_.datagram_bytes() - overhead());
  if (check_.mtu() < check_.mtu_max()) {
    NHA_LOG_WARN(
        "path {}: datagrams of {} bytes get lost on the way although both interfaces allow them; "
        "using {}. Check the MTU of the switches between, or set HA_NCCL_DGRAM_MTU={}",
        describe(), check_.mtu_max(), check_.mtu(), check_.mtu());
  }
  ends_.tell_other_nic(options_.nic);
  env_.timers->cancel(timer_);
  state_ = PathState::ready;
  counters_.rename(options_.counted_under, describe());
  silence_.end(env_.now);
  env_.queue_state(*this);
  if (sendable()) {
    make_ready();
  }
}

void DatagramPath::on_timer() {
  env_.refresh();
  if (state_ == PathState::ready) {
    const GuardScope guard(env_.guard);
    send_tail_probe();
    return;
  }
  NHA_DASSERT(state_ == PathState::connecting, "a path that failed waits for nothing");
  if (!check_.expired(env_.moment())) {
    const GuardScope guard(env_.guard);
    send_check();
    env_.flush_all();
    return;
  }
  break_path(CompletionStatus::retry_exceeded,
             nccl_ha::fail(Errc::remote, fmt::format("connectivity check failed after {} ms: {} "
                                                     "({})",
                                                     connect_limit().count() / 1'000'000,
                                                     check_.diagnosis(), describe())));
}

void DatagramPath::fail(const Error& why) { break_path(CompletionStatus::flushed, why); }

void DatagramPath::break_path(CompletionStatus first, Error why) {
  if (state_ == PathState::error) {
    return;
  }
  state_ = PathState::error;
  error_ = std::move(why);
  cause_ = first;
  env_.timers->cancel(timer_);
  outgoing_.close(env_.now);
  flush_requests(first);
  acks_.settle();
  env_.record(TraceEvent::path_state, id_, static_cast<uint64_t>(state_), 0);
  env_.queue_state(*this);
}

void DatagramPath::flush_requests(CompletionStatus first) {
  CompletionStatus status = first;
  requests_.flush([&](const WorkRequest& request) {
    Completion completion;
    completion.id = request.id;
    completion.path = this;
    completion.status = status;
    env_.complete(completion);
    status = CompletionStatus::flushed;
  });
  for (; !receives_.empty(); receives_.pop()) {
    Completion completion;
    completion.path = this;
    completion.kind = CompletionKind::receive_immediate;
    completion.status = CompletionStatus::flushed;
    env_.complete(completion);
  }
}

void DatagramPath::failure_domains(FailureDomains& domains) const {
  ends_.failure_domains(options_.nic, domains);
}

std::string DatagramPath::describe() const {
  return ends_.peer_known() ? fmt::format("{} mtu {}", ends_.describe(), sizes_.mtu())
                            : ends_.describe();
}

std::optional<std::string> DatagramPath::self_check() const {
  if (!requests_.sound() || !receives_.sound()) {
    return "more is posted than the path takes";
  }
  for (const auto& wrong : {outgoing_.self_check(), incoming_.self_check()}) {
    if (wrong) {
      return wrong;
    }
  }
  if (timer_.armed() && state_ != PathState::connecting && state_ != PathState::ready) {
    return "a timer is armed for nothing";
  }
  if (state_ == PathState::error && acks_.owes()) {
    return "a broken path owes an acknowledgement";
  }
  const uint64_t open = outgoing_.count_open();
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
