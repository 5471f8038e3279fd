#include "relay/relay_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "ha/error_class.h"
#include "relay/routes.h"
#include "runtime/base/log.h"

namespace nccl_ha::relay {
namespace {

/// Until a node that was killed has ended its port is not free, and nobody tells when it is.
constexpr Duration listen_apart = std::chrono::milliseconds(100);

/// What one user of a host, who has `own` of the `all` that are taken, may have of `total`: three
/// quarters of what the others leave, so that something is left for who comes next.
constexpr size_t part_of_user(size_t own, size_t all, size_t total) {
  const size_t others = all - own;
  const size_t left = total - std::min(total, others);
  return left - left / 4;
}

}  // namespace

RelayNode::RelayNode(HopSource& hops, const NextHops& next, const RelayOptions& options,
                     std::string ports, Tell tell, Drained drained)
    : hops_(hops),
      next_(next),
      options_(options),
      ports_(std::move(ports)),
      tell_(std::move(tell)),
      drained_(std::move(drained)),
      pool_(options.pool_bytes) {
  drain_timer_.bind([](void* self) { static_cast<RelayNode*>(self)->drain_on(); }, this);
  listen_timer_.bind([](void* self) { static_cast<RelayNode*>(self)->listen(); }, this);
}

RelayNode::~RelayNode() {
  if (context_ != nullptr) {
    context_->timers().cancel(drain_timer_);
    context_->timers().cancel(listen_timer_);
  }
}

void RelayNode::start(Context& context) {
  context_ = &context;
  counters_ = {context.counters().place(), "relay"};
  if (auto watch = context.streams().watch_links(this)) {
    link_watch_ = std::move(*watch);
  } else if (watch.error().code != Errc::invalid_usage) {
    NHA_LOG_WARN(
        "a cable that is pulled is found out by silence only, as links are not watched: {}",
        watch.error().message());
  }
  listen();
  if (tell_ && acceptor_ == nullptr) {
    tell_(false);
  }
}

void RelayNode::listen() {
  auto acceptor =
      SessionAcceptor::listen(*context_, ports_, {options_.key, nullptr, options_.job}, *this);
  if (acceptor) {
    acceptor_ = std::move(*acceptor);
    failure_ = {};
    if (tell_ && !draining()) {
      tell_(true);
    }
    return;
  }
  if (failure_.what.empty()) {
    NHA_LOG_WARN("this host relays for nobody: {}", acceptor.error().message());
  }
  failure_ = acceptor.error();
  if (failure_.sys == EADDRINUSE || ha::is_shortage(failure_.sys)) {
    context_->timers().arm(listen_timer_, context_->now() + listen_apart);
  }
}

void RelayNode::on(const Message& message) {
  if (message.kind == drain && !draining()) {
    begin_draining(std::chrono::milliseconds(message.arg));
  }
}

/// The ends of a path would find out by its silence, much later.
void RelayNode::on_link(const std::string& interface, bool up) {
  if (up) {
    return;
  }
  size_t told = 0;
  for (RelaySession* session : std::vector(sessions_)) {
    told += session->on_link_down(interface) ? 1U : 0U;
  }
  if (told != 0) {
    NHA_LOG_WARN_LIMITED("{} has no link: the ends of {} paths are told", interface, told);
  }
}

void RelayNode::begin_draining(Duration limit) {
  if (!sessions_.empty()) {
    NHA_LOG_INFO("the relay node ends: {} paths have {} ms to find another way", sessions_.size(),
                 std::chrono::duration_cast<std::chrono::milliseconds>(limit).count());
  }
  counters_->draining.set(1);
  if (tell_) {
    tell_(false);
  }
  // The first one later than the news that no way leads through here any more.
  drain_apart_ = limit / static_cast<int64_t>(sessions_.size() + 1);
  context_->timers().arm(drain_timer_,
                         context_->now() + (sessions_.empty() ? Duration(0) : drain_apart_));
}

void RelayNode::drain_on() {
  const auto next = std::find_if(sessions_.begin(), sessions_.end(),
                                 [](const auto* one) { return !one->ended(); });
  if (next != sessions_.end()) {
    (*next)->end({}, "the relay node ends");
  }
  if (!sessions_.empty()) {
    context_->timers().arm(drain_timer_, context_->now() + drain_apart_);
  } else if (const Drained drained = std::exchange(drained_, nullptr)) {
    drained();
  }
}

void RelayNode::show_pool() {
  counters_->sessions.set(sessions_.size());
  counters_->pool_bytes.set(pool_.used());
  counters_->pool_bytes_most.raise_to(pool_.used());
}

/// Names are free to invent: only the neighbour's own address shows that it asks.
Result<void> RelayNode::check_asker(SessionStream& stream, const SetupRequest& request) const {
  if (auto good = check_route(request.nodes, request.place, options_.self, options_.relays_max);
      !good) {
    return good.error();
  }
  const NodeId asker = request.nodes[request.place - 1U];
  const auto socket = stream.peer_address();
  const auto from = socket ? IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&*socket))
                           : Result<IpAddress>(socket.error());
  if (!from || !next_.is_at(asker, *from)) {
    return fail(Errc::remote,
                fmt::format("{} asks in the name of {}, which is no neighbour at that address",
                            from ? from->text() : "a host", next_.name_of(asker)));
  }
  return check_ticket(stream.ticket(), request);
}

