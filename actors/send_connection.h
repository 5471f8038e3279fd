// The connecting, sending side of a connection.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/channel.h"
#include "actors/connection.h"
#include "actors/route.h"
#include "actors/shadow_keys.h"
#include "ha/backoff.h"
#include "ha/candidates.h"
#include "ha/failback.h"
#include "ha/lane.h"
#include "ha/late_hello.h"
#include "ha/ledger.h"

namespace nccl_ha {

class SendConnection final : public Connection {
 public:
  struct Options {
    std::vector<Route> routes;
    uint64_t nonce = 0;
    Duration timeout{};
    int traffic_class = -1;  ///< asked for by NCCL; -1: none
  };
  SendConnection(fabric::Provider& provider, Engine& engine, size_t worker,
                 std::shared_ptr<SendChannel> channel, Options options);
  ~SendConnection() override;

  const char* name() const override { return "send-connection"; }
  void on_submitted() override;
  bool poll_cts() override;

 private:
  Channel* channel() override { return channel_.get(); }
  void begin() override;
  void on_doorbell() override;
  void on_control(const ControlReader::Message& message) override;
  void on_paths_ready() override;
  void on_usable() override;
  void on_deadline() override;
  void on_stream_open(Stream& stream) override;
  void on_peer_gone(const Error& error) override;
  void on_unconfirmed() override;
  CloseNotice last_words() const override;
  void on_stream_lost(const Error& why) override;
  void on_stream_back() override;
  bool takes_streams() const override { return false; }
  void on_completion(const fabric::Completion& completion) override;
  bool exposed(const Lane& lane) const override { return lane.bytes_open != 0; }

  void look_after_stream();
  void watch_stream();
  bool waits_for_peer() const;
  std::vector<Rejoin::Way> rejoin_ways(const RejoinPoint& peer) const;
  std::string wanted_peer() const override;
  void note_route_error(const Error& error);
  void try_route();
  void send_hello();
  void on_welcome(std::span<const std::byte> payload);
  void on_peer_closed(std::span<const std::byte> payload);
  void on_clear_to_send(const fabric::Completion& completion, Lane& lane);
  void on_good_clear_to_send(Lane& lane);
  bool tells_of_found(const fabric::Completion& completion, const Lane& lane) const;
  void note_shadow_keys(uint64_t number, std::span<const CtsEntry> entries);
  void pump();
  void post_all();
  bool next_work();
  void begin_request(uint16_t index);
  bool post_next();
  bool pick_lane();
  struct Keys {
    uint32_t local = 0;
    uint32_t remote = 0;
  };
  [[gnu::noinline]] bool translate(const SendRequest& request, const Lane& lane, Keys& keys);
  void on_path_made(const Lane& lane) override;
  Tables tables() override {
    return {records_.get(), sizeof *records_, cts_->data(), sizeof *cts_};
  }

  void begin_recovery();
  void on_confirm() override;
  void on_link_up(const std::string& interface) override;
  void make_shadows();
  void reject_end(size_t lane, ha::ShadowCandidates::End end, const std::string& why);
  void choose_lanes();
  void move_traffic();
  bool serves(size_t lane) const { return lane >= serving_begin_ && lane < serving_end_; }
  std::optional<Instant> primaries_whole_since() const;
  void look_for_better();

  void on_lane_ready(size_t lane) override;
  void on_lane_failed(size_t lane, const Error& error) override;
  void on_lane_drained(size_t lane) override;
  void on_path_message(const ControlReader::Message& message);
  void on_fenced(std::span<const std::byte> payload);
  void on_rebuilt(std::span<const std::byte> payload);
  void take_steps(size_t lane, const ha::SenderSteps& steps, const Error& why);
  struct ReportCounts;
  void apply_report(size_t lane);
  void tell_failover(size_t lane, const ReportCounts& counts);
  void reopen_soon(size_t lane);
  void hasten();
  void arm_reopen();
  void reopen_due();
  void reopen(size_t lane);

  /// The chunks that are being posted; a full queue interrupts it at any point.
  struct Cursor {
    SendRequest* request = nullptr;
    uint32_t chunk = 0;
    uint32_t end = 0;     ///< the chunk after the last one to post
    uint32_t offset = 0;  ///< within the chunk: what plain writes have covered
  };
  struct Chunk {
    uint16_t request = 0;
    uint8_t chunk = 0;
  };
  /// How the replacement of a lane's path is going.
  struct Recovery {
    ha::SenderLane lane;
    ha::ArrivalReport report;
    ha::Backoff backoff{std::chrono::milliseconds(20), std::chrono::seconds(1)};
    std::optional<Instant> reopen_at;
    uint64_t life_before = 0;  ///< the lane's `life` when it was taken into use
    Instant usable_since{};
    ha::RailPair pair;  ///< a shadow's ends
    // Of the failure that is being dealt with.
    bool was_used = false;  ///< it met a path that was in use
    Error reason;
    Instant alive_at{};  ///< the last heartbeat that was seen
    Instant down_at{};
  };

  std::shared_ptr<SendChannel> channel_;
  Options options_;
  size_t route_ = 0;
  std::string route_errors_;
  std::unique_ptr<CtsRing> cts_;          ///< the peer writes it
  size_t next_entry_ = 0;                 ///< of the ring, where the next group is expected
  uint64_t told_groups_ = 0;              ///< that completions have told of
  size_t told_entry_ = 0;                 ///< where the next one of them began, if it was found
  std::unique_ptr<SizeRecords> records_;  ///< what is written into the peer's
  uint64_t sizes_address_ = 0;
  Cursor cursor_;
  size_t next_lane_ = 0;
  size_t serving_begin_ = 0;  ///< the lanes that carry data: the primaries, or the shadow
  size_t serving_end_ = 0;
  ha::ShadowCandidates candidates_;  ///< for the shadow
  ShadowKeyTable shadow_keys_;       ///< the peer's, on the shadow's device
  ha::AcknowledgementLog<cts_slots, group_max> acknowledged_;
  ha::Failback failback_;
  Timer failback_timer_;
  Timer better_timer_;
  std::vector<Recovery> recovery_;
  std::deque<Chunk> replay_;
  Timer reopen_timer_;
  uint32_t record_above_ = UINT32_MAX;  ///< longer chunks announce their end separately
  uint32_t unconfirmed_ = 0;            ///< the first one when last looked
  uint32_t heard_ = 0;                  ///< the peer's next one then
  Timer stream_timer_;
  bool said_hello_ = false;
  bool welcomed_ = false;
  ha::LateHello late_hello_;
  bool peer_ready_ = false;
};

}  // namespace nccl_ha
