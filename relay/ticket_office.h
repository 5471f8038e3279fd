// The relay node's side of tickets: it vouches for the processes of its host, which then need not
// be able to read the cluster's key.
#pragma once

#include <memory>

#include "relay/ticket_socket.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/streams/stream.h"

namespace nccl_ha::relay {

/// `question`'s ticket: another one for each node's life, key, user and salt.
NamedKey ticket_for(const TicketQuestion& question, const KeyRing& cluster, NodeId node,
                    uint32_t incarnation);

class TicketOffice final : public Actor, private FdWatchOwner {
 public:
  struct Options {
    uint16_t port = 0;
    NodeId node{};
    uint32_t incarnation = 0;
    std::shared_ptr<const KeyFile> key;
  };
  /// So many questions in a turn, however many wait.
  static constexpr size_t questions_per_turn = 16;

  explicit TicketOffice(Options options) : options_(std::move(options)) {}
  ~TicketOffice() override { stop(); }

  const char* name() const override { return "ticket-office"; }
  void start(Context& context) override;
  void on(const Message& message) override { (void)message; }
  void stop() override;

 private:
  void on_readable(int fd) override;
  void open();

  Options options_;
  Context* context_ = nullptr;
  int fd_ = -1;
  std::unique_ptr<FdWatch> watch_;
  Timer timer_;
};

}  // namespace nccl_ha::relay
