// The network of a simulation: packets and byte streams between addresses, on virtual time.
//
// Everything that is under way is an event with a time and a number; events of equal time happen in
// the order they were made, so a run with the same seed repeats exactly.  One thread.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/fabric/datagram/packet_io.h"
#include "runtime/random.h"
#include "runtime/sim/packet_queue.h"
#include "runtime/stream.h"

namespace nccl_ha::sim {

/// An IPv4 address in host byte order.
using Ip = uint32_t;
constexpr Ip ip(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return Ip{a} << 24 | Ip{b} << 16 | Ip{c} << 8 | Ip{d};
}

struct Endpoint {
  Ip ip = 0;
  uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
  bool operator<(const Endpoint& other) const {
    return std::pair(ip, port) < std::pair(other.ip, other.port);
  }
  static Endpoint of(const sockaddr* address);
  sockaddr_storage to_sockaddr() const;
};

/// What happens on the way from one address to another (one direction).
struct Link {
  Duration delay = std::chrono::microseconds(20);
  double drop = 0;  ///< packets only, as the next two: streams retransmit beneath
  double duplicate = 0;
  double reorder = 0;
  bool cut = false;
  size_t datagram_max = 65507;  ///< larger ones vanish, as behind a switch with a small MTU
};

struct Connection;
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
  /// The host is gone without a word: nothing from it or to it moves any more.
  void vanish(Ip host) { gone_.insert(host); }

  /// `other` is a further address of the host of `address`.
  void same_host_as(Ip address, Ip other) { host_of_[other] = address; }

  // --- a host's side
  std::unique_ptr<fabric::PacketIo> open_packets(Ip local);
  /// For one worker of the host whose stream connections come from `local` by default.
  std::unique_ptr<StreamFactory> make_streams(Ip local);
  /// A listening socket, as adopt_listener() takes it.  The number is negative and no descriptor.
  int listen(Ip local, uint16_t port);
  /// A descriptor that StreamFactory::watch_fd() takes and readable() speaks of; the caller's.
  static int make_event();
  /// Whoever watches it is told.
  void readable(int fd);

  // --- the scheduler's
  /// Time does not jump over this moment.
  void stop_at(Instant due) {
    at(due, [] {});
  }
  /// Lets everything happen that is due; how much that was.
  size_t advance();
  std::optional<Instant> next_event() const;
  Instant now() const { return clock_.now(); }

  struct Counts {
    uint64_t packets = 0;
    uint64_t dropped = 0;
    uint64_t duplicated = 0;
    uint64_t reordered = 0;
    uint64_t cut = 0;  ///< packets and stream segments that met a cut link or a vanished host
    uint64_t stream_bytes = 0;
  };
  const Counts& counts() const { return counts_; }
  /// Of all that was delivered so far, with times: equal runs have equal traces.
  uint64_t trace() const { return trace_; }

 private:
  friend class SimPackets;
  friend class SimStreams;
  friend class SimStream;
  friend struct Connection;
  friend class SimAcceptor;
  friend class SimFdWatch;
  friend class RdmaNic;
  friend struct RdmaFunctions;

  struct Watching {
    SimStreams* factory = nullptr;
    FdWatchOwner* owner = nullptr;
  };
  struct Listening {
    Endpoint at;
    bool everywhere = false;  ///< at all addresses of that host
    SimStreams* factory = nullptr;
    AcceptorOwner* owner = nullptr;
  };
  using EventKey = std::pair<Instant, uint64_t>;

  void at(Instant due, std::function<void()> what);
  bool blocked(Ip from, Ip to) const;
  bool same_host(Ip one, Ip other) const { return host_of(one) == host_of(other); }
  Ip host_of(Ip address) const {
    const auto found = host_of_.find(address);
    return found == host_of_.end() ? address : found->second;
  }
  void mix(uint64_t value);
  using ConnectionPtr = std::shared_ptr<Connection>;
  void dial(const ConnectionPtr& from, Duration retry);
  void send_segment(const ConnectionPtr& from, std::vector<std::byte> bytes,
                    std::optional<Error> end);
  void flush_segments(const ConnectionPtr& from);
  void deliver_bytes(const ConnectionPtr& to, std::vector<std::byte> bytes);
  void deliver_end(const ConnectionPtr& to, const Error& error);
  void transmit(Endpoint from, Endpoint to, const std::vector<std::byte>& bytes);

  ManualClock& clock_;
  Random random_;
  std::map<EventKey, std::function<void()>> events_;
  uint64_t next_event_ = 0;
  std::map<std::pair<Ip, Ip>, Link> links_;
  std::set<Ip> gone_;
  std::map<Ip, Ip> host_of_;  ///< first address of a host by its others
  std::map<Endpoint, PacketQueue> queues_;
  std::map<int, Listening> listening_;
  std::map<int, Watching> watching_;
  std::map<Ip, RdmaNic*> rdma_;
  std::map<int, std::shared_ptr<Connection>> accepted_;  // between accept and adoption
  int next_token_ = -2;
  uint16_t next_port_ = 20000;
  Counts counts_;
  uint64_t trace_ = 0xCBF29CE484222325;
};

}  // namespace nccl_ha::sim
