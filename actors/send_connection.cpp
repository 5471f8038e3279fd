// The connecting side: finds a route, says hello, writes into the receiver's buffers.
#include <fmt/format.h>
#include <unistd.h>

#include "actors/connection.h"
#include "runtime/check.h"
#include "runtime/engine.h"
#include "runtime/fabric/datagram/address.h"
#include "runtime/host.h"
#include "runtime/log.h"

namespace nccl_ha {

SendConnection::SendConnection(fabric::Provider& provider, Engine& engine, size_t worker,
                               std::shared_ptr<SendChannel> channel, Options options)
    : Connection(provider, engine, worker),
      channel_(std::move(channel)),
      options_(std::move(options)),
      cts_(std::make_unique<std::array<CtsGroup, cts_slots>>()) {
  domain_ = channel_->domain();
  receives_ = cts_slots;
}

SendConnection::~SendConnection() = default;

void SendConnection::begin() {
  arm_deadline(options_.timeout);
  try_route();
}

void SendConnection::try_route() {
  context_->request_stream_turns(1000);
  while (route_ < options_.routes.size()) {
    const Route& route = options_.routes[route_];
    const auto* from =
        route.from.ss_family == 0 ? nullptr : reinterpret_cast<const sockaddr*>(&route.from);
    auto stream =
        context_->streams().connect_tcp(reinterpret_cast<const sockaddr*>(&route.to), from, this);
    if (stream) {
      stream_ = std::move(*stream);
      return;
    }
    route_errors_ += (route_errors_.empty() ? "" : "; ") + stream.error().message();
    ++route_;
  }
  fail_connection(
      fail(Errc::remote, fmt::format("no address of the peer can be reached: {}", route_errors_)),
      false);
}

void SendConnection::on_stream_open(Stream& stream) {
  auto local = stream.local_address();
  if (!local) {
    fail_connection(local.error());
    return;
  }
  if (auto made = make_path(reinterpret_cast<const sockaddr*>(&*local)); !made) {
    fail_connection(made.error());
    return;
  }
  send_hello();
}

void SendConnection::send_hello() {
  auto key = register_memory(cts_->data(), sizeof *cts_);
  if (!key) {
    fail_connection(key.error());
    return;
  }
  Hello hello;
  hello.nonce = options_.nonce;
  hello.cts_address = reinterpret_cast<uint64_t>(cts_->data());
  hello.cts_key = *key;
  hello.process = static_cast<uint32_t>(getpid());
  hello.host = host_name();
  hello.path = *PathAddress::from(path_.path->local_address());
  said_hello_ = true;
  send_control(encode(hello));
  context_->request_stream_turns(1000);
}

void SendConnection::on_control(const ControlReader::Message& message) {
  switch (message.type) {
    case ControlType::welcome:
      on_welcome(message.payload);
      return;
    case ControlType::close:
      on_peer_closed(message.payload);
      return;
    case ControlType::reject:
    case ControlType::failure: {
      const auto refusal = decode_refusal(message.payload);
      fail_connection(
          fail(refusal ? refusal->code : Errc::remote,
               fmt::format("the peer reports: {}", refusal ? refusal->text : "(unreadable)")),
          false);
      return;
    }
    case ControlType::hello:
      break;
  }
  fail_connection(fail(Errc::remote, "unexpected message on the control stream"));
}

void SendConnection::on_welcome(std::span<const std::byte> payload) {
  const auto welcome = decode_welcome(payload);
  if (!welcome || !path_.path || path_.path->state() != fabric::PathState::idle) {
    fail_connection(fail(Errc::remote, "malformed or repeated welcome on the control stream"));
    return;
  }
  if (welcome->version != control_version) {
    fail_connection(fail(
        Errc::remote, fmt::format("the peer speaks protocol version {}, this one {}; install the "
                                  "same nccl-ha on both",
                                  welcome->version, control_version)));
    return;
  }
  peer_host_ = welcome->host;
  peer_process_ = welcome->process;
  if (auto connected = path_.path->connect(welcome->path.view()); !connected) {
    fail_connection(connected.error());
  }
}

void SendConnection::on_path_ready() {
  disarm_deadline();
  ready_ = true;
  NHA_LOG_INFO("connected to {} over {}", peer_text(), path_.path->describe());
  context_->recorder().record(TraceEvent::actor_opened, id().index, 0, 0, context_->now());
  channel_->set_ready();
}

void SendConnection::on_deadline() {
  fail_connection(fail(Errc::timed_out,
                       fmt::format("connecting to {} took longer than {} ms "
                                   "(HA_NCCL_CONNECT_TIMEOUT_MS); {}",
                                   peer_text(), options_.timeout.count() / 1'000'000,
                                   said_hello_ ? "the peer does not answer: is its process alive?"
                                               : "no TCP connection: check routes and firewalls")));
}

void SendConnection::on_peer_gone(const Error& error) {
  if (!said_hello_ && route_ + 1 < options_.routes.size()) {
    route_errors_ += (route_errors_.empty() ? "" : "; ") + error.message();
    stream_.reset();
    reader_ = {};
    ++route_;
    try_route();
    return;
  }
  const bool refused = said_hello_ && !ready_ && error.code == Errc::closed;
  fail_connection(
      fail(Errc::remote,
           refused ? std::string("the peer closed the connection during the handshake: its listen "
                                 "is gone, or what answered is no nccl-ha")
                   : fmt::format("the peer is gone: {}", error.message())),
      false);
}

void SendConnection::on_peer_closed(std::span<const std::byte> payload) {
  const auto notice = decode_close(payload);
  // The receiver closed after its last group.  Its acknowledgements may have been lost with it, so
  // what it says it received counts as acknowledged; anything later will never arrive.
  for (uint16_t i = 0; notice && i < sends_max; ++i) {
    SendRequest& request = channel_->slot(i);
    if (request.state.load(std::memory_order_acquire) == RequestState::pending &&
        request.group < notice->groups_completed) {
      request.state.store(RequestState::done, std::memory_order_release);
    }
  }
  failed_ = true;
  if (path_.path) {
    path_.path->fail(fail(Errc::closed, "the peer closed the connection"));
  }
  channel_->set_failed(fail(Errc::remote, "the peer closed the connection"));
  if (stream_) {
    stream_->set_owner(nullptr);
    stream_->shutdown_then_close();
    stream_.reset();
  }
}

void SendConnection::on_doorbell() {
  uint16_t index = 0;
  while (channel_->next_submitted(&index)) {
    const SendRequest& request = channel_->slot(index);
    fabric::WritePost post;
    post.id = index;
    post.gather_count = request.size == 0 ? 0 : 1;
    post.gathers[0] = {request.data, request.size, request.key};
    post.remote_address = request.remote_address;
    post.remote_key = request.remote_key;
    post.has_immediate = true;
    post.immediate =
        Immediate{ImmediateKind::data, static_cast<uint32_t>(request.group), request.position}
            .pack();
    post.exact = request.exact;
    const Errc posted = path_.path->post_write(post);
    if (posted != Errc::ok) {
      if (posted != Errc::closed) {  // closed: the path reports by itself
        fail_connection(fail(Errc::internal, "a path refused a write it has room for"));
      }
      return;
    }
  }
}

void SendConnection::on_completion(const fabric::Completion& completion) {
  if (failed_ || finished_ || completion.status != fabric::CompletionStatus::ok) {
    return;  // the path's state event carries the reason
  }
  if (completion.kind == fabric::CompletionKind::write) {
    channel_->slot(static_cast<uint16_t>(completion.id))
        .state.store(RequestState::done, std::memory_order_release);
    return;
  }
  on_clear_to_send(completion);
}

void SendConnection::on_clear_to_send(const fabric::Completion& completion) {
  const uint64_t number = channel_->published_groups();
  const Immediate immediate = Immediate::unpack(completion.immediate);
  const CtsGroup& group = (*cts_)[number % cts_slots];
  const uint32_t count = group.entries[0].count;
  bool good = completion.has_immediate && Immediate::plain(completion.immediate) &&
              immediate.kind == ImmediateKind::clear_to_send &&
              Immediate::same_group(immediate.group, number) && count >= 1 && count <= group_max &&
              completion.bytes == count * sizeof(CtsEntry);
  for (uint32_t i = 0; good && i < count; ++i) {
    const CtsEntry& entry = group.entries[i];
    good = entry.group == number && entry.position == i && entry.count == count;
  }
  if (!good || !channel_->publish(group)) {
    fail_connection(fail(Errc::remote, "the peer sent a malformed clear-to-send"));
    return;
  }
  context_->recorder().record(TraceEvent::cts_received, id().index, number, count, context_->now());
  static_cast<void>(post_credit());
}

void SendConnection::on_close() {
  if (!failed_) {
    send_control(encode(CloseNotice{}));
  }
  finish();
}

}  // namespace nccl_ha
