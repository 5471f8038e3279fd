// The mistakes that tests plant into a copy of the product, to see that a suite finds them.
//
// planted/ has a patch for each source file with mistakes; `plant` makes the copy.  table.h says
// for each mistake what finds it.
#pragma once

#include <atomic>
#include <cstdint>

namespace nccl_ha {

enum class Mutation : uint16_t {
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

  // Of the sender's recovery.
  half_posted_goes_on,        ///< a chunk begun on a path that failed is ended on another one
  first_report_kept,          ///< a lane's first report of a fence answers for the later ones
  acknowledgement_not_noted,  ///< which lane acknowledged what is not written down
  moved_within_a_chunk,       ///< traffic fails back while a chunk is half posted
  keys_of_old_path,           ///< a shadow's keys are used whatever path they were told for
  key_of_first_buffer,        ///< all buffers of a group have the first one's key on a shadow
  // Of the receiver's, with ring and announcements.
  last_group_unreported,    ///< the report ends one group too early
  announced_before_stop,    ///< clear-to-sends go again before the sender has stopped
  held_entries_kept,        ///< announcing again forgets that entries are held back no more
  wrapped_with_held,        ///< the ring wraps with entries that were not announced
  sizes_of_oldest_group,    ///< a chunk's recorded size is looked up for the oldest open group
  flushed_on_primary_only,  ///< a flush does not ask the shadow's NIC
  flushed_too_soon,         ///< a flush does not wait for what a failed NIC had under way
  late_bytes_unflushed,     ///< nor for what came over a lane that was taken down before
  refused_flush_done,       ///< a flush is done though a NIC refused to be asked
  // Of lanes.
  sender_drained_kept,    ///< the sender counts a lane as drained since its first fence
  receiver_drained_kept,  ///< so does the receiver
  // Of paths over RDMA.
  generation_not_compared,  ///< a completion goes to whatever path has the old one's place
  queue_pair_not_stopped,   ///< a path that failed does not put its queue pair into error
  unsignaled_for_ever,      ///< unsignaled writes never ask for a completion
  // Of paths over datagrams.
  selective_one_off,       ///< the bitmap of an acknowledgement is read one segment too low
  done_a_segment_early,    ///< a write completes when all but its last segment have arrived
  place_is_enough,         ///< a packet is taken by whatever path has the old one's place
  lines_end_first,         ///< the end of a line that a reader polls is copied before the line
  duplicate_not_answered,  ///< a segment that came twice is not acknowledged again
  frame_tag_unchecked,     ///< a sealed frame's tag is not looked at
  frames_repeated,         ///< a sealed frame counts as often as it comes
  greeting_unproven,       ///< who dials a sealed stream need not show the key
  records_repeated,        ///< a record of a sealed stream is taken again
  // Of control messages and mailboxes.
  box_overrun,               ///< a message is written over one that the peer may not have read
  confirmed_on_stream_only,  ///< confirmations do not go over paths
  rejoined_without_backlog,  ///< a new stream is not given what is unconfirmed
  reader_kept,            ///< what the old stream left half read comes before the new one's bytes
  slot_overtakes_queue,   ///< a message takes a mailbox's slot before older ones in its queue
  missed_ring_forgotten,  ///< the caller's news are asked for only when a doorbell rings
  // Of close, liveness and budget.
  close_counts_one_more,  ///< the group after the last one that was received counts as received
  close_says_posted,      ///< the receiver says what it posted, not what it received
  life_on_first_lane,     ///< whatever a lane acknowledges is the first one's life
  health_not_begun,       ///< a new path is judged by the silence of the old one
  budget_not_stopped,     ///< the time without a path goes on when one is back

