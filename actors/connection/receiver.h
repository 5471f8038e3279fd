// The data path of the accepting side: receives are announced, what arrives is counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "actors/connection/announcer.h"
#include "actors/connection/control_link.h"
#include "actors/connection/eager_arrivals.h"
#include "actors/connection/flusher.h"
#include "actors/connection/open_receives.h"
#include "actors/connection/path_set.h"
#include "actors/connection/side.h"
#include "actors/connection/state.h"
#include "actors/eager.h"
#include "actors/receive_channel.h"
#include "actors/server.h"

namespace nccl_ha {

/// What has to be given up or announced once more others decide (ReceiveRecovery).  One thread.
class Receiver final : public Server {
 public:
  class Owner {
   public:
    /// After the sender has left: receives were posted, or took what it had sent before.
    virtual void on_posted_alone() = 0;
    /// While announcements cannot go (Announcer::renews()): receives were posted, or are done.
    virtual void on_open_changed() = 0;

   protected:
    ~Owner() = default;
  };

  Receiver(const ConnectionParts& parts, Owner& owner, ReceiveChannel& channel);
  ~Receiver() override;
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  /// The tables that paths are made for.
  PathSet::Needs needs(bool flushes);
  /// Where the sender writes SizeRecords.
  uint64_t sizes_address() const { return reinterpret_cast<uint64_t>(tables_.get()); }
  const OpenReceives& groups() const { return groups_; }
  const EagerArrivals& eager() const { return eager_; }
  /// The sender has left: it is told of no receive any more.
  void stay_alone() {
    alone_ = true;
    flusher_.stay_alone();
  }
  bool alone() const { return alone_; }
  Announcer& announcer() { return announcer_; }
  Flusher& flusher() { return flusher_; }
  /// Takes what the caller has submitted, as far as there is room.
  void take_submitted();

  // Server
  void on_submitted() override;
  void on_completion(const fabric::Completion& completion) override;
  void on_path_state(fabric::Path& path, fabric::PathState state, const Error& error) override {
    state_.owner.on_path_state(path, state, error);
  }
  void on_path_address(fabric::Path& path) override { state_.owner.on_path_address(path); }
  void on_path_link_down(fabric::Path& path, const Error& why) override {
    state_.owner.on_path_link_down(path, why);
  }
  void on_fence_stuck(fabric::Path& path, const Error& error) override {
    (void)path;
    state_.owner.on_fence_stuck(error);
  }

 private:
  void begin_request(ReceiveRequest& request);
  void on_eager(const fabric::Completion& completion, const Lane& lane);
  bool is_possible(const EagerHead& head) const;
  /// Gives the group what has come for it; true: it has all of it.
  [[nodiscard]] bool take_eager(ReceiveRequest& request);
  [[nodiscard]] bool copy_eager(ReceiveRequest& request, uint32_t position, uint64_t number);
  bool take_whole(const fabric::Completion& completion, const Lane& lane);
  void on_data(const fabric::Completion& completion, const Lane& lane);
  void count_bytes(const Lane& lane, uint32_t bytes);
  void finish_group(ReceiveRequest& request);
  void finish(ReceiveRequest& request);
  /// For the flight recorder, where no event of a chunk tells it.
  void note_whole(const ReceiveRequest& request) const;

  ConnectionState& state_;
  PathSet& paths_;
  ControlBoxes& boxes_;
  Owner& owner_;
  ReceiveChannel& channel_;
  ConnectionCounters& counters_;
  OpenReceives groups_;
  Announcer announcer_;
  Flusher flusher_;
  EagerArrivals eager_;
  fabric::MemoryGuard guard_;           ///< of copies
  std::shared_ptr<DataTables> tables_;  ///< the peer writes it
  bool alone_ = false;
};

}  // namespace nccl_ha
