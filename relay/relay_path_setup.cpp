// How a relayed path comes into being.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ha/error_class.h"
#include "relay/relay_path.h"
#include "relay/routes.h"

namespace nccl_ha::relay {

/// How often it is looked for a way while there is none: a host may be heard again.
constexpr Duration redial_apart = std::chrono::milliseconds(100);

using fabric::CompletionStatus;
using fabric::PathState;

Result<std::unique_ptr<RelayPath>> RelayPath::make(Context& context, HopSource& hops,
                                                   NextHops& next, const Options& own,
                                                   const fabric::PathOptions& options,
                                                   fabric::PathOwner* owner) {
  std::unique_ptr<RelayPath> made(new RelayPath(context, hops, next, own, options, owner));
  for (const fabric::Hop& hop : options.route) {
    const auto node = node_of_hop(hop);
    if (!node) {
      return node.error();
    }
    made->relays_.push_back(*node);
  }
  if (made->relays_.size() > own.relays_max) {
    return nccl_ha::fail(Errc::invalid_argument,
                         fmt::format("a relayed path over {} hosts, at most {} are possible",
                                     made->relays_.size(), own.relays_max));
  }
  made->options_.route = {};  // read, and not the caller's to keep
  // Where the way is not known yet, it leads through one host at least.
  made->traits_ = own.traits;
  made->traits_.hops = static_cast<uint8_t>(std::max<size_t>(made->relays_.size(), 1));
  auto endpoints = PathEndpoints::of(context, own.keys);
  if (!endpoints) {
    return endpoints.error();
  }
  made->endpoints_ = std::move(*endpoints);
  made->local_ = {own.self, made->endpoints_->port(), made->endpoints_->enter(made.get()),
                  own.keys.own()};
  made->address_ = encode(made->local_);
  return made;
}

RelayPath::RelayPath(Context& context, HopSource& hops, NextHops& next, const Options& own,
                     const fabric::PathOptions& options, fabric::PathOwner* owner)
    : context_(context),
      hops_(hops),
      next_(next),
      own_(own),
      options_(options),
      owner_(owner),
      work_(hops, options),
      line_(hops) {
  deadline_.bind([](void* self) { static_cast<RelayPath*>(self)->on_deadline(); }, this);
  soon_.bind([](void* self) { static_cast<RelayPath*>(self)->on_soon(); }, this);
  told_.later.bind([](void* self) { static_cast<RelayPath*>(self)->ack(); }, this);
  redial_.bind([](void* self) { static_cast<RelayPath*>(self)->dial_again(); }, this);
}

RelayPath::~RelayPath() {
  context_.timers().cancel(deadline_);
  context_.timers().cancel(soon_);
  context_.timers().cancel(redial_);
  context_.timers().cancel(told_.later);
  if (endpoints_) {
    endpoints_->leave(local_.token);
  }
  if (stream_) {
    stream_->close();
  }
  line_.reset();
}

Result<void> RelayPath::connect(std::span<const std::byte> peer_address) {
  if (state_ != PathState::idle) {
    return nccl_ha::fail(Errc::invalid_usage, "relayed path: connect() called twice");
  }
  auto peer = decode_endpoint(peer_address);
  if (!peer) {
    return peer.error();
  }
  peer_ = *peer;
  if (options_.active) {
    named_ = !relays_.empty();
    auto dialled = dial();
    if (!dialled && named_) {
      return dialled;
    }
    if (!dialled) {
      look_again(dialled.error());
    }
  }
  state_ = PathState::connecting;
  const Duration limit =
      options_.connect_limit > Duration(0)
          ? options_.connect_limit
          : Duration(std::chrono::milliseconds(context_.config().connect_timeout_ms));
  setup_.limit.begin(context_.moment(), limit);
  context_.timers().arm(deadline_, context_.now() + limit);
  if (request_) {
    soon();  // an answer to it is no part of this call
  }
  return {};
}

Result<void> RelayPath::dial() {
  if (relays_.empty()) {
    relays_ = next_.relays_to(peer_.node, {options_.domain, own_.way});
  }
  if (relays_.empty()) {
    return nccl_ha::fail(Errc::remote, fmt::format("no way over other hosts leads to {}",
                                                   next_.name_of(peer_.node)));
  }
  std::vector<NodeId> nodes{own_.self};
  nodes.insert(nodes.end(), relays_.begin(), relays_.end());
  nodes.push_back(peer_.node);
  if (auto good = check_route(nodes, 0, own_.self, own_.relays_max); !good) {
    return good;
  }
  const auto next = next_.find(relays_.front());
  if (!next) {
    return nccl_ha::fail(Errc::remote, fmt::format("no cable leads to relay {} any more",
                                                   next_.name_of(relays_.front())));
  }
  stream_.reset(new SessionStream(context_, this, own_.keys, encrypts()));
  return stream_->dial(*next);
}

/// Nobody else knows of it yet, so that another way may be taken.
void RelayPath::dial_again() {
  if (state_ != PathState::connecting || stream_) {
    return;
  }
  relays_.clear();
  setup_.choice = 0;
  if (const auto dialled = dial(); !dialled) {
    look_again(dialled.error());
  }
}

void RelayPath::look_again(const Error& why) {
  ending_.error = why;
  refuse_way();
  line_.reset();
  stream_.reset();
  context_.timers().arm(redial_, context_.now() + redial_apart);
}

Result<std::vector<HopPlace>> RelayPath::places() {
  const auto local = stream_->local_address();
  if (!local) {
    return local.error();
  }
  auto found = hops_.places(reinterpret_cast<const sockaddr*>(&*local));
  if (insists()) {
    std::erase_if(found, [](const HopPlace& place) { return !place.reaches_gpu; });
  }
  if (found.empty()) {
    return nccl_ha::fail(Errc::remote,
                         "no RDMA device, which memory of a GPU needs, begins at the cable there");
  }
  return found;
}

Result<void> RelayPath::make_hop(const HopPlace& place, uint16_t slots, uint32_t chunk_bytes,
                                 uint16_t theirs_most) {
  const auto local = stream_->local_address();
  if (!local) {
    return local.error();
  }
  fabric::PathOptions options = options_;
  options.memory.clear();  // hops move frames, and the processor the rest
  line_.allocate(slots, chunk_bytes, theirs_most);
  auto entered = line_.enter(place, options);
  if (entered) {
    entered = work_.sender.enter(place, chunk_bytes, options);
  }
  if (!entered) {
    return entered;
  }
  options.shared = stream_->shared();  // with the neighbour, not with the peer
  if (encrypts() && !options.shared) {
    return nccl_ha::fail(Errc::remote,
                         "HA_NCCL_ENCRYPT=1, but the host between has no key: give relay nodes "
                         "HA_NCCL_MESH_KEY_FILE");
  }
  line_.size(options, MessageSender::headers);
  options.connect_limit = hop_limit(place, options_.connect_limit);
  auto hop =
      hops_.make_hop(context_, place, reinterpret_cast<const sockaddr*>(&*local), options, this);
  if (!hop) {
    return hop.error();
  }
  line_.take(std::move(*hop), place);
  return {};
}

/// The best that is left, where one that cannot be made leaves the next one.
Result<void> RelayPath::make_first_hop() {
  const auto known = places();
  if (!known) {
    return known.error();
  }
  return make_best_hop(hops_, *known, relays_.front(), context_.now(), setup_.choice, insists(),
                       [this](const HopPlace& place) {
                         return make_hop(place, own_.slots, own_.chunk_bytes, own_.slots);
                       });
}

void RelayPath::on_session_open(SessionStream& stream) {
  (void)stream;
  ask_over_first_hop();
}

void RelayPath::ask_over_first_hop() {
  if (auto made = make_first_hop(); !made) {
    refuse_way();
    break_path(CompletionStatus::device_fault, 0, made.error());
  } else if (line_.path()->address_ready()) {
    ask();
  }
}

/// The hop cannot be made, and nobody was told of it.  True: by another kind, or so it is hoped.
bool RelayPath::goes_round() {
  if (state_ != PathState::connecting || line_.place().direct) {
    return false;
  }
  if (!options_.active) {
    wait_for_other_kind();
    return true;
  }
  line_.reset();
  ++setup_.choice;
  ask_over_first_hop();
  return true;
}

void RelayPath::ask() {
  SetupRequest request;
  request.session = context_.secrets().draw().told();
  request.place = 1;
  request.nodes.push_back(own_.self);
  request.nodes.insert(request.nodes.end(), relays_.begin(), relays_.end());
  request.nodes.push_back(peer_.node);
  request.port = peer_.port;
  request.token = peer_.token;
  request.ticket = peer_.ticket;
  request.chunk_bytes = own_.chunk_bytes;
  request.kind = line_.place().at.kind;
  request.window = line_.window();
  const auto address = line_.path()->local_address();
  request.hop_address.assign(address.begin(), address.end());
  request_ = request;
  stream_->send(request);
}

/// The neighbour has no hop of that kind.
bool RelayPath::asks_again(const SetupRefusal& refusal) {
  const bool idle = line_.path() != nullptr && line_.path()->state() == PathState::idle;
  if (!refusal.other_kind || !options_.active || !request_ || !idle) {
    return false;
  }
  line_.reset();
  request_.reset();
  ++setup_.choice;
  if (const auto dialled = dial(); !dialled) {
    refuse_way();
    break_path(CompletionStatus::device_fault, 0, dialled.error());
  }
  return true;
}

void RelayPath::on_refusal(const SetupRefusal& refusal) {
  if (!asks_again(refusal)) {
    const Error why = nccl_ha::fail(Errc::remote, refusal.text);
    blame_way(why);
    break_path(refusal.status, refusal.sequence, why);
  }
}

Result<void> RelayPath::on_ack(const SetupAck& ack) {
  const bool expected = options_.active && request_ && line_.path() != nullptr &&
                        line_.path()->state() == PathState::idle &&
                        ack.chunk_bytes <= own_.chunk_bytes;
  if (!expected) {
    return nccl_ha::fail(Errc::remote, "an answer that nobody asked for");
  }
  if (auto connected = line_.connect(ack.hop_address, ack.window, ack.chunk_bytes); !connected) {
    return connected;
  }
  open(ack.chunk_bytes);
  return {};
}

/// Memory of this path's connection only; what its device does not take comes by slots.
Result<void> RelayPath::on_key_question(const SessionKeyQuestion& question) {
  if (line_.path() == nullptr || line_.place().direct) {
    return nccl_ha::fail(Errc::remote, "a question for a memory key that no hop has");
  }
  const auto keys = hops_.keys_of(line_.place(), options_.domain, question.key);
  if (!keys && ha::is_busy(keys.error())) {
    return keys.error();
  }
  stream_->send(SessionKey{question.key, keys ? keys->remote_key : 0});
  return {};
}

void RelayPath::on_session_message(SessionStream& stream, SessionMessage message) {
  (void)stream;
  if (state_ == PathState::error) {
    return;
  }
  Result<void> good;
  if (const auto* refusal = std::get_if<SetupRefusal>(&message)) {
    on_refusal(*refusal);
  } else if (const auto* link_down = std::get_if<SessionLinkDown>(&message)) {
    link_down_ = nccl_ha::fail(Errc::remote, link_down->text);
    soon();  // the owner may end the path, and this stream with it
  } else if (const auto* ack = std::get_if<SetupAck>(&message)) {
    good = on_ack(*ack);
  } else if (const auto* question = std::get_if<SessionKeyQuestion>(&message)) {
    good = on_key_question(*question);
  } else {
    good = nccl_ha::fail(Errc::remote, "an answer that nobody asked for");
  }
  if (!good) {
    refuse_way();
    break_path(CompletionStatus::device_fault, 0, good.error());
  }
}

void RelayPath::on_request(std::unique_ptr<SessionStream> stream, SetupRequest request) {
  const bool wanted = !options_.active && !stream_ &&
                      (state_ == PathState::idle || state_ == PathState::connecting);
  if (!wanted) {
    stream->send(SetupRefusal{CompletionStatus::flushed, 0,
                              "the path that was asked for is not "
                              "waiting for a peer"});
    stream->close();
    return;
  }
  stream_ = std::move(stream);
  stream_->set_owner(this);
  request_ = std::move(request);
  if (state_ == PathState::connecting) {
    soon();
  }
}

void RelayPath::refuse(const std::string& why) {
  stream_->send(SetupRefusal{CompletionStatus::device_fault, 0, why});
}

Result<void> RelayPath::accept() {
  const SetupRequest& request = *request_;
  auto good = check_route(request.nodes, request.nodes.size() - 1, own_.self, own_.relays_max);
  if (good && request.nodes.front() != peer_.node) {
    good = nccl_ha::fail(Errc::remote, "a host that is not the peer asks for this path");
  }
  const auto known = good ? places() : Result<std::vector<HopPlace>>(good.error());
  if (!known) {
    return known.error();
  }
  const auto place = place_of_kind(*known, request.kind);
  setup_.chunk_bytes = std::min(request.chunk_bytes, own_.chunk_bytes);
  if (place) {
    good = make_hop(*place, std::min(request.window.slots, slots_accepted(own_.slots)),
                    setup_.chunk_bytes, request.window.slots);
  }
  if (place && good) {
    good = line_.connect(request.hop_address, request.window, setup_.chunk_bytes);
  }
  if (!place || (!good && !place->direct)) {
    wait_for_other_kind();
    return {};
  }
  if (!good) {
    return good;
  }
  open(setup_.chunk_bytes);
  relays_.assign(request.nodes.rbegin() + 1, request.nodes.rend() - 1);
  if (line_.path()->address_ready()) {
    answer();
  }
  return {};
}

/// The neighbour is to ask again.
void RelayPath::wait_for_other_kind() {
  stream_->send(SetupRefusal{CompletionStatus::device_fault, 0, "no such hop at that cable", true});
  stream_->close();
  stream_.reset();
  line_.reset();
  request_.reset();
}

void RelayPath::answer() {
  SetupAck ack;
  ack.chunk_bytes = setup_.chunk_bytes;
  ack.window = line_.window();
  const auto address = line_.path()->local_address();
  ack.hop_address.assign(address.begin(), address.end());
  stream_->send(ack);
}

void RelayPath::open(uint32_t chunk_bytes) {
  FrameLine line{own_.self, peer_.node, request_->session,
                 static_cast<uint16_t>(request_->nodes.size() - 2), chunk_bytes};
  work_.sender.open(line_, line);
  std::swap(line.origin, line.destination);
  work_.receiver.open(line_, line);
}

void RelayPath::on_session_lost(SessionStream& stream, const Error& error) {
  const bool asked_nobody = state_ == PathState::connecting && options_.active && !request_;
  if (asked_nobody && !named_ && !stream.unauthenticated()) {
    look_again(error);  // over another cable or host, where there is one
    return;
  }
  blame_way(error);
  // Whoever held the route together is gone, and with it what it held.
  break_path(CompletionStatus::retry_exceeded, 0, error);
}

void RelayPath::on_deadline() {
  if (const Duration left = setup_.limit.left(context_.moment(), deadline_.deadline());
      left > Duration(0)) {
    context_.timers().arm(deadline_, context_.now() + left);
    return;
  }
  const bool dialled = stream_ != nullptr || ending_.error.what.empty();
  const Error why = nccl_ha::fail(
      Errc::timed_out,
      fmt::format("no path came about in time ({})", dialled ? describe() : ending_.error.what));
  blame_way(why);
  break_path(CompletionStatus::retry_exceeded, 0, why);
}

}  // namespace nccl_ha::relay
