// How a process gets its ticket from the relay node of its host: over a UNIX socket whose name lies
// in the host's network, as the node's ports do, and of which the kernel says who asks.
//
// A question: magic u32, version u8, 1 u8, salt 16 bytes.  Its answer: magic u32, version u8, 2 u8,
// ticket (ticket.h), key 32 bytes.
//
// The keys of a job go the same way, from a process to the one of its host that speaks to others
// for it (job_keys.h): magic u32, version u8, 3 u8, count u8, of keys: number u32, 32 bytes each.
// Its answer, all that this one knows of the asking user: the same with 4.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "relay/ticket.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/base/secret.h"

namespace nccl_ha::relay {

/// Drawn by a process for as long as it runs: the same question has the same answer until the node
/// or its key is another one.
using TicketSalt = std::array<std::byte, 16>;

/// A node's own.
struct TicketQuestion {
  uint32_t user = 0;  ///< as the kernel says
  TicketSalt salt{};
  std::optional<KeyRing> lends;  ///< it is none for a ticket: keys of the process's job
  std::vector<std::byte> from;   ///< where the answer goes
};
/// The socket at which processes of this host ask the node that has that port.
Result<int> open_ticket_office(uint16_t port);
/// False: nothing waits any more.  `question` is empty where what came is none.
bool read_question(int fd, std::optional<TicketQuestion>& question);
/// A process that does not take it asks again.
void answer_question(int fd, const TicketQuestion& question, const NamedKey& ticket);
void answer_question(int fd, const TicketQuestion& question, const KeyRing& of_user);

/// Somebody of this host has taken the office's name for that port.
bool is_office_open(uint16_t port);

/// A process's side.
class TicketAsker {
 public:
  TicketAsker(uint16_t port, SecretSource& secrets) : port_(port) { secrets.fill(salt_); }
  ~TicketAsker();
  TicketAsker(const TicketAsker&) = delete;
  TicketAsker& operator=(const TicketAsker&) = delete;

  /// False: nobody of this host gives tickets for that port.
  bool ask();
  /// Lends those keys once it is known that this user, or one of the system's, asks for them: the
  /// first time it says nothing.  False: nobody of this host takes any for that port.
  bool lend(const KeyRing& keys);
  struct Answers {
    std::optional<NamedKey> ticket;  ///< the newest one; nullopt: none has come
    std::optional<KeyRing> lent;     ///< what processes of this user have lent, as it was told last
  };
  /// What has come.
  Answers take();
  /// The answer to a question of now; nullopt: there is none within `patience`, or nobody to ask.
  std::optional<NamedKey> wait(Duration patience);

 private:
  bool open();
  bool send(const WireWriter& out);

  uint16_t port_;
  TicketSalt salt_{};
  int fd_ = -1;
  bool trusted_ = false;  ///< the office, as long as it is the same one
};

}  // namespace nccl_ha::relay
