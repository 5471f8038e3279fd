// The accepted, receiving side of a connection.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "actors/channel.h"
#include "actors/connection.h"
#include "ha/close_tail.h"
#include "ha/lane.h"
#include "ha/ledger.h"

namespace nccl_ha {

class ListenChannel;

class ReceiveConnection final : public Connection {
 public:
  /// Groups may end out of order, when they travel on several paths; but no further apart than
  /// this, so that the entries of all that is open fit the ring and the report of a fence.
  static constexpr uint64_t groups_apart_max = 48;
  static constexpr uint32_t announced_together = 64;  ///< entries in one write, at most
  static_assert(groups_apart_max >= receives_max && groups_apart_max <= report_groups_max);
  static_assert(groups_apart_max < cts_slots);
  // Also with what was announced, found in memory and carried out, while nobody has looked at the
  // completion that tells of it: it must not meet a newer entry.
  static_assert((groups_apart_max + cts_found_ahead_max) * group_max + group_max <= cts_entries);
  // A report travels in one piece over a path too; beside the groups it says 14 bytes.
  static_assert(control_header_bytes + 14 + groups_apart_max * (2 + 2 * group_max) <=
                ControlBox::slot_bytes);

  ReceiveConnection(fabric::Provider& provider, Engine& engine, size_t worker, int fd,
                    size_t device, std::shared_ptr<ListenChannel> listener);
  ~ReceiveConnection() override;

  const char* name() const override { return "receive-connection"; }
  void on_submitted() override;

 private:
  Channel* channel() override { return channel_.get(); }
  void begin() override;
  void on_doorbell() override;
  void on_control(const ControlReader::Message& message) override;
  void on_paths_ready() override;
  void on_usable() override;
  void on_failure(const Error& error) override;
  void on_deadline() override;
  void on_peer_gone(const Error& error) override;
  void on_completion(const fabric::Completion& completion) override;

  void on_stream_lost(const Error& why) override;
  bool takes_streams() const override { return true; }
  CloseNotice last_words() const override;
  bool exposed(const Lane& lane) const override;
  void on_peer_closed(std::span<const std::byte> payload);
  void look_at_tail();
  void on_hello(std::span<const std::byte> payload);
  void reject_peer(const char* why);
  void stage(ReceiveRequest& request);
  bool has_room() const { return groups_posted_ - groups_completed_ < groups_apart_max; }
  bool announcing_is_due(uint64_t ahead) const;
  void announce();
  void post_announcement(uint64_t number, uint64_t groups, uint32_t first, uint32_t entries);
  void announce_again();
  void flush(ReceiveRequest& request);
  bool flush_on(Lane& lane, ReceiveRequest& request);
  void on_flushed(ReceiveRequest& request);
  void wait_with_flush(ReceiveRequest& request);
  void begin_recovery();
  void flush_waiting();
  Tables tables() override {
    return {staging_.get(), sizeof *staging_, sizes_.get(), sizeof *sizes_};
  }
  void want_shadow_keys();
  void name_shadow_key(CtsEntry& entry, const ReceiveRequest::Buffer& buffer);
  uint32_t shadow_key(const ReceiveRequest::Buffer& buffer);
  bool take_whole(const fabric::Completion& completion, const Lane& lane);
  void on_data(const fabric::Completion& completion, Lane& lane);
  void finish_group(ReceiveRequest& request);

  void on_lane_ready(size_t lane) override;
  void on_lane_failed(size_t lane, const Error& error) override;
  void on_lane_drained(size_t lane) override;
  void on_path_message(const ControlReader::Message& message);
  void on_rebuild(std::span<const std::byte> payload);
  void take_steps(size_t lane, const ha::ReceiverSteps& steps, const Error& why);
  void open_again(size_t lane, const PathOffer& offer);
  ha::ArrivalReport arrivals() const;

  int fd_;
  std::shared_ptr<ListenChannel> listener_;
  std::shared_ptr<ReceiveChannel> channel_;
  Address<Message> address_;  ///< the channel's, until the caller is told of it
  bool welcome_ = false;      ///< the peer knew the nonce
  bool overdue_ = false;      ///< it should have said so by now
  uint64_t cts_address_ = 0;
  std::unique_ptr<CtsRing> staging_;  ///< what is written into the peer's
  bool shadow_keys_wanted_ = false;   ///< clear-to-sends carry the keys of the shadow's device
  uint32_t staged_ = 0;               ///< where the next entry goes
  uint32_t held_entries_ = 0;         ///< before that, not announced yet
  uint32_t held_groups_ = 0;
  size_t announcing_lane_ = 0;  ///< announcements keep their order by taking one lane
  bool announce_anew_ = false;  ///< that lane failed: everything open again, on another one
  std::array<uint16_t, cts_slots> first_entry_{};  ///< of each group
  std::vector<uint16_t> flushes_waiting_;          ///< for a lane or a time; indexes of requests
  Instant pcie_drained_at_{};  ///< what NICs that failed had under way to memory is there by then
  Timer flush_timer_;
  ha::CloseTail tail_;
  Timer tail_timer_;
  std::vector<ha::ReceiverLane> recovery_;
  std::unique_ptr<SizeRecords> sizes_;
  uint64_t groups_posted_ = 0;
  uint64_t groups_completed_ = 0;
  std::array<ReceiveRequest*, cts_slots> open_{};
  std::array<uint8_t, cts_slots> count_{};  ///< buffers of each group
};

}  // namespace nccl_ha
