// What finds each mistake of mutation.h.  docs/testing.md says the same in words.
#pragma once

#include <cstdint>
#include <ostream>

#include "tests/mutants/mutation.h"

namespace nccl_ha::test {

/// Kinds of run, or another way.
enum class By : uint8_t {
  datagrams,  ///< classic runs: one rail
  rails,      ///< two rails of datagrams
  rdma,       ///< two rails of RDMA
  spare,      ///< RDMA with an interface besides, over which datagrams may take over
  paths,      ///< from here on runs of tests/rig/runs/scenario.h
  streams,
  pauses,
  deaths,
  closes,
  volume,
  devices,
  mesh,      ///< runs of tests/rig/runs/mesh_run.h
  check,     ///< tests of another suite
  edge,      ///< tests of e2e, over the plugin with mistakes
  survives,  ///< nothing finds it; docs/testing.md says why
};

struct Planted {
  Mutation mutation;
  const char* name;
  By by;
  uint64_t seeds = 0;      ///< within which it is found
  const char* check = "";  ///< those tests, as GoogleTest filters them
};

inline void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.name; }

#define NHA_FOUND(name, ...) \
  Planted { Mutation::name, #name, __VA_ARGS__ }
#define NHA_CHECKED(name, test) NHA_FOUND(name, By::check, 0, test)

inline constexpr Planted all_planted[] = {
    NHA_FOUND(report_before_fence, By::datagrams, 50),
    NHA_FOUND(sender_goes_on, By::datagrams, 50),
    NHA_FOUND(replay_everything, By::datagrams, 50),
    NHA_FOUND(replay_nothing, By::datagrams, 50),
    NHA_FOUND(arrived_is_forgotten, By::datagrams, 50),
    NHA_FOUND(counter_for_bitmap, By::datagrams, 50),
    NHA_FOUND(whole_groups_left_out, By::datagrams, 50),
    NHA_FOUND(announcements_not_renewed, By::datagrams, 50),
    NHA_FOUND(old_epoch_kept, By::datagrams, 50),
    NHA_FOUND(one_chunk_remembered, By::datagrams, 50),
    NHA_FOUND(messages_taken_twice, By::rdma, 50),
    NHA_FOUND(confirmed_too_early, By::rdma, 50),
    NHA_FOUND(keys_of_own_nic, By::rdma, 50),
    NHA_FOUND(keys_not_awaited, By::rdma, 400),
    NHA_FOUND(shadow_not_agreed, By::rdma, 50),
    NHA_FOUND(stream_not_made_anew, By::rdma, 200),

    // Recovery of both sides, and lanes.
    NHA_FOUND(half_posted_goes_on, By::volume, 34),
    NHA_FOUND(first_report_kept, By::datagrams, 20),
    NHA_CHECKED(acknowledgement_not_noted, "SimRdmaFaults/EveryCall.MayFailOnce/pollcq"),
    NHA_CHECKED(moved_within_a_chunk, "SimRdmaDevices.TrafficGoesBackBetweenChunks"),
    NHA_CHECKED(keys_of_old_path, "ShadowKeys.AnEpochIsComparedWhole"),
    NHA_CHECKED(key_of_first_buffer, "ShadowKeys.AGroupOfWhichAPartIsNewIsTakenByPosition"),
    NHA_FOUND(last_group_unreported, By::datagrams, 20),
    NHA_CHECKED(announced_before_stop, "ShadowKeysInTime.AnAnnouncementOfTheOldPathComesLate"),
    NHA_FOUND(held_entries_kept, By::rdma, 20),
    NHA_FOUND(wrapped_with_held, By::volume, 10),
    NHA_FOUND(sizes_of_oldest_group, By::paths, 40),
    NHA_CHECKED(flushed_on_primary_only, "SimRdmaDevices.AFlushAsksEachNicThatBringsData"),
    NHA_CHECKED(flushed_too_soon, "SimRdmaDevices.AFlushWaitsForWhatANicThatFailedHadUnderWay"),
    NHA_CHECKED(sender_drained_kept, "Lane.EveryOrderOfEventsEndsWithBothSidesUsable"),
    NHA_CHECKED(receiver_drained_kept, "Lane.EveryOrderOfEventsEndsWithBothSidesUsable"),

    // Paths over RDMA and over datagrams.
    NHA_CHECKED(generation_not_compared, "Fence.WhatCompletesForAPathThatIsGoneIsNotItsSuccessors"),
    NHA_CHECKED(queue_pair_not_stopped, "Fence.EndsWhenAllWorkIsBack"),
    NHA_FOUND(unsignaled_for_ever, By::volume, 100),
    NHA_CHECKED(
        selective_one_off,
        "BackedOffPortPair.ASegmentThatIsLostGoesAgainWhenLaterOnesAreSelectivelyAcknowledged"),
    NHA_FOUND(done_a_segment_early, By::datagrams, 20),
    NHA_FOUND(place_is_enough, By::closes, 300),
    NHA_CHECKED(lines_end_first, "CopyLines.WhoSeesTheEndOfALineSeesAllOfIt"),
    NHA_CHECKED(duplicate_not_answered,
                "BackedOffPortPair.ASegmentThatComesTwiceIsAcknowledgedAgain"),

    // Control messages and mailboxes.
    NHA_CHECKED(backlog_withheld, "ControlLinkTest.APathThatComesUpIsGivenWhatIsUnconfirmed"),
    NHA_CHECKED(box_overrun, "ControlLinkTest.AMessageIsWrittenOverOneThatThePeerHasTaken"),
    NHA_CHECKED(confirmed_on_stream_only, "ControlLinkTest.WhatWasTakenIsConfirmedOverThePathsToo"),
    NHA_FOUND(rejoined_without_backlog, By::spare, 10),
    NHA_CHECKED(reader_kept,
                "ControlLinkTest.AStreamThatTakesTheOldOnesPlaceIsReadFromItsBeginning"),
    NHA_CHECKED(slot_overtakes_queue, "Mailbox.TheSlotIsNoWayPastTheQueue"),
    NHA_CHECKED(missed_ring_forgotten,
                "ConnectionTest.TheCallersNewsAreNotLostWhenItsMailboxIsFull"),

    // Close, liveness and budget.
    NHA_CHECKED(close_counts_one_more,
                "Fabrics/Unfinished.ASendThatTheReceiverDidNotGetIsNotDoneWhenItCloses/*"),
    NHA_CHECKED(close_says_posted,
                "Fabrics/Unfinished.ASendThatTheReceiverDidNotGetIsNotDoneWhenItCloses/*"),
    NHA_CHECKED(life_on_first_lane, "SimLiveness.WhatOnePathAcknowledgesIsNoLifeOfAnotherOne"),
    NHA_CHECKED(health_not_begun, "LivenessTest.ANewPathIsNotJudgedByTheSilenceOfTheOldOne"),
    NHA_CHECKED(budget_not_stopped, "RetryBudget.APathEndsTheNeed"),

    // Rings, numbers and announcements.
    NHA_FOUND(groups_not_wrapped, By::volume, 250),
    NHA_CHECKED(torn_entry_taken, "ChannelTest.AMixtureOfTwoEntriesIsNeitherOfThem"),
    NHA_CHECKED(one_group_too_many, "ChannelTest.RefusesMoreOpenGroupsThanThereCanBe"),
    NHA_FOUND(book_not_cleared, By::spare, 10),
    NHA_CHECKED(box_number_not_compared,
                "ControlLinkTest.APlaceThatWasWrittenAnewMeanwhileIsNotTheOlderMessage"),
    NHA_CHECKED(place_under_way,
                "ControlLinkTest.APlaceIsNotWrittenWhileAnOlderWriteToItIsUnderWay"),
    NHA_FOUND(control_credit_lost, By::spare, 10),
    NHA_FOUND(early_words_dropped, By::rdma, 150),
    NHA_CHECKED(missing_path_awaited,
                "SimHandshake.APortThatIsDownWhenItBeginsLeavesItToTheOtherRail"),
    NHA_FOUND(flush_left_waiting, By::devices, 10),
    NHA_CHECKED(any_epoch_rebuilt, "Lane.MessagesThatThePeerCannotHaveMeantAreFaults"),
    NHA_CHECKED(failures_never_forgotten,
                "RetryBudget.APathThatCarriedSomethingBeginsTheCountAnew"),

    // Paths and memory.
    NHA_CHECKED(first_signaled, "Fence.EndsWhenAllWorkIsBack"),
    NHA_CHECKED(receives_kept_back,
                "Fence.TheDeviceHasThePeersReceivesWhenThatWhichAllowsThemLeaves"),
    NHA_CHECKED(marker_forgotten, "Fence.AQuietWriteThatNothingFollowsIsAskedAfter"),
    NHA_CHECKED(position_not_wrapped, "Fence.EndsWhenAllWorkIsBack"),
    NHA_CHECKED(credits_taken_back, "FullWindow.AnAcknowledgementThatComesLateTakesNoCreditsBack"),
    NHA_CHECKED(probe_not_answered, "FullWindow.CreditsOfWhichTheNewsIsLostAreAskedFor"),
    NHA_CHECKED(credits_not_asked,
                "BackedOffPortPair.CreditsThatWereLostWhileNothingWasUnderWayAreAskedFor"),
    NHA_CHECKED(window_reused_early, "ReceiveWindow.AgainstAPlainSetForRandomArrivals"),
    NHA_CHECKED(evicted_early, "Hotel.EvictsNeverEarlyAndAtMostOneFloorLate"),
    NHA_CHECKED(region_of_first_user, "RegionBookTest.TheLastUserGivesBackWhatWasMadeElsewhere"),
    NHA_CHECKED(region_kept_elsewhere, "RegionBookTest.TheLastUserGivesBackWhatWasMadeElsewhere"),

    // The peer's death and fences.
    NHA_CHECKED(one_refusal_is_death, "PeerVerdict.TwoRefusalsApartAreDeath"),
    NHA_CHECKED(life_forgives_nothing, "PeerVerdict.LifeOnAPathTakesARefusalBack"),
    NHA_CHECKED(absent_from_anybody,
                "PeerVerdict.NobodySpeaksForThePeerOnAWayThatMayLeadElsewhere"),
    NHA_CHECKED(process_not_compared, "RejoinTest.AnotherProcessAtItsPlaceIsNot"),
    NHA_CHECKED(reset_is_death, "SimStream.AMiddleboxThatEndsOrForgetsStreamsEndsNoConnection"),
    NHA_FOUND(probe_not_sent, By::deaths, 40),
    NHA_CHECKED(early_retire_unheard,
                "SimHandshake.AReceiverThatStandsStillMayHearOfStreamsThatWereLetGo"),
    NHA_FOUND(present_not_said, By::spare, 10),
    NHA_CHECKED(fence_of_sends_only, "Fence.TakesADestructionWhereTheDeviceKeepsWork"),
    NHA_CHECKED(fence_by_time, "Fence.WhatWasCompletedBeforeTheDestructionCounts"),
    NHA_CHECKED(destruction_unasked, "Fence.AQueuePairThatCannotBeEndedIsToldAndEndsWithItsDevice"),
    NHA_CHECKED(fence_unemptied, "Fence.WhatWasCompletedBeforeTheDestructionCounts"),
    NHA_CHECKED(error_refused_unseen, "Fence.AQueuePairThatWillNotGoIntoErrorIsDestroyedAtOnce"),
    NHA_CHECKED(failure_answers, "Fence.WorkThatFailedSaysNothingOfTheWorkBeforeIt"),
    NHA_CHECKED(kept_receives_forgotten, "Fence.AReceiveThatCameBackSaysNothingOfThoseBeforeIt"),
    NHA_CHECKED(end_unconfirmed, "Fence.ADeviceThatLiesAndHasNotYetSaidSoIsNotBelieved"),
    NHA_CHECKED(lost_device_believed, "Fence.NothingThatALostDeviceSaysIsAProof"),
    NHA_CHECKED(stop_in_line, "Conductors.WhatAFailoverWaitsForGoesFirstAndTheRestInItsOrder"),
    NHA_CHECKED(stop_not_awaited, "Conductors.AnAnswerIsAwaitedButNotForLong"),
    NHA_CHECKED(old_question_shared, "Conductors.OneQuestionServesAllWhoAskAfterTheSameCommands"),
    NHA_CHECKED(overdue_while_stopping, "FenceSteps.WorkIsNotOverdueBeforeTheQueuePairHasStopped"),
    NHA_CHECKED(unused_path_awaited, "FenceSteps.WhatNobodyCouldReachIsAtItsEnd"),
    NHA_CHECKED(removal_unseen, "Hosts/DeviceDeaths.AfterAResetTheOtherDeviceGoesOn/senders"),
    NHA_CHECKED(dead_device_asked, "Hosts/DeviceDeaths.AfterAResetTheOtherDeviceGoesOn/senders"),
    NHA_CHECKED(last_receive_told, "Fence.NothingThatALostDeviceSaysIsAProof"),
    NHA_CHECKED(acknowledged_for_good,
                "DeviceDeath.WhatWasAcknowledgedAndIsLostGoesAgainWhileItsMessageIsOpen"),
    NHA_CHECKED(told_ends_undialled,
                "*.WithoutAnyPathTheNextOneIsThereWithinTwoSecondsOfTheVerdict/datagrams20"),
    NHA_CHECKED(idle_fence_ends,
                "Hosts/DeviceDeaths.AnEndOfAStandbyThatNothingProvesEndsNothing/senders"),

    // Witnesses, and fallback paths that are rejected.
    NHA_CHECKED(no_witness_needed,
                "PathHealth.WithoutAWitnessTheVerdictTakesLongerHoweverManyPathsThereAre"),
    NHA_CHECKED(no_patience, "PathHealth.WhatWasGivenUpMayBeSilentForLongerWhenItIsBack"),
    NHA_CHECKED(witness_of_before, "PathHealth.WhatCameBeforeThePeerWasAskedIsNoWitness"),
    NHA_CHECKED(asked_for_ever, "PathHealth.APeerThatRunsAgainIsGivenTimeToAnswerThisPathToo"),
    NHA_CHECKED(lost_time_counts, "PathHealth.TimeInWhichThisProcessDidNotRunIsNotCounted"),
    NHA_CHECKED(nic_speaks_for_host,
                "SimLiveness.AnIdleProcessThatPausesGivesUpNoPathAndIsNotGivenUp"),
    NHA_CHECKED(rejection_unheeded, "ShadowCandidates.ARejectedEndTakesAllItsPairsWithIt"),
    NHA_CHECKED(proven_pair_forgotten,
                "ShadowCandidates.APairThatHasWorkedIsTriedAgainBetweenAnyTwoOthers"),
    NHA_CHECKED(proven_pair_insisted, "ShadowCandidates.WithoutAPathAllHaveTheirTurnInOrder"),
    NHA_CHECKED(worse_attempt_kept, "Rails/ShadowLinks.StandsByAgainSoonAfterTheSendersLink/2of2"),
    NHA_CHECKED(early_attempt_counts,
                "Rails/ShadowLinks.TriesAgainAtOnceWhereTheNetworkIsLaterThanTheLink/2of2"),
    NHA_CHECKED(attempts_always_full, "ShadowSweeps.TheFirstOneIsOverBeforeASecondIs"),
    NHA_CHECKED(sweeps_without_wait, "ShadowSweeps.EachOneGivesAllPairsMoreTimeUpToTheLongest"),
    NHA_CHECKED(proven_pair_hurried,
                "ShadowSweeps.APairThatHasWorkedHasOneFullAttemptAtTheEndOfEach"),
    NHA_CHECKED(ends_by_address, "ShadowCandidates.TwoShadowsShareNoNicOverTwoOfItsAddresses"),
    NHA_CHECKED(own_address_paired, "Shadow.AnAddressThatBothHostsHaveIsNoWayBetweenThem"),
    NHA_CHECKED(turns_without_end,
                "ShadowCandidates.AnEndThatComesAndGoesLeavesTheOthersTheirTurns"),
    NHA_CHECKED(links_turn_nothing, "Rails/ShadowLinks.StandsByAgainSoonAfterTheSendersLink/2of2"),
    NHA_CHECKED(shadows_share_an_end, "ShadowCandidates.TwoShadowsShareNoEnd"),
    NHA_CHECKED(keys_not_told_anew,
                "Fabrics/Shadows.AReceiveThatWasOpenWhenAShadowWasReplacedCanBeWrittenOverIt/rdma"),
    NHA_CHECKED(best_shadow_not_named, "Fabrics/Shadows.EachTakesOverInItsTurnAndAtOnce/rdma"),
    NHA_CHECKED(rejection_for_ever,
                "ShadowCandidates.WhenAllAreRejectedTheFirstToBeForgottenIsWaitedFor"),
    NHA_CHECKED(rejection_untold, "Sides/RefusedFallback.TheNextCandidateTakesOver/1"),
    NHA_FOUND(rejection_out_of_date, By::survives),
    NHA_CHECKED(rejection_kept, "Sides/RefusedFallback.TheNextCandidateTakesOver/0"),
    NHA_CHECKED(link_back_untold, "Rails/ShadowLinks.StandsByAgainSoonAfterTheReceiversLink/2of2"),
    NHA_CHECKED(link_back_unheeded,
                "Rails/ShadowLinks.StandsByAgainSoonAfterTheReceiversLink/2of2"),
    NHA_CHECKED(ends_untold, "Hosts/RenewedInterfaces.AStandbyIsMadeWhereAnAddressComesLater/1"),
    NHA_CHECKED(attempt_outlives_address, "Hosts/AddressesInTurn.*"),
    NHA_CHECKED(shared_nic_settled, "SharedNics.AreLeftOnceThereAreOthers"),
    NHA_CHECKED(end_unheeded, "Hosts/RenewedInterfaces.AStandbyIsMadeWhereAnAddressComesLater/1"),
    NHA_CHECKED(primary_keeps_address,
                "Hosts/RenewedInterfaces.AFirstPathComesBackAtItsNewAddress/*"),

    // The end of a connection.
    NHA_CHECKED(words_not_awaited, "CloseLinger.WhoClosesWaitsForTheConfirmation"),
    NHA_CHECKED(answer_not_awaited,
                "CloseLinger.WhoIsToldThatThePeerEndsGoesOnUntilItsAnswerHasArrived"),
    NHA_CHECKED(linger_for_ever, "CloseLinger.NotForLongerThanItsLimit"),
    NHA_CHECKED(memory_left_open,
                "Fabrics/Unfinished.NothingIsSentFromMemoryThatTheCallerHasBack/*"),

    // Eager messages.
    NHA_CHECKED(eager_out_of_order, "Arrivals.NoneIsTakenBeforeAllThatWereSentEarlierHaveCome"),
    NHA_CHECKED(eager_left_behind, "SimEager.WhoClosesWaitsUntilTheyHaveArrived"),
    NHA_CHECKED(
        eager_not_renewed,
        "AnnouncerTest.WhatEagerMessagesCompletedGoesAgainAsLongAsTheSenderMayNotHaveHeardOfIt"),
    NHA_CHECKED(eager_overtaken, "EagerChannel.WhatIsSentLaterComesAfterThoseWithoutAPlace"),
    NHA_CHECKED(eager_base_unheeded, "SimEager.OneThatOvertakesAnEarlierMessageDoesNotGetItsPlace"),
    NHA_CHECKED(eager_unasked, "RelayedToGpu.NoEagerMessageComesThere"),
    NHA_CHECKED(eager_slot_reused, "EagerChannel.ASlotIsFreeWhenItsMessageHasArrivedAndHasAPlace"),
    NHA_CHECKED(eager_taken_twice, "Arrivals.OneThatComesAgainIsKnown"),
    NHA_CHECKED(eager_not_repeated, "SimEager.AFailoverRepeatsWhatMayNotHaveArrived"),
    NHA_CHECKED(eager_forgotten, "SimEager.AReceiverGetsWhatWasSentBeforeItsPeerLeft"),

    // Rails of one device.
    NHA_CHECKED(sup_between_islands, "Fabrics/Rails.BetweenIslandsNothingEverTakesSup/*"),
    NHA_CHECKED(sout_serves_too, "Rails.TheFirstRailStandsByWhereIsolatedHostsHaveSup"),
    NHA_CHECKED(rails_not_awaited, "Fabrics/Rails.WithinAnIslandDataTakesSup/*"),
    NHA_CHECKED(keys_of_first_rail, "Fabrics/Rails.WithinAnIslandDataTakesSup/rdma"),
    NHA_CHECKED(share_not_owed, "ShareAccumulator.PiecesOfAnySizeComeToTheShare"),
    NHA_CHECKED(rates_not_measured, "RailEstimate.FindsTheRateOfALoadedRailWhateverTheDeviceSays"),
    NHA_CHECKED(silence_of_rail, "RailEstimate.ARailThatIsSilentIsTakenForSlow"),
    NHA_CHECKED(rail_never_full, "RailScheduler.LittleWaitsOnAnyRail"),
    NHA_CHECKED(slow_path_kept, "DetourTest.ASlowRankIsLeftForOneThatIsFaster"),
    NHA_CHECKED(vain_trial_stays, "DetourTest.RanksThatAreBothSlowAreTriedMoreAndMoreRarely"),
    NHA_CHECKED(trials_not_rarer, "DetourTest.RanksThatAreBothSlowAreTriedMoreAndMoreRarely"),
    NHA_CHECKED(small_load_counts, "DetourTest.LittleTrafficStaysWhereItIs"),
    NHA_CHECKED(slow_rail_serves, "StragglersTest.WhatComesBackTooEarlyWaitsTwiceAsLong"),
    NHA_CHECKED(cut_cable_kept, "Mesh.AConnectionWhoseCableIsCutBeforeItsStreamGoesOverRelays"),
    NHA_CHECKED(mesh_unknown_stays,
                "SimHandshake.WhereTheAskedDeviceHasNoCableAConnectionLivesWhereItsStreamLeads"),
    NHA_CHECKED(cable_unawaited, "FirstTold.APeerOfWhomOthersTellMayHaveACableOfItsOwn"),
    // Relayed paths.
    NHA_CHECKED(slots_untold, "RelaySim.CarriesBytesOverEightRelays"),
    NHA_CHECKED(frame_passed_twice, "RelaySim.CarriesBytesOverEightRelays"),
    NHA_CHECKED(slot_reused_early, "RelaySim.WhatIsSentAgainIsWhatCame"),
    NHA_CHECKED(frame_of_anybody, "Forwarding.WhatBelongsToAnotherSessionIsRefused"),
    NHA_CHECKED(note_overtakes, "Forwarding.TheLastRelayTellsOfAMessageBehindItsPieces"),
    NHA_CHECKED(owed_ack_forgotten, "RelaySim.AMessageWithoutAnAnswerIsAcknowledgedSoon"),
    NHA_CHECKED(hop_never_avoided, "RelayKinds.ADeviceThatDoesNotConnectIsAvoidedForAWhile"),
    NHA_CHECKED(kind_insisted, "RelayKinds.EachCableHasWhatBothOfItsHostsHave"),
    NHA_CHECKED(piece_is_message, "RelayKinds.MemoryThatNoDeviceTakesIsCopied"),
    NHA_CHECKED(receiver_key_unasked, "RelayKinds.QueuePairsAllTheWay"),
    NHA_CHECKED(gpu_memory_unminded, "RelayedGpu.APathOfDatagramsIsMadeAnew"),
    NHA_CHECKED(other_jobs_refused, "RelayJobs.AJobThatARelayDoesNotKnowIsServedAsOneWithoutAKey"),
    NHA_CHECKED(key_of_any_domain, "RelayKinds.MemoryOfAnotherConnectionIsOutOfReach"),
    NHA_CHECKED(session_outlives_neighbour, "RelaySim.AnEndThatFailsTakesTheSessionAlong"),
    NHA_CHECKED(cause_told_to_both, "RelaySim.AMessageThatFailsIsNamedToItsSenderOnly"),
    NHA_CHECKED(pieces_not_agreed, "RelaySim.TheShortestPiecesOfAllHostsFitEverywhere"),
    NHA_CHECKED(neighbours_silence_unheeded, "RelaySim.ACutCableInTheMiddleEndsItAfterTheSilence"),
    NHA_CHECKED(pings_unsent, "RelaySim.AReceiverThatTakesNothingStallsNobodyElse"),
    NHA_CHECKED(oldest_gives_way, "Door.NobodyIsTurnedOutByAnotherHostsCrowd"),
    NHA_CHECKED(turned_out_for_good, "SimHandshake.AStreamThatEndsBeforeTheWelcomeIsDialledAgain"),
    NHA_CHECKED(unreachable_for_good, "SimHandshake.AHostThatIsNotFoundForAWhileIsDialledAgain"),
    NHA_CHECKED(hello_unproven, "SessionSeals.WhoHasNotShownTheKeyHearsNothing"),
    NHA_CHECKED(repetitions_taken, "SessionSeals.CarryMessagesBothWaysInOrder"),
    NHA_CHECKED(hop_limit_unheeded, "Routes.WhatComesFromOutsideIsChecked"),
    NHA_CHECKED(loop_taken, "Routes.WhatComesFromOutsideIsChecked"),
    NHA_CHECKED(wrong_next_hop, "RelaySim.CarriesBytesOverEightRelays"),
    NHA_CHECKED(drain_takes_more, "RelayDrain.TakesNobodyTellsAllAndEndsSessionsOneByOne"),
    NHA_CHECKED(pool_kept,
                "RelayPoolSim.WhenMemoryRunsOutSessionsAreSlowerAndThenRefusedButNothingIsLost"),
    NHA_CHECKED(receive_not_awaited, "RelaySim.WithEverySlotFullInBothDirectionsItStillGoesOn"),
    NHA_CHECKED(relay_not_told, "RelaySim.AnEndThatFailsTakesTheSessionAlong"),
    NHA_CHECKED(relayed_fence_skipped, "RelaySim.NothingThatARelayHoldsLandsAfterTheFence"),
    NHA_CHECKED(way_kept, "MeshRoutes.AWayThatIsLostTakesAThirdHostIfThereIsOne"),
    NHA_CHECKED(first_one_favoured, "Sharing.AllGetTheSameWhateverTheirPieces"),
    NHA_CHECKED(silent_route_kept, "SimHandshake.ARouteThatIsSilentLeavesItToTheNext"),
    NHA_CHECKED(lone_path_given_up, "RelayFabric.TheLastWayWaitsForACableThatHasNoLinkForAMoment"),
    NHA_CHECKED(link_down_unheeded, "RelayFabric.GoesTheOtherWayRoundWhenACableHasNoLink"),
    NHA_CHECKED(hop_nic_unnamed, "RelayFabric.GoesTheOtherWayRoundWhenACableHasNoLink"),
    NHA_CHECKED(link_not_told, "RelaySim.BothEndsHearOfACableInTheMiddleWithoutALink"),
    NHA_CHECKED(first_hop_kept, "RelayFirstHop.OneThatIsSilentIsDialledAgain"),
    NHA_CHECKED(neighbours_never_give_way, "Discovery.NamesWithoutACableGiveWayToANeighbour"),
    NHA_CHECKED(any_goodbye_taken, "Neighbours.WhatWasRecordedBeforeARestartChangesNothing"),
    NHA_CHECKED(old_hello_taken, "Neighbours.WhatWasRecordedBeforeARestartChangesNothing"),
    NHA_CHECKED(any_jump_believed, "Discovery.ANumberThatNoLifeReachesIsNotBelieved"),
    NHA_CHECKED(hearsay_believed, "Discovery.ANeighbourSpeaksForItself"),
    NHA_CHECKED(outsider_answered, "Discovery.OnlyWhoHearsUsIsAnswered"),
    NHA_CHECKED(answers_unbounded, "Discovery.OnlyWhoHearsUsIsAnswered"),
    NHA_CHECKED(invented_hosts_stay, "Discovery.WhoIsInventedGivesWay"),
    NHA_CHECKED(frame_tag_unchecked, "FrameSeal.NoBitOfAFrameChanges"),
    NHA_CHECKED(frames_repeated, "FrameSeal.EachCountsOnceAlsoWhereTheyOvertakeEachOther"),
    NHA_CHECKED(greeting_unproven, "StreamSeals.WhoHasNotShownTheKeyHearsNothing"),
    NHA_CHECKED(records_repeated, "StreamSeals.NoBitChangesNoRecordComesTwiceAndNoneIsLeftOut"),
    NHA_CHECKED(outsider_served, "RelayAskers.OnlyTheNeighbourItselfIsServed"),
    NHA_CHECKED(limits_per_origin, "RelayAskers.WhoInventsOriginsHasOneShare"),
    NHA_CHECKED(one_domain_for_all, "RelayKinds.KeysOfOneSessionAreNoUseInAnother"),
    NHA_CHECKED(process_taken_for_relay,
                "RelayTickets.AProcessRelaysForNobodyAndSpeaksForNoOtherHost"),
    NHA_CHECKED(ticket_outlives_node, "RelayTickets.OfANodeThatHasEndedAreNoUse"),
    NHA_CHECKED(lent_by_anybody, "TicketOfficeTest.AJobTakesNothingFromAnotherUser"),
    NHA_CHECKED(switch_unnoticed, "Hosts/BehindASwitch.AHostLooksOnceAndIsQuiet/0"),
    NHA_CHECKED(seekers_unheeded, "Seeds/Looking.WhoeverSeeksWakesAllOnTheWay/0"),
    NHA_CHECKED(users_not_shared, "RelayTickets.OneUserOfAHostLeavesSomethingForAnother"),

    // What NCCL is told.
    NHA_FOUND(done_too_early, By::paths, 50),
    NHA_FOUND(size_untold, By::paths, 50),
    NHA_FOUND(request_forgotten, By::paths, 50),
    NHA_FOUND(region_let_go, By::paths, 50),
    NHA_FOUND(flush_skipped, By::devices, 50),
    NHA_FOUND(local_key_told, By::paths, 50),

    // Counts, and lives.
    NHA_CHECKED(stalled_counted_twice, "Sharing.WhoLeavesWhileItIsStalledTakesNothingOfTheOthers"),
    NHA_CHECKED(place_kept, "SimHandshake.WhoShowsTheNonceHasNoPlaceAtTheDoorAnyMore"),
    NHA_CHECKED(lives_mixed_up, "PacketSeals.OfAHostThatBeginsAnewAreNoRepetitions"),
    NHA_CHECKED(slot_beyond_read, "HintTableTest.TheFirstAndTheLastSlotAreSlotsAndNoneBeyond"),
    NHA_CHECKED(completion_room_kept, "QueuePairs.PathsThatComeAndGoNeedNoMoreCompletionQueues"),
    NHA_CHECKED(mtu_of_own_port, "Smaller/Mtus.*"),
    NHA_CHECKED(scope_of_peer, "PathEnds.ALinkLocalPeerIsOnTheInterfaceOfTheOwnEnd"),
    NHA_CHECKED(ece_untold, "Ece.EachDeviceIsToldThePeersBeforeItReceives"),
    NHA_CHECKED(ece_told_early, "Ece.ThePassiveSideHasAnAddressAgainWhenItsDeviceHasAgreed"),
    NHA_CHECKED(agent_always_asked, "Fabrics/Rails.TheAgentIsAskedInTheAdvancedModeOnly/datagrams"),
    NHA_CHECKED(hidden_gid_chosen, "Gid.ThoseOfOtherNamespacesAreLeftOut"),
    NHA_CHECKED(queue_fault_unheard,
                "Every/DeviceWatching.QueuesThatFailAreNamedToTheirPorts/inline_turns"),

    // Of connections that NCCL never has.
    NHA_FOUND(failed_connect_kept, By::edge, 0,
              "*.ActorsAreAsManyAsBeforeOnceAllIsClosed/v12_inline"),
    NHA_FOUND(unaccepted_kept, By::closes, 50),

    // What simulated runs met too seldom.
    NHA_FOUND(record_counts_chunk, By::paths, 8),
    NHA_FOUND(half_of_any_lane, By::devices, 60),
    NHA_FOUND(half_posted_moves, By::volume, 34),
    NHA_FOUND(report_for_all_down, By::volume, 40),
    NHA_FOUND(reopen_armed_once, By::volume, 6),
    NHA_FOUND(redial_armed_once, By::streams, 66),
    NHA_FOUND(flight_of_broken_kept, By::mesh, 4),
    NHA_FOUND(resumed_uncounted, By::mesh, 20),
    NHA_FOUND(stored_flight_kept, By::mesh, 16),

    // Of the plugin's other calls.
    NHA_CHECKED(state_read_once, "PluginTransfer.WhatIsDoneRightBeforeAFailureIsReportedDone"),
    NHA_FOUND(request_kept, By::volume, 50),
    NHA_FOUND(other_region_removed, By::paths, 50),
    NHA_CHECKED(pending_forgotten, "SimPluginCalls.AConnectThatIsUnderWayStaysOneConnection"),
    NHA_CHECKED(second_one_dropped, "SimPluginCalls.AllWhoWaitAreAccepted"),
    NHA_FOUND(close_uncounted, By::closes, 50),
    NHA_CHECKED(one_address_told, "SimPluginCalls.AHandleNamesAllAddresses"),
    NHA_CHECKED(gathered_forgotten, "FailoverLogTest.WhatIsGatheredAtTheEndIsLogged"),
};

#undef NHA_CHECKED
#undef NHA_FOUND

}  // namespace nccl_ha::test
