#include "relay/path_endpoints.h"

namespace nccl_ha::relay {

Result<std::shared_ptr<PathEndpoints>> PathEndpoints::of(Context& context,
                                                         const SessionKeys& keys) {
  if (auto known = context.shared().find<PathEndpoints>()) {
    return known;
  }
  std::shared_ptr<PathEndpoints> made(new PathEndpoints(context, keys));
  auto acceptor = SessionAcceptor::listen(context, context.config().listen_ports, keys, *made);
  if (!acceptor) {
    return acceptor.error();
  }
  made->acceptor_ = std::move(*acceptor);
  context.shared().put(made);
  return made;
}

Secret PathEndpoints::enter(Member* member) {
  Secret token;
  do {
    token = context_.secrets().draw();
  } while (!members_.emplace(token, member).second);
  return token;
}

void PathEndpoints::on_request(std::unique_ptr<SessionStream> stream, SetupRequest request) {
  const auto found = members_.find(request.token);
  const bool relayed = keys_.is_relay(stream->ticket());
  if (found == members_.end() || !relayed || request.place + 1U != request.nodes.size()) {
    stream->send(SetupRefusal{fabric::CompletionStatus::flushed, 0,
                              "the path that was asked for does not end here any more"});
    stream->close();
    return;
  }
  found->second->on_request(std::move(stream), std::move(request));
}

}  // namespace nccl_ha::relay