/// A process for which its node vouches begins paths of that host; it relays for nobody.
Result<void> RelayNode::check_ticket(const Ticket& ticket, const SetupRequest& request) const {
  if (!ticket.given()) {
    return {};
  }
  const bool begins = request.place == 1 && request.nodes.front() == ticket.node;
  if (!begins) {
    return fail(Errc::remote, fmt::format("a process of {} asks for a path that does not begin "
                                          "there",
                                          next_.name_of(ticket.node)));
  }
  if (!next_.lives(ticket.node, ticket.incarnation)) {
    return fail(Errc::remote,
                fmt::format("a process of {} has a ticket of a relay node that has ended",
                            next_.name_of(ticket.node)));
  }
  return {};
}

Result<NextHop> RelayNode::next_of(const SetupRequest& request) const {
  if (draining()) {
    return fail(Errc::remote, "this relay ends and takes no more paths");
  }
  if (request.place + 1U >= request.nodes.size()) {
    return fail(Errc::invalid_argument, "a route that ends at a relay");
  }
  if (sessions_.size() >= options_.sessions_max) {
    return fail(
        Errc::no_memory,
        fmt::format("this relay serves {} paths already, which is its limit", sessions_.size()));
  }
  const NodeId next = request.nodes[request.place + 1U];
  auto found = next_.find(next);
  if (!found) {
    return fail(Errc::remote, fmt::format("no cable leads from {} to {} any more",
                                          next_.name_of(options_.self), next_.name_of(next)));
  }
  if (request.place + 2U == request.nodes.size()) {
    found->relay.set_port(request.port);  // the process in which the path ends
  }
  return *found;
}

