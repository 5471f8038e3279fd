// TCP of a simulated network, as the kernels of its hosts speak it, on virtual time.
//
// What a process sees depends on its own kernel only: each end retransmits, probes and gives up by
// itself (TCP_USER_TIMEOUT, keepalive; see uv_streams.cpp), so that one end may be dead for minutes
// before the other one hears of it.  Segments for an end that is gone are answered by a reset. A
// middlebox (firewall, address translation) forgets connections that were idle, or all of them at
// once, and then drops or resets what it does not know.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "runtime/streams/stream.h"
#include "tests/rig/sim/endpoint.h"

namespace nccl_ha::sim {

class Network;
class SimStream;
class SimStreams;

/// Between two addresses, in both directions.
struct Middlebox {
  Duration idle_limit = Duration::max();  ///< connections without traffic for longer are forgotten
  bool resets = false;                    ///< what is unknown is answered by a reset, not dropped
  Instant forgot_at{};                    ///< all connections that were open then
  bool dark = false;  ///< streams do not get through at all: their network is away, packets' is not
};

/// How writes are cut on their way.  As it stands each of them arrives as it was written.
struct StreamPieces {
  size_t longest = 0;  ///< bytes of a piece, at most; 0: nothing is cut
  Duration apart{};    ///< each comes at most so much later than the one before
};

/// What the middleboxes on the way know of a connection.
struct TcpFlow {
  Instant opened{};
  Instant used{};
  bool forgotten = false;
};

/// One end of a connection, the kernel's part of it.
struct TcpEnd {
  enum class State : uint8_t {
    dialling,
    open,
    closing,  ///< its process has let go of it; what was written is still sent
    dead,     ///< nobody knows it any more
  };
  struct Segment {
    Instant due;
    std::vector<std::byte> bytes;
    enum class Kind : uint8_t { data, fin, reset } kind = Kind::data;
    bool arrived = false;  ///< not known here before it is acknowledged
    bool within = false;   ///< it goes on with the write that the segment before began
  };
  State state = State::dialling;
  SimStreams* factory = nullptr;  ///< null: accepted, not adopted yet; or its process let go
  SimStream* face = nullptr;
  StreamOwner* owner = nullptr;
  int listener = 0;  ///< accepted: by whom
  Endpoint local;
  Endpoint remote;
  std::weak_ptr<TcpEnd> other;
  std::shared_ptr<TcpFlow> flow;
  Duration user_timeout{};
  // sending
  std::deque<Segment> sent;  ///< in order, until acknowledged
  size_t under_way = 0;      ///< bytes
  std::optional<Instant> unanswered_since;
  Duration retry{};
  bool retry_armed = false;
  bool stalled = false;  ///< the oldest was lost at least twice: nothing new leaves
  // liveness
  Instant heard{};  ///< the last that came from the peer's kernel
  bool probed = false;
  // receiving
  size_t unread = 0;                         ///< arrived, not yet told to the owner
  std::deque<std::vector<std::byte>> early;  ///< arrived before adoption
  std::optional<Error> early_end;
  bool told_end = false;
};
using TcpEndPtr = std::shared_ptr<TcpEnd>;

class Tcp {
 public:
  explicit Tcp(Network& network) : network_(network) {}
  Tcp(const Tcp&) = delete;
  Tcp& operator=(const Tcp&) = delete;

  struct Counts {
    uint64_t bytes = 0;
    uint64_t resets = 0;     ///< that an end got
    uint64_t timeouts = 0;   ///< ends that gave up, by retransmission or keepalive
    uint64_t refused = 0;    ///< attempts to connect
    uint64_t forgotten = 0;  ///< connections, by middleboxes
    uint64_t pieces = 0;     ///< of writes, all but their first ones
    uint64_t torn = 0;       ///< writes of which the peer got a beginning only
  };
  const Counts& counts() const { return counts_; }
  /// Ends that their processes have not let go of, at one of these addresses.
  size_t held(std::span<const Ip> addresses) const;

