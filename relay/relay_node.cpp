#include "relay/relay_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "relay/routes.h"
#include "runtime/base/log.h"

namespace nccl_ha::relay {

RelayNode::RelayNode(HopSource& hops, const NextHops& next, const RelayOptions& options,
                     std::string ports, Tell tell)
    : hops_(hops),
      next_(next),
      options_(options),
      ports_(std::move(ports)),
      tell_(std::move(tell)) {}

void RelayNode::start(Context& context) {
  context_ = &context;
  auto acceptor = SessionAcceptor::listen(context, ports_, *this);
  if (!acceptor) {
    failure_ = acceptor.error();
    NHA_LOG_WARN("this host relays for nobody: {}", failure_.message());
  } else {
    acceptor_ = std::move(*acceptor);
  }
  if (tell_) {
    tell_(acceptor_ != nullptr);
  }
}

Result<NextHop> RelayNode::next_of(const SetupRequest& request) const {
  if (auto good = check_route(request.nodes, request.place, options_.self, options_.relays_max);
      !good) {
    return good.error();
  }
  if (!next_.find(request.nodes[request.place - 1U])) {
    return fail(Errc::remote, "a host asks that is no neighbour");
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
                                          text(options_.self), text(next)));
  }
  if (request.place + 2U == request.nodes.size()) {
    found->relay.set_port(request.port);  // the process in which the path ends
  }
  return *found;
}

void RelayNode::on_request(std::unique_ptr<SessionStream> stream, SetupRequest request) {
  auto next = next_of(request);
  if (!next) {
    ++counts_.refused;
    stream->send(SetupRefusal{fabric::CompletionStatus::retry_exceeded, 0, next.error().message()});
    stream->close();
    return;
  }
  ++counts_.opened;
  std::unique_ptr<RelaySession> made(
      new RelaySession(hops_, options_, *this, std::move(stream), std::move(request), *next));
  sessions_.push_back(made.get());
  context_->add_actor(std::move(made));
}

void RelayNode::on_session_end(RelaySession& session, const std::string& why) {
  NHA_LOG_DEBUG("relay session {:016x} has ended: {}", session.number(), why);
  std::erase(sessions_, &session);
  ++counts_.ended;
  for (size_t direction = 0; direction < 2; ++direction) {
    counts_.frames += session.counts(direction).frames;
    counts_.bytes += session.counts(direction).bytes;
  }
  context_->remove_actor(session.id());
}

void RelayNode::stop() {
  acceptor_.reset();
  while (!sessions_.empty()) {
    sessions_.back()->end({}, "the relay node stops");
  }
}

}  // namespace nccl_ha::relay
