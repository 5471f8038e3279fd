// The network of a simulation: packets and byte streams between addresses, on virtual time.
//
// Everything that is under way is an event with a time and a number; events of equal time happen in
// the order they were made, so a run with the same seed repeats exactly.  One thread.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/fabric/packet_io.h"
#include "runtime/streams/stream.h"
#include "tests/rig/sim/endpoint.h"
#include "tests/rig/sim/event_queue.h"
#include "tests/rig/sim/gpu_memory.h"
#include "tests/rig/sim/packet_queue.h"
#include "tests/rig/sim/tcp.h"

namespace nccl_ha::sim {

/// What happens on the way from one address to another (one direction).
struct Link {
  Duration delay = std::chrono::microseconds(20);
  /// Packets only: so many bytes per second leave, one after the other; 0: UDP's all at once, those
  /// of an RDMA NIC as fast as that is.
  uint64_t rate = 0;
  size_t queue_bytes = 1 << 20;  ///< with `rate`: more of UDP's do not wait, and are dropped
  double drop = 0;               ///< packets only, as the next two: streams retransmit beneath
  double duplicate = 0;
  double reorder = 0;
  bool cut = false;
  size_t datagram_max = 65507;  ///< larger ones vanish, as behind a switch with a small MTU
  bool no_neighbour = false;    ///< with `cut`: the host finds out that nobody answers ARP
  int dial_error = 0;           ///< the errno value with which each dial ends at once; 0: none does
};

/// What a process may still do with what its kernel gave it: nothing once it is dead.
struct ProcessTie {
  bool dead = false;
  /// Packets in its sockets that were not read: who sleeps on them does not sleep on.
  mutable size_t unread = 0;
};
using ProcessTiePtr = std::shared_ptr<const ProcessTie>;

class SimStreams;
class RdmaNic;

class Network {
 public:
  Network(ManualClock& clock, uint64_t seed) : clock_(clock), random_(seed) {}
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // --- conditions
  /// From now on, for what is sent from `from` to `to`; cutting also stops what is under way.
  void set_link(Ip from, Ip to, const Link& link);
  const Link& link(Ip from, Ip to) const;
  Link all;  ///< for pairs without conditions of their own
  /// Nothing from this address or to it moves any more, until it comes back.
  void vanish(Ip address) { gone_.insert(address); }
  void come_back(Ip address) { gone_.erase(address); }
  /// The host has `now` in place of `before`: besides, no stream can be dialled from that any more.
  void move_address(Ip before, Ip now) {
    same_host_as(host_of(before), now);
    vanish(before);
    moved_[before] = now;
  }
  Tcp& tcp() { return tcp_; }
  const Tcp& tcp() const { return tcp_; }

  /// Of all hosts.
  GpuMemory& gpu_memory() { return gpu_memory_; }
  const GpuMemory& gpu_memory() const { return gpu_memory_; }

  /// `other` is a further address of the host of `address`.
  void same_host_as(Ip address, Ip other) { host_of_[other] = address; }

  bool same_host(Ip one, Ip other) const { return host_of(one) == host_of(other); }

  // --- a host's side
  std::unique_ptr<fabric::PacketIo> open_packets(Ip local, ProcessTiePtr tie = nullptr);
  /// For one worker of the host whose stream connections come from `local` by default, and end when
  /// nothing is acknowledged for `user_timeout`.
  std::unique_ptr<StreamFactory> make_streams(Ip local, ProcessTiePtr tie, Duration user_timeout);
  /// A socket that listens at all addresses of that host, as adopt_listener() takes it.  The number
  /// is negative and no descriptor.
  int listen(Ip local, uint16_t port) { return tcp_.listen(local, port, true); }
  /// The same for a UNIX socket at a path of that host, in place of an earlier one.
  int listen_unix(Ip local, const std::string& path) {
    unix_[{host_of(local), path}] = {local, next_port_};
    return tcp_.listen(local, next_port_++, false);
  }
  /// A descriptor that StreamFactory::watch_fd() takes and readable() speaks of; the caller's.
  static int make_event();
  /// Whoever watches it is told.
  void readable(int fd);
  /// Whoever watches links in processes whose first address is `local` is told in its next turn.
  /// What the link carries is set_link()'s business.
  void tell_link(Ip local, const std::string& interface, bool up);
  /// The same of an interface that goes away.
  void tell_gone(Ip local, const std::string& interface);

