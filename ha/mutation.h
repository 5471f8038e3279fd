// Mistakes that tests plant into the failover protocol, to see that the simulation finds them.
//
// In the product mutated() is a constant false and costs nothing.  tests/mutants builds these
// sources once more with NHA_MUTANTS.
#pragma once

#include <cstdint>

namespace nccl_ha::ha {

enum class Mutation : uint8_t {
  none,
  report_before_fence,        ///< the receiver reports while its queue pair still takes data
  sender_goes_on,             ///< the sender says that it has stopped, and has not
  replay_everything,          ///< without a success completion, whatever the report says
  replay_nothing,             ///< what was posted counts as arrived
  arrived_is_forgotten,       ///< what the report has counts neither as lost nor as acknowledged
  counter_for_bitmap,         ///< the receiver counts chunks instead of marking them
  whole_groups_left_out,      ///< groups that ended out of order are reported as empty
  announcements_not_renewed,  ///< clear-to-sends of the old path are not written again
  old_epoch_kept,             ///< the receiver's side of the new path has the old one's epoch
  one_chunk_remembered,       ///< the ledger knows the first chunk's lane only
  messages_taken_twice,       ///< a control message that came two ways is dealt with twice
  backlog_withheld,           ///< a path that comes up is not given what is unconfirmed
  confirmed_too_early,        ///< a control message is confirmed that has not come
  keys_of_own_nic,            ///< the receiver names its own NIC's keys for a shadow
  keys_not_awaited,           ///< the sender does not wait for a shadow's keys
  shadow_not_agreed,          ///< shadows are made before the peer said that it is ready
  stream_not_made_anew,       ///< the control stream is not dialled again
};

#if defined(NHA_MUTANTS)
inline Mutation planted = Mutation::none;
inline bool mutated(Mutation which) { return planted == which; }
#else
constexpr bool mutated(Mutation) { return false; }
#endif

}  // namespace nccl_ha::ha