  // --- conditions
  /// From now on, for all streams.
  void set_pieces(const StreamPieces& pieces) { pieces_ = pieces; }
  void set_middlebox(Ip one, Ip other, const Middlebox& box);
  /// The middlebox between them loses what it knows; without one a resetting or a silent one is
  /// made.
  void forget_flows(Ip one, Ip other, bool resets);
  /// The middlebox between them says to both ends of all connections there, in the name of the
  /// other one, that it is over: a reset, or a FIN that nobody sent.
  void end_flows(Ip one, Ip other, bool reset);
  /// A filter drops TCP from one address to the other, or no longer; everything else gets through.
  void filter(Ip from, Ip to, bool drops);
  /// All that the host's kernel knew is gone, without a word.
  void host_dies(Ip host);
  /// The kernel closes what a process leaves behind.
  void process_dies(SimStreams& factory);

  // --- a process's side
  int listen(Ip local, uint16_t port, bool everywhere);
  Result<void> serve(int token, SimStreams& factory, AcceptorOwner* owner);
  void stop_listening(int token) { listening_.erase(token); }
  TcpEndPtr dial(SimStreams& factory, const Endpoint& from, const Endpoint& to, Duration timeout);
  Result<TcpEndPtr> adopt(int token, SimStreams& factory, StreamOwner* owner, Duration timeout);
  /// What came before adoption; after the end has its face.
  void tell_early(const TcpEndPtr& end);
  Result<void> write(const TcpEndPtr& end, std::span<const std::byte> bytes);
  /// As close() does: what was written is still sent, unless something was not read.
  void close(const TcpEndPtr& end);
  /// The factory is about to go.
  void forget(SimStreams& factory);

 private:
  struct Listening {
    Endpoint at;
    bool everywhere = false;  ///< at all addresses of that host
    SimStreams* factory = nullptr;
    AcceptorOwner* owner = nullptr;
  };
  enum class Way : uint8_t { open, lost, reset };

  Way way(const TcpEnd& from);
  bool lost(Ip from, Ip to) const;
  bool answers_come(const TcpEnd& end) const;
  void push(const TcpEndPtr& from, TcpEnd::Segment segment, Duration later = {});
  void push_pieces(const TcpEndPtr& from, std::span<const std::byte> bytes);
  void flush(const TcpEndPtr& from);
  void deliver(const TcpEndPtr& to, const TcpEnd::Segment& segment);
  void arm_retry(const TcpEndPtr& from);
  void arm_keepalive(const TcpEndPtr& end, Instant due);
  void keep_alive(const TcpEndPtr& end);
  void reset(const TcpEndPtr& end);
  void reset_other(const TcpEnd& from);
  void give_up(const TcpEndPtr& end);
  void die(const TcpEndPtr& end, const Error& error);
  void tell_bytes(const TcpEndPtr& to, std::vector<std::byte> bytes);
  void tell_end(const TcpEndPtr& to, const Error& error);
  void send_syn(const TcpEndPtr& from, Duration retry, Instant since);
  void on_syn(const TcpEndPtr& from);
  void establish(const TcpEndPtr& from, const TcpEndPtr& accepted, int listener);
  void remember(const TcpEndPtr& end);

  Network& network_;
  std::map<int, Listening> listening_;
  std::map<int, TcpEndPtr> accepted_;  ///< between accept and adoption
  std::map<std::pair<Ip, Ip>, Middlebox> boxes_;
  std::set<std::pair<Ip, Ip>> filters_;
  std::map<std::pair<Ip, Ip>, Instant> looked_for_;  ///< by ARP, since then, and not found yet
  std::vector<std::weak_ptr<TcpEnd>> ends_;
  int next_token_ = -2;
  StreamPieces pieces_;
  Counts counts_;
};

}  // namespace nccl_ha::sim
