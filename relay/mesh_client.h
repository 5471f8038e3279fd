// What another process of this host knows of the mesh, asked for again and again.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "relay/packet.h"
#include "relay/ticket_socket.h"
#include "relay/topology_board.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/streams/stream.h"

namespace nccl_ha::relay {

/// Puts the packets of one answer together.  Pure.
class MeshAnswer {
 public:
  /// A view when the answer is whole.  What is no part of an answer is left out.
  std::shared_ptr<const MeshView> take(std::span<const std::byte> packet);

 private:
  std::optional<DiscoveryPacket> first_;
  std::vector<LinkState> states_;
  uint32_t missing_ = 0;
};

/// A socket to whoever has that UDP port on this host.
Result<int> open_query_socket(uint16_t port);
/// Asks once; false: nobody has the port.  `seeks`: QueryPacket::seeks.
bool send_query(int fd, bool seeks = false);

/// A relay node begins: asks a process that has the port for want of a node to give it up, which
/// takes a moment.  Whoever has it for good does not heed that.
void ask_for_place(uint16_t port);

/// Asks now and waits for the answer, at most `patience`; an error says what to look at.  It is
/// Errc::remote where nobody has the port, which is known at once.
Result<std::shared_ptr<const MeshView>> ask_relay_node(uint16_t port, Duration patience);

class MeshClient final : public Actor, private FdWatchOwner {
 public:
  struct Options {
    uint16_t port = 0;
    Duration interval = std::chrono::milliseconds(500);
    Duration dead = std::chrono::milliseconds(2000);
    std::shared_ptr<TopologyBoard> board;
    /// Of a process without the cluster's key, which asks for them too; null: it needs none.
    std::shared_ptr<Tickets> tickets;
    /// What it lends to whoever is asked; null: nothing.
    std::shared_ptr<JobKeys> job;
    std::shared_ptr<const KeyFile> key;  ///< of this process; null: it has none
    bool seeks = false;                  ///< a peer is out of reach
    /// No question of the last `dead` was answered; on the worker's thread, each time that is so.
    /// True: somebody else knows now, and this actor ends.
    std::function<bool(Context& context)> on_silence;
  };
  enum MessageKind : uint32_t {
    need,  ///< arg 1: a peer is out of reach, and whoever is asked is to look for it; 0: no more
  };
  /// As long as nobody has anything to tell, it asks less often by so much.
  static constexpr int resting_factor = 4;

  explicit MeshClient(Options options) : options_(std::move(options)) {}
  ~MeshClient() override;

  const char* name() const override { return "mesh-client"; }
  void start(Context& context) override;
  void on(const Message& message) override;
  void stop() override;

 private:
  void on_readable(int fd) override;
  void on_timer();
  void open();
  void ask_office();
  bool speaks_for_us(const MeshView& view) const;

  Options options_;
  Context* context_ = nullptr;
  int fd_ = -1;
  std::unique_ptr<FdWatch> watch_;
  MeshAnswer answer_;
  std::optional<TicketAsker> asker_;
  bool rests_ = false;              ///< by the last answer
  int64_t unlent_ = INT64_MAX / 2;  ///< questions to the office since its last answer
  int64_t unanswered_ = 0;          ///< questions since the last answer
  Timer timer_;
};

}  // namespace nccl_ha::relay
