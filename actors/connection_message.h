// What a connection actor is told, by whom.
#pragma once

#include <cstdint>

namespace nccl_ha {

/// Messages to a connection actor.
enum class ConnectionMessage : uint32_t {
  doorbell = 1,    ///< there is news of the caller's: Driver::take_news() says which
  suspect = 2,     ///< somebody knows that path `arg` is not to be trusted
  inbox = 3,       ///< the actor to itself: control messages came over a path
  rejected = 4,    ///< the actor to itself: lane `arg` cannot be used, as Connection::reject() said
  slow_rail = 5,   ///< the actor to itself: rail `arg` is fenced off for being slow
  begun_anew = 6,  ///< of another one: the peer has begun this connection anew, with that one
};

/// What the caller has to say, a bit each.
enum class CallerNews : uint32_t {
  submitted = 1,  ///< requests
  oversize = 2,   ///< it tried to send more than the peer's receive holds
  close = 4,      ///< it is done with the connection
};

}  // namespace nccl_ha
