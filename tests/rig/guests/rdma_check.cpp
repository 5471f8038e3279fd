#include "tests/rig/guests/rdma_check.h"

#include <fmt/format.h>

#include <utility>

namespace nccl_ha::tools::lab {
namespace {

/// The server says its address before it listens, so a client may come too early.
constexpr int attempts_max = 50;

/// The number of a port's Soft-RoCE device: they are made in the order of ports.
size_t device_number(const Topology& topology, size_t port) {
  size_t number = 0;
  for (size_t i = 0; i < port; ++i) {
    number += topology.ports[i].host == topology.ports[port].host && !topology.ports[i].management;
  }
  return number;
}

}  // namespace

Result<void> RdmaCheck::start(Backend& backend, std::function<void(std::optional<Error>)> done) {
  backend_ = &backend;
  done_ = std::move(done);
  for (size_t medium = 0; medium < topology_.media; ++medium) {
    std::vector<size_t> ports;
    for (size_t port = 0; port < topology_.ports.size(); ++port) {
      if (topology_.links[topology_.ports[port].link].medium == medium &&
          !topology_.ports[port].management) {
        ports.push_back(port);
      }
    }
    for (size_t i = 1; i < ports.size(); ++i) {
      pairs_.push_back({ports[0], ports[i]});
    }
  }
  next();
  return {};
}

std::string RdmaCheck::doing() const {
  if (at_ >= pairs_.size()) {
    return "nothing";
  }
  const auto end = [&](size_t port) {
    return topology_.hosts[topology_.ports[port].host] + "." + topology_.ports[port].interface;
  };
  return fmt::format("ibv_rc_pingpong between {} and {}", end(pairs_[at_].server),
                     end(pairs_[at_].client));
}

std::vector<std::string> RdmaCheck::command(size_t port, const std::string& more) const {
  // The function is the guest agent's.  Without stdbuf the server's first line would come last.
  return {
      "bash", "-c",
      fmt::format(
          "exec stdbuf -oL ibv_rc_pingpong -d rxe{0} -g \"$(lab_gid_index rxe{0})\" -n 20 -s 8192 "
          "-p {1} {2}",
          device_number(topology_, port), 18515 + at_, more)};
}

void RdmaCheck::next() {
  if (at_ == pairs_.size()) {
    finish(std::nullopt);
    return;
  }
  ended_ = attempts_ = 0;
  server_text_.clear();
  client_text_.clear();
  client_ = 0;
  const size_t port = pairs_[at_].server;
  auto id = backend_->run(topology_.ports[port].host, {command(port, ""), {}});
  if (!id) {
    finish(id.error());
    return;
  }
  server_ = *id;
}

Result<void> RdmaCheck::start_client() {
  const Pair& pair = pairs_[at_];
  auto id = backend_->run(
      topology_.ports[pair.client].host,
      {command(pair.client, topology_.management_address(topology_.ports[pair.server].host)), {}});
  if (!id) {
    return id.error();
  }
  client_ = *id;
  ++attempts_;
  return {};
}

void RdmaCheck::output(size_t host, Stream, std::string_view bytes) {
  if (at_ == pairs_.size()) {
    return;
  }
  const bool from_server = host == topology_.ports[pairs_[at_].server].host;
  (from_server ? server_text_ : client_text_) += bytes;
  if (from_server && client_ == 0 && server_text_.find("local address") != std::string::npos) {
    if (auto started = start_client(); !started) {
      finish(started.error());
    }
  }
}

void RdmaCheck::ended(uint64_t job, int status) {
  if (at_ == pairs_.size()) {
    return;
  }
  if (job == client_ && status != 0 && attempts_ < attempts_max &&
      client_text_.find("Couldn't connect") != std::string::npos) {
    client_text_.clear();
    if (auto again = start_client(); !again) {
      finish(again.error());
    }
    return;
  }
  if (status != 0) {
    const bool server = job == server_;
    finish(
        fail(Errc::system, fmt::format("{} failed with status {}, so the lab itself is broken: {}",
                                       doing(), status, server ? server_text_ : client_text_)));
    return;
  }
  if (++ended_ == 2) {
    ++at_;
    next();
  }
}

void RdmaCheck::finish(std::optional<Error> error) {
  at_ = pairs_.size();
  auto done = std::exchange(done_, {});
  if (done) {
    done(std::move(error));
  }
}

}  // namespace nccl_ha::tools::lab