Result<RelaySession::Share> RelayNode::share_of(const SetupRequest& request, const Ticket& ticket) {
  // Where a path begins its neighbour only says; a neighbour has shown that it is one.
  const NodeId asker = request.nodes[request.place - 1U];
  size_t count = 0;
  size_t bytes = 0;
  size_t users_count = 0;  // of them, those of the asking process's user
  size_t users_bytes = 0;
  for (const RelaySession* one : sessions_) {
    const bool same = one->asker() == asker;
    const bool users = same && one->share().ticket.given() == ticket.given() &&
                       one->share().ticket.user == ticket.user;
    const size_t its = RelayPool::bytes_of(one->share().slots, one->share().chunk_bytes);
    count += same ? 1U : 0U;
    bytes += same ? its : 0U;
    users_count += users ? 1U : 0U;
    users_bytes += users ? its : 0U;
  }
  if (count >= options_.sessions_per_host) {
    return fail(Errc::no_memory,
                fmt::format("this relay serves {} paths of neighbour {} already, which is its "
                            "limit for one (HA_NCCL_MESH_SESSIONS_PER_HOST)",
                            count, next_.name_of(asker)));
  }
  const bool alone = !ticket.given();
  if (!alone && users_count >= part_of_user(users_count, count, options_.sessions_per_host)) {
    return fail(
        Errc::no_memory,
        fmt::format("this relay serves {} paths of user {} of neighbour {} already, and the "
                    "others are kept for other users (HA_NCCL_MESH_SESSIONS_PER_HOST)",
                    users_count, ticket.user, next_.name_of(asker)));
  }
  const size_t sessions = std::max<size_t>(options_.sessions_max, 1);
  const size_t most = pool_.bytes() * std::min(options_.sessions_per_host, sessions) / sessions;
  const size_t users_most = alone ? most : part_of_user(users_bytes, bytes, most);
  RelaySession::Share share;
  share.ticket = ticket;
  share.chunk_bytes = std::min(request.chunk_bytes, options_.chunk_bytes);
  share.slots = pool_.take(
      std::min(request.window.slots, options_.slots_max), share.chunk_bytes,
      alone ? most - std::min(most, bytes) : users_most - std::min(users_most, users_bytes));
  if (share.slots == 0) {
    return fail(
        Errc::no_memory,
        fmt::format("of this relay's {} bytes for paths (HA_NCCL_MESH_POOL_BYTES) {} are in "
                    "use, {} of the {} of neighbour {}",
                    pool_.bytes(), pool_.used(), bytes, most, next_.name_of(asker)));
  }
  share.egresses[RelaySession::up] = egress_to(request.nodes[request.place - 1U]);
  share.egresses[RelaySession::down] = egress_to(request.nodes[request.place + 1U]);
  return share;
}

std::shared_ptr<Egress> RelayNode::egress_to(NodeId neighbour) {
  std::erase_if(egresses_, [&](const auto& one) {
    return one.second.use_count() == 1 && one.first != neighbour;
  });
  auto& egress = egresses_[neighbour];
  if (!egress) {
    FairShares::Limits limits;
    limits.quantum_bytes = frame_header_bytes + options_.chunk_bytes;
    limits.flight_bytes = options_.flight_bytes;
    egress = std::make_shared<Egress>(*context_, limits, *counters_);
  }
  return egress;
}

void RelayNode::on_request(std::unique_ptr<SessionStream> stream, SetupRequest request) {
  const auto asks = check_asker(*stream, request);
  const auto next = asks ? next_of(request) : Result<NextHop>(asks.error());
  auto share =
      next ? share_of(request, stream->ticket()) : Result<RelaySession::Share>(next.error());
  if (!share) {
    ++counters_->refused;
    stream->send(
        SetupRefusal{fabric::CompletionStatus::retry_exceeded, 0, share.error().message()});
    stream->close();
    return;
  }
  const auto [slots, chunk_bytes] = std::pair(share->slots, share->chunk_bytes);
  std::unique_ptr<RelaySession> made(new RelaySession(
      hops_, options_, *this, std::move(stream), std::move(request), *next, std::move(*share)));
  sessions_.push_back(made.get());
  show_pool();
  if (auto added = context_->add_actor(std::move(made)); !added) {
    NHA_LOG_WARN("cannot relay for one more connection: {}", added.error().message());
    sessions_.pop_back();
    pool_.give_back(slots, chunk_bytes);
    ++counters_->refused;
    show_pool();
    return;
  }
  ++counters_->opened;
}

void RelayNode::on_session_end(RelaySession& session, const std::string& why) {
  NHA_LOG_DEBUG("relay session {:016x} has ended: {}", session.number(), why);
  std::erase(sessions_, &session);
  pool_.give_back(session.share().slots, session.share().chunk_bytes);
  ++counters_->ended;
  show_pool();
  if (draining() && sessions_.empty()) {
    context_->timers().arm(drain_timer_, context_->now());
  }
  context_->remove_actor(session.id());
}

/// A timer of its own may have been what had no memory.
void RelayNode::on_no_memory() {
  if (acceptor_ == nullptr) {
    context_->timers().arm(listen_timer_, context_->now() + listen_apart);
  }
  if (draining()) {
    context_->timers().arm(drain_timer_, context_->now() + drain_apart_);
  }
}

void RelayNode::stop() {
  context_->timers().cancel(listen_timer_);
  acceptor_.reset();
  link_watch_.reset();
  while (!sessions_.empty()) {
    sessions_.back()->stop();
  }
}

}  // namespace nccl_ha::relay
