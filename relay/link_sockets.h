// MeshLinks over this host's own UDP sockets.
//
// Hellos go to groups that no router forwards: ff02::114 and 224.0.0.254, which RFC 4727 sets aside
// for experiments.  All packets leave with the highest hop limit, and one that arrives with less
// has passed a router and is dropped (RFC 5082): who is no neighbour cannot pretend to be one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "relay/mesh_links.h"

namespace nccl_ha::relay {

/// One thread.
class LinkSockets final : public MeshLinks {
 public:
  struct Options {
    uint16_t port = 0;
    std::vector<IpAddress> peers;  ///< greeted one by one as well
  };
  /// `port_taken`, which may be null, says whether it failed because somebody else on this host
  /// has the port.
  static Result<std::unique_ptr<LinkSockets>> open(const Options& options, bool* port_taken);
  ~LinkSockets() override;
  LinkSockets(const LinkSockets&) = delete;
  LinkSockets& operator=(const LinkSockets&) = delete;

  void use(const std::vector<fabric::NetInterface>& interfaces) override;
  void send(uint32_t interface, const fabric::SocketAddress* to,
            std::span<const std::byte> packet) override;
  size_t receive(Sink& sink, size_t limit) override;
  void answer(const fabric::SocketAddress& to, std::span<const std::byte> packet) override;
  std::array<int, 2> wait_fds() const override { return {v6_, v4_}; }

  uint64_t from_afar() const { return from_afar_; }  ///< packets that passed a router

 private:
  LinkSockets() = default;
  bool receive_one(int fd, Sink& sink);
  void greet(const fabric::NetInterface& interface, std::span<const std::byte> packet);

  int v6_ = -1;  ///< -1: the host knows no IPv6
  int v4_ = -1;
  uint16_t port_ = 0;
  std::vector<IpAddress> peers_;
  std::map<uint32_t, fabric::NetInterface> interfaces_;
  uint64_t from_afar_ = 0;
};

/// HA_NCCL_MESH_PEERS: addresses separated by commas.
Result<std::vector<IpAddress>> parse_mesh_peers(std::string_view setting);

/// Asks the process that has the port on this host for all that it knows, and waits for the answer;
/// an error when none comes within `patience`.  `self` becomes the host's id.
Result<std::vector<LinkState>> ask_this_host(uint16_t port, Duration patience, NodeId* self);

}  // namespace nccl_ha::relay