  // Chosen beside the new simulator.  Rings, numbers and announcements:
  groups_not_wrapped,        ///< a group's low bits are compared as if they were all of it
  torn_entry_taken,          ///< an entry found in memory is not asked whether all of it is there
  one_group_too_many,        ///< a group more is published than places are kept for
  book_not_cleared,          ///< who acknowledged the group before in a place stays written there
  box_number_not_compared,   ///< a control message is taken for the one that was announced
  place_under_way,           ///< a control message is written over one that may be repeated
  control_credit_lost,       ///< the receive that a control message used is not replaced
  early_words_dropped,       ///< what the peer says of paths before this side is ready is forgotten
  missing_path_awaited,      ///< a first path that cannot be made leaves the handshake unsettled
  flush_left_waiting,        ///< a flush that waits for a path is not tried again
  any_epoch_rebuilt,         ///< the receiver makes a path of whatever epoch it is told
  failures_never_forgotten,  ///< a path that carried something begins no new count of failures
  // Paths and memory:
  first_signaled,         ///< of several writes the first one asks for a completion, not the last
  receives_kept_back,     ///< the device is not given receives before the peer may need them
  marker_forgotten,       ///< unsignaled writes that nothing follows are never asked after
  position_not_wrapped,   ///< positions of work requests are compared without their wrap
  credits_taken_back,     ///< a late acknowledgement takes back what a newer one allowed
  probe_not_answered,     ///< a sender that asks for credits gets no answer
  credits_not_asked,      ///< a sender with nothing under way waits for credits and does not ask
  collapsed_for_good,     ///< over a longer way a window that has collapsed never grows again
  window_reused_early,    ///< a place of the window is free once its segment is in order
  evicted_early,          ///< a segment whose time is not up is sent again
  region_of_first_user,   ///< a region that several registered ends with the first of them
  region_kept_elsewhere,  ///< what was registered with other devices is not taken back
  late_region_kept,       ///< what is taken back while another device registers it stays there
  // Of the peer's death and of fences:
  one_refusal_is_death,   ///< a port that refuses once is a dead peer
  life_forgives_nothing,  ///< a refusal counts although the paths lived after it
  absent_from_anybody,    ///< who does not know the connection is believed wherever it is
  process_not_compared,   ///< whoever answers with `present` is the peer
  reset_is_death,         ///< a stream that is reset takes the connection with it
  probe_not_sent,         ///< the acceptor does not ask for a connector that does not come back
  early_retire_unheard,   ///< that a stream is let go means nothing before the connection is ready
  present_not_said,       ///< a stream that was made anew is not answered
  fence_of_sends_only,    ///< sends that came back end a fence, whatever became of receives
  fence_by_time,          ///< so does the time for them
  destruction_unasked,    ///< so does a queue pair that could not be destroyed
  abandoned_return_counts,  ///< and what a path that was abandoned has not outstanding any more
  silence_before_stop,   ///< firmware has its time from the failure on, while the peer still sends
  answers_are_silence,   ///< and so has firmware that answers, but proves nothing
  never_abandoned,       ///< a sender waits for a proof that its device does not give
  replaced_unproven,     ///< the lane has a new path before its device is through with the old one
  proof_unheard,         ///< nor does it have one after that
  unproven_unsaid,       ///< the receiver does not hear that the sender's device may go on
  rings_shared,          ///< lanes have one ring of clear-to-sends for all
  fence_unemptied,       ///< what the completion queue still holds is not asked for at the end
  error_refused_unseen,  ///< a queue pair that does not go into error is waited for as others are
  failure_answers,       ///< work that failed tells that all before it was acknowledged
  kept_receives_forgotten,  ///< a receive that came back tells that all before it did
  end_unconfirmed,       ///< what a driver says it has ended counts without an answer of firmware
  grh_not_required,      ///< an InfiniBand port that requires global routing headers gets none
  router_not_named,      ///< another subnet is reached by the peer's LID, which is none there
  starved_is_hung,       ///< a command whose thread gets no processor is one of firmware that hangs
  driver_asked,          ///< a driver's own answer counts as one of the firmware
  shortage_is_refusal,   ///< who could not be asked for want of something is asked seconds later
  lost_device_believed,  ///< what the driver of a lost device says counts
  stop_in_line,          ///< what a failover waits for is done after what nobody waits for
  stop_not_awaited,      ///< memory is given back before the device takes nothing more
  old_question_shared,   ///< who asks the firmware hears what it answered before the last command
  overdue_while_stopping,  ///< work is overdue before its queue pair has gone into error
  unused_path_awaited,     ///< a path that nobody could reach waits for a proof
  removal_unseen,          ///< that an old kernel has taken a device away is not heard
  sentinel_unasked,        ///< nor that one of today has
  refusal_final,           ///< memory that a device does not know ends the connection at once
  hop_refusal_final,       ///< and memory that the device of a hop does not know
  refusals_excused,        ///< and never, however often it comes again
  dead_channel_waited,     ///< who sleeps does so on a channel that the kernel has closed
  dead_device_asked,       ///< memory is registered with a device that has failed
  keys_of_one_before,      ///< a device that is back is taken to know memory by the keys of before
  returned_comes_last,     ///< a NIC that is back shares its end with first paths that stay down
  return_not_told,         ///< that a device is back is told to no connection
  returned_is_primary,     ///< what has come back counts as the NIC that first paths begin at
  successor_by_name,       ///< what has the name of a device that is gone counts as the same NIC
  busy_memory_ends,        ///< memory that a returned device is slow to register fails the call
  one_before_kept,         ///< what was registered with a device that is gone is not taken back
  gone_device_kept,        ///< a device that is gone stays open though nothing uses it
  untaken_memory_named,    ///< memory that a hop's device has not taken is named to it all the same
  last_receive_told,       ///< a lane is empty before anything proves that its queue pair has ended
  acknowledged_for_good,   ///< a chunk of an open message is lost with the device that took it
  told_ends_undialled,     ///< a stream is dialled again to the addresses of the handle only
  idle_fence_ends,         ///< a fence that nothing waits for ends the connection in time
  reported_remembered,     ///< what a lane carried before its last fence is waited for once more
  whole_groups_awaited,    ///< so is what the receiver must have, as later groups are open
  nothing_open_awaited,    ///< a receiver waits for announcements though nothing is open
  open_change_unseen,      ///< and does not when a receive is posted
  // Of witnesses and of fallback paths that are rejected:
  no_witness_needed,      ///< silence is enough for a verdict, whether the peer runs or not
  no_patience,            ///< a path that was given up too early is given up as early again
  one_witness_is_enough,  ///< that a peer ran for a moment shows that it had time to answer
  witness_of_before,      ///< what came before the peer was asked shows that it runs
  asked_for_ever,         ///< a path that answered is judged by what was asked before
  lost_time_counts,       ///< silence lasts also while this process does not run
  nic_speaks_for_host,    ///< what a NIC acknowledges shows that the peer's process runs
  rejection_unheeded,     ///< an end that was rejected is chosen again
  proven_pair_forgotten,  ///< a fallback path that fails takes no NICs again that served before
  proven_pair_insisted,   ///< they have every second turn also where no path is left
  worse_attempt_kept,  ///< an attempt over other NICs is not given up for those whose link is back
  early_attempt_counts,   ///< an attempt that began before the link was back passes its NICs over
  attempts_always_full,   ///< a pair of NICs that leads nowhere holds the others up for 3 s
  sweeps_without_wait,    ///< all pairs are tried again and again without a pause
  proven_pair_hurried,    ///< one that has worked gets no more time than those that never did
  ends_by_address,        ///< two addresses of one NIC are taken for two NICs
  own_address_paired,     ///< an address that both hosts have is taken for a way between them
  turns_without_end,      ///< a link that comes and goes has every turn
  links_turn_nothing,     ///< NICs whose link is back are not the next ones to be tried
  shadows_share_an_end,   ///< two fallback paths of a connection lie on one NIC
  tries_bar_others,       ///< two fallback paths that find nothing keep each other's pair for ever
  tries_count_as_joined,  ///< a better pair is another's as soon as that one tries a NIC of it
  standby_unannounced,    ///< the peer of one that is in use hears nothing over it
  flapping_standby_good,  ///< a path that is silent is left at once for one that comes and goes
  keys_not_told_anew,     ///< the keys of a fallback path that was replaced are not told again
  best_shadow_not_named,  ///< keys are told for the first fallback path that was needed only
  rejection_for_ever,     ///< it is never chosen again
  rejection_untold,       ///< the peer does not hear of it
  rejection_out_of_date,  ///< it is taken for the path that came after
  own_memory_unknown,     ///< a path is made without its own memory
  refusal_unseen,         ///< a device that does not take own memory counts as any other
  busy_device_rejected,   ///< and one that is busy for a moment as one that refuses memory
  low_descriptor_kept,    ///< a descriptor has the number of a standard stream
  no_route_clock_kept,    ///< a network that was there in between counts as away all along
  standstill_counted,     ///< time in which the process did not run counts as waited
  late_timer_believed,    ///< a deadline that comes late may have been long ago
  late_ack_sampled,       ///< what an acknowledgement says again later counts as a round trip
  rejection_kept,         ///< a path made anew counts as rejected like the one before
  link_back_untold,       ///< the peer does not hear that a NIC here has its link again
  link_back_unheeded,     ///< who hears that goes on waiting
  ends_untold,            ///< the peer does not hear that a place here has another address
  attempt_outlives_address,  ///< an attempt between old addresses counts against the new ones
  shared_nic_settled,        ///< a standby on the first path's NIC stays, though another could be
  shared_nic_kept,           ///< so it does when the other NIC's link is back
  parts_at_each_flap,        ///< it gives way each time that this link comes
  look_made_longer,          ///< and is away for seconds, as the link comes again meanwhile
  end_unheeded,              ///< who hears that goes on with the old one
  primary_keeps_address,     ///< a first path is made anew at the address that its NIC had before
  renewed_ends_undialled,    ///< a stream is dialled again between the addresses of before only
  lost_address_insisted,     ///< and from one that its host has no more
  probe_tells_no_way,        ///< who is probed does not dial where the probe came from
  names_never_forgotten,     ///< names of interfaces that went away are kept
  // Of the end of a connection:
  words_not_awaited,   ///< who closes does not wait for the confirmation
  answer_not_awaited,  ///< who is told that the peer ends does not wait until its answer is there
  linger_for_ever,     ///< the wait for the peer has no end
  words_not_kept,      ///< last words that were not heard soon are never heard
  hurry_forgotten,     ///< who closes while its process ends stays as long as ever
  silent_end_kept,     ///< nobody looks for a peer that does not confirm them
  rail_keys_invented,  ///< memory has a name on a rail whose device has failed
  end_hasty,           ///< a caller hears of the end before paths have stopped
  closed_range_open,   ///< a receiver that closes trusts that nobody else registered its memory
  memory_left_open,    ///< paths that may still write memory of the caller's go on
  // Of eager messages:
  eager_out_of_order,   ///< a receive takes one before another one that was sent earlier has come
  early_end_told,       ///< accept() fails where a connector's stream ends before the welcome
  flush_needs_peer,     ///< a flush fails whose sender has closed
  early_failure_final,  ///< a device that fails before the welcome ends a connection
  no_route_final,       ///< a dial that finds no route is not repeated
  closed_unaccepted,    ///< a connection that the peer closes early is never offered
  repeat_misplaced,     ///< segments of a repeated eager message may land where others lie
  eager_left_behind,    ///< who closes does not wait until they have arrived
  eager_not_renewed,    ///< what they completed is not announced again
  eager_overtaken,      ///< what is sent later gets the place of one that has none yet
  eager_base_unheeded,  ///< a receive takes one that was sent for a later one
  eager_slot_reused,    ///< a slot is written again before what was in it has a place
  cable_unawaited,      ///< a peer of whom others tell first is not waited for on its own cable
  cut_cable_kept,       ///< who dials over a cable that was cut goes on, though relays lead there
  mesh_unknown_stays,   ///< while no cable is known, a connection lives where asked
  eager_unasked,        ///< a sender does not ask whether its peer takes eager messages
  eager_taken_twice,    ///< one that comes again after a failover is taken again
  eager_not_repeated,   ///< one that a lane had when it failed counts as arrived
  eager_forgotten,      ///< those that wait for their receive end with the sender
  // Of a device's rails:
  sup_between_islands,  ///< isolated hosts make paths over SUP to other islands
  sout_serves_too,      ///< SOUT carries data of isolated hosts where SUP works
  rails_not_awaited,    ///< the caller is told before it is known which rails there are
  keys_of_first_rail,   ///< memory on another rail is named by the keys of the first one
  share_not_owed,       ///< what a share was rounded by is forgotten
  rates_not_measured,   ///< rails are taken for what their devices say
  silence_of_rail,      ///< a rail from which nothing comes is as fast as it was
  rail_never_full,      ///< no rail ever has enough to do
  slow_rail_serves,     ///< a rail that is slow is not fenced off though it should be
  fenced_rail_kept,     ///< one that is fenced off is no way out for a standby without keys
  slow_path_kept,       ///< traffic stays on a path that is slow though another one is not
  vain_trial_stays,     ///< it stays on a standby that is no faster than what was left for it
  trials_not_rarer,     ///< and tries it again as soon as the first time
  small_load_counts,    ///< a path is slow that has next to nothing to carry
  // Of relayed paths:
  slots_untold,          ///< slots that are free again are not told of
  frame_passed_twice,    ///< a relay passes a piece on twice
  slot_reused_early,     ///< a relay gives a slot back when it has posted what is in it
  frame_of_anybody,      ///< a relay passes on what belongs to another session
  note_overtakes,        ///< the last relay tells of a message before its last piece
  owed_ack_forgotten,    ///< what the end of a route may tell later it never tells
  hop_never_avoided,     ///< a device that does not connect is asked for again and again
  kind_insisted,         ///< a relay does not ask again with another kind of hop
  piece_is_message,      ///< a written message is there with its first piece
  receiver_key_unasked,  ///< a relay takes a program's memory key for a device's
  key_of_any_domain,     ///< a relay is told keys of other connections' memory
  any_hop_for_gpu,       ///< an end with memory of a GPU takes a hop that cannot reach it
  other_jobs_refused,  ///< a relay node turns away a job that none of its processes has told it of
  session_outlives_neighbour,  ///< a relay keeps a session whose neighbour is gone
  cause_told_to_both,          ///< both ends hear that the message of one of them failed
  pieces_not_agreed,  ///< a relay does not pass back that a host further on takes shorter pieces
  neighbours_silence_unheeded,  ///< a neighbour on a route that is silent is waited for
  pings_unsent,                 ///< neighbours on a route do not show that they run
  oldest_gives_way,             ///< at a full door the first one, whoever crowds it
  turned_out_for_good,          ///< a stream that ends before the welcome is not dialled again
  unreachable_for_good,         ///< a host that is not found is not dialled again
  hello_unproven,               ///< a hello that has no tag of the cluster's key is answered
  repetitions_taken,            ///< a sealed message is taken again when it is repeated
  hop_limit_unheeded,           ///< a route over too many hosts is taken
  loop_taken,                   ///< a route that leads through a host twice is taken
  wrong_next_hop,               ///< a relay asks the host before it for what the next one is to do
  drain_takes_more,             ///< a relay that ends takes new sessions
  pool_kept,                ///< a session that has ended keeps its part of the memory for sessions
  receive_not_awaited,      ///< a message that needs a receive leaves before there is one
  late_fence_untold,        ///< who uses a relayed path does not hear that its hop's fence is late
  refusal_forgotten,        ///< a way that a host refuses is told again and again
  last_refusal_only,        ///< of the routes that were refused the last one is remembered only
  lost_route_refused,       ///< what was refused stays so, though it was no route meanwhile
  deadline_blames_nothing,  ///< a path that does not come about in time refuses no way
  impatience_unheeded,  ///< a relay whose hop is coming up blames nothing when whoever asked gives
                        ///< up
  relay_speaks_for_peer,  ///< what the first relay has taken is the peer's progress
  flushed_has_arrived,    ///< so is what nobody will ever have
  relay_not_told,         ///< an end that fails does not tell the relay
  relayed_fence_skipped,  ///< an end that fails says that all is over while its last hop works
  way_kept,  ///< a path waits for the host with which it began, though another one is free
  first_one_favoured,    ///< one session gets more than the others in its turn
  silent_route_kept,     ///< a connector waits for a route that is silent, though there is another
  lost_hello_kept,       ///< whether a hello has arrived is left to the kernel
  lost_welcome_kept,     ///< so is whether a welcome has
  begun_twice,           ///< what a connector begins anew leaves what it began before
  late_hello_taken,      ///< a hello that comes after that of a later attempt takes its place
  newest_version_taken,  ///< a connection is to speak a version that one side does not know
  newer_hello_refused,   ///< a hello with more at its end than this version has is malformed
  absence_untold,        ///< who comes for a listen that is closed is not told so
  unread_hello_lost,     ///< a hello that came while its process stood still came too late
  unshown_key_kept,      ///< a stream whose acceptor does not show its key is waited for
  asks_with_failover_only,  ///< without failover an acceptor whose stream ends gives up
  route_not_remembered,     ///< an address that goes ends what it had led to the peer before
  lone_path_given_up,  ///< a path whose cable has no link for a moment is given up though alone
  link_down_unheeded,  ///< an end that hears so goes on as before
  hop_nic_unnamed,     ///< a path's own first hop does not know its NIC
  link_not_told,       ///< a relay does not tell that a cable of its host has no link
  first_hop_kept,      ///< a path whose first relay cannot be reached looks for no other one
  // Of discovery, and of whom relays listen to:
  neighbours_never_give_way,  ///< an interface full of names has no room for a neighbour
  any_goodbye_taken,          ///< a goodbye counts though it was said to an earlier life
  old_hello_taken,            ///< a hello counts that is older than the newest
  any_jump_believed,          ///< a number counts that its host cannot have reached
  hearsay_believed,           ///< others may speak for a neighbour
  outsider_answered,          ///< whoever says hello is told all that is known
  answers_unbounded,          ///< and as often as it asks
  invented_hosts_stay,        ///< hosts that no cable leads to take the room of others
  outsider_served,            ///< a relay serves whoever uses a neighbour's name
  limits_per_origin,          ///< a relay's limits are for whatever origin a request names
  one_domain_for_all,         ///< sessions share a protection domain of a device
  process_taken_for_relay,    ///< a process with a ticket may relay, or speak for another host
  ticket_outlives_node,       ///< a ticket is good after the node that gave it has ended
  users_not_shared,           ///< one user of a host may have all that a relay has for the host
  lent_by_anybody,            ///< a job's process takes keys of another user's job
  old_name_counts,            ///< a host is not found that is known by an earlier name too
  address_outlives_node,      ///< a node that has left keeps its addresses
  switch_unnoticed,           ///< a process that looks goes on where several hosts answer
  seekers_unheeded,           ///< and does not hear that a neighbour cannot reach a peer
  // Of what NCCL is told, which NCCL's own code finds too (tests/nccl/emulated/cases.py):
  done_too_early,     ///< test() says now and then that a receive is done which is not
  size_untold,        ///< test() says that nothing was received
  request_forgotten,  ///< one of many receives is never done
  region_let_go,      ///< memory is taken back from the NIC before NCCL says so
  flush_skipped,      ///< a flush is done without asking the NIC
  local_key_told,     ///< the peer is told the key that only this host's NIC takes
  // Counts, and lives:
  stalled_counted_twice,  ///< a relay takes what a stalled path had under way off once more
  place_kept,             ///< who has shown the nonce keeps its place at the door
  lives_mixed_up,         ///< the packets of a host's earlier life count as those of this one
  slot_beyond_read,       ///< a job reads the hint behind the table's last one
  completion_room_kept,   ///< a path that ends leaves its room in a completion queue taken
  mtu_of_own_port,        ///< a queue pair sends packets that are too large for the peer's port
  scope_of_peer,          ///< a link-local peer is looked for where its own host has it
  ece_untold,             ///< a device does not hear what the peer's can do
  ece_told_early,         ///< a passive side's address says what its device can do by itself
  agent_always_asked,     ///< isolated rails ask the transport agent too
  port_outlives_address,  ///< paths of datagrams are made by the addresses of their port's
                          ///< beginning
  mac_kept,               ///< and reach the peer by the MAC that it had when it was reached first
  hidden_gid_chosen,      ///< a GID is chosen that another network namespace has
  queue_fault_unheard,    ///< a queue pair that fails without a completion is only told of
  // Of connections that NCCL never has:
  failed_connect_kept,  ///< one that could not be made lives on
  unaccepted_kept,      ///< one that nobody accepted lives on after its listen
  closed_forgets,       ///< one that is ready after its listen was closed waits there for ever
  listen_kept,          ///< a listen that was closed can still be asked for
  listen_load_kept,     ///< it still counts where a worker is chosen

