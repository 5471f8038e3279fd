// Where processes of a host turn to the one that speaks to other hosts for them: a relay node, or
// the first process of a job.  With the cluster's key that one vouches for them (ticket.h);
// without, they lend it what their jobs have in common with other hosts (job_keys.h).
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
    std::shared_ptr<const KeyFile> key;  ///< for tickets; null: there are none
    std::shared_ptr<JobKeys> job = {};   ///< takes what is lent; null: nothing is
    std::optional<uint32_t> user = {};   ///< that alone is answered; nullopt: all are
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
  void answer(int fd, const TicketQuestion& question);

  Options options_;
  Context* context_ = nullptr;
  int fd_ = -1;
  std::unique_ptr<FdWatch> watch_;
  Timer timer_;
};

}  // namespace nccl_ha::relay