  // --- the scheduler's
  /// Time does not jump over this moment.
  void stop_at(Instant due) {
    at(due, [] {});
  }
  /// At that moment `what` happens to the network.
  void call_at(Instant due, std::function<void()> what) { at(due, std::move(what)); }
  /// Lets everything happen that is due; how much that was.
  size_t advance();
  /// What happens at one moment has no end: advance() has given up.
  bool stuck() const { return stuck_; }
  std::optional<Instant> next_event() const;
  Instant now() const { return clock_.now(); }

  struct Counts {
    uint64_t packets = 0;
    uint64_t dropped = 0;
    uint64_t duplicated = 0;
    uint64_t reordered = 0;
    uint64_t cut = 0;  ///< packets and stream segments that met a cut link or a vanished host
  };
  const Counts& counts() const { return counts_; }
  /// Sockets for packets that are open on a host with these addresses.
  size_t sockets(std::span<const Ip> addresses) const {
    return static_cast<size_t>(std::ranges::count_if(arrivals_, [&](const auto& one) {
      return std::ranges::find(addresses, one.first.ip) != addresses.end();
    }));
  }
  /// Bytes of packets, datagrams or RDMA, that set out on that way.
  uint64_t carried(Ip from, Ip to) const {
    const auto found = carried_.find({from, to});
    return found == carried_.end() ? 0 : found->second;
  }
  /// Of all that was delivered so far, with times: equal runs have equal traces.
  uint64_t trace() const { return trace_; }

 private:
  friend class SimPackets;
  friend class Tcp;
  friend class SimStreams;
  friend class SimFdWatch;
  friend class SimLinkWatch;
  friend class RdmaNic;
  friend struct RdmaFunctions;

  /// What has come to a socket.
  struct Arrivals {
    PacketQueue packets;
    ProcessTiePtr tie;
  };
  struct Watching {
    SimStreams* factory = nullptr;
    FdWatchOwner* owner = nullptr;
  };

  struct LinkWatching {
    SimStreams* factory = nullptr;
    LinkWatchOwner* owner = nullptr;
  };

  void at(Instant due, std::function<void()> what);
  void tell_owners(Ip local, const std::function<void(LinkWatchOwner&)>& tell);
  bool blocked(Ip from, Ip to) const;
  Ip host_of(Ip address) const {
    const auto found = host_of_.find(address);
    return found == host_of_.end() ? address : found->second;
  }
  void mix(uint64_t value);
  void transmit(Endpoint from, Endpoint to, const std::vector<std::byte>& bytes);
  /// When what is sent now has left; nothing: the queue before the link is full.
  std::optional<Instant> leave(Ip from, Ip to, const Link& way, size_t bytes);

  GpuMemory gpu_memory_;
  ManualClock& clock_;
  Random random_;
  EventQueue events_;
  std::map<std::pair<Ip, Ip>, Link> links_;
  std::map<std::pair<Ip, Ip>, uint64_t> carried_;
  std::map<std::pair<Ip, Ip>, Instant> busy_until_;  ///< of links with a rate
  std::set<Ip> gone_;
  std::map<Ip, Ip> moved_;                 ///< by the address that is the host's no more
  std::map<Ip, Ip> host_of_;               ///< first address of a host by its others
  std::map<Endpoint, Arrivals> arrivals_;  ///< of the sockets that are open
  std::map<int, Watching> watching_;
  std::map<uint64_t, LinkWatching> link_watches_;  ///< in the order in which they began
  uint64_t next_link_watch_ = 1;
  std::map<std::pair<Ip, std::string>, Endpoint> unix_;  ///< what a host's UNIX sockets lead to
  std::map<Ip, RdmaNic*> rdma_;
  Tcp tcp_{*this};
  uint16_t next_port_ = 20000;
  bool stuck_ = false;
  Counts counts_;
  uint64_t trace_ = 0xCBF29CE484222325;
};

}  // namespace nccl_ha::sim