  // Of what simulated runs met too seldom.  Lanes, two of which fail at nearly one time:
  record_counts_chunk,  ///< a chunk's record counts the chunk's bytes as under way once more
  half_of_any_lane,     ///< a chunk that is half posted is left when any lane fails
  half_posted_moves,    ///< it goes on elsewhere when other lanes serve from now on
  report_for_all_down,  ///< one lane's report answers for others that are not fenced yet
  // Timers whose work other events do as a rule:
  reopen_armed_once,      ///< lanes that wait for longer than the first one are not made anew
  redial_armed_once,      ///< a control stream that nobody answers is not dialled again
  dials_one_by_one,       ///< a way is dialled when another one has not answered
  dials_in_its_time,      ///< a network that is back is found by the next dial
  all_beside_each_other,  ///< ways that never led to the peer are all dialled beside each other
  link_does_not_dial,     ///< and a link that is back dials none
  probe_does_not_dial,    ///< nor does a peer that has just dialled
  all_are_spoken_to,      ///< a stream is made anew over all ways that take it
  // Relays' limits:
  flight_of_broken_kept,  ///< what a path that ended had under way counts for ever
  resumed_uncounted,      ///< what a stalled path had under way is not counted when it goes on
  rest_stays_counted,     ///< what has only its note left counts as under way
  stored_flight_kept,     ///< what leaves a relay that stores is never counted as acknowledged
  // Of the plugin's other calls:
  state_read_once,       ///< what is done right before a failure is reported failed
  request_kept,          ///< a request that was reported done takes its slot for ever
  other_region_removed,  ///< deregMr takes back the first memory that was registered
  pending_forgotten,     ///< each call of connect begins anew
  second_one_dropped,    ///< who waits behind the connection that is accepted is forgotten
  close_uncounted,       ///< who closes a connection counts as a user of the engine
  one_address_told,      ///< a handle names only the addresses of its own device
  gathered_forgotten,    ///< what a worker's log of failovers holds at its end is not logged
  // Of relays, datagrams and streams, where something ends in order, comes late or is short:
  avoided_never_asked,       ///< a device that is avoided is left out, whatever else there is
  first_hop_unawaited,       ///< a relay asks further on before its own hop can be made
  standstill_is_route_time,  ///< a relay that stood still has no time left for a route
  standstill_is_silence,     ///< nor has heard its neighbours
  resends_hidden,            ///< a port sleeps when some segments have no room to go again
  late_one_overtakes,        ///< what was late counts as what was sent in its place
  least_kept_for_ever,       ///< a way that has become longer is a queue for ever
  watch_not_held,            ///< libuv is the first to ask the kernel to watch a descriptor
  // Of accounts that seldom matter, of settings, and of what devices are told:
  heartbeat_left_open,     ///< a path made anew waits for the heartbeat of one that was abandoned
  room_unused,             ///< a receive that waited for room waits until another one is posted
  window_looked_at_late,   ///< a window was full only if it is so behind its acknowledgement
  first_unsent_lost,       ///< of what a kernel has no room for the first one waits for a timeout
  unsent_acknowledged,     ///< a full window takes an acknowledgement of what is behind it
  deficit_saved,           ///< who has little to send in its turns may hold the others up later
  end_awaited,             ///< a relay that stores waits for the end of what its slots do not hold
  keys_kept,               ///< a relay remembers a receiver's keys as long as a session lasts
  answer_uncounted,        ///< an agent's answer for a connection that has left counts as open
  standstill_metered,      ///< a path is slow because its process did not run
  backoff_kept,            ///< after a success the second attempt waits as long as before it
  partition_of_data_only,  ///< the queue pair of flushes is in the first partition
  not_ready_for_long,      ///< a peer without receives is asked again after 655 ms
  class_of_job_lost,       ///< the traffic class of NCCL's communicator reaches no device
  hexadecimal_unread,      ///< NCCL_IB_TC=0x6A ends a job
  family_unchecked,        ///< an address family that does not exist is taken
};

inline Mutation planted = Mutation::none;
inline bool mutated(Mutation which) { return planted == which; }
/// Every so many calls.
inline bool mutated(Mutation which, unsigned every) {
  static std::atomic<unsigned> calls{0};
  return planted == which && ++calls % every == 0;
}

}  // namespace nccl_ha
