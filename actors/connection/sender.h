// The data path of the connecting side: requests become writes, completions become results.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "actors/connection/clear_to_sends.h"
#include "actors/connection/control_link.h"
#include "actors/connection/eager_sends.h"
#include "actors/connection/lane_chooser.h"
#include "actors/connection/liveness.h"
#include "actors/connection/path_set.h"
#include "actors/connection/side.h"
#include "actors/connection/state.h"
#include "actors/eager.h"
#include "actors/send_channel.h"
#include "actors/server.h"
#include "ha/ledger.h"
#include "ha/rail_policy.h"
#include "ha/serving_set.h"

namespace nccl_ha {

/// Posts on the lanes that it is told to serve.  What has to be given up, replaced or sent once
/// more others decide (SendRecovery).  One thread.
class Sender final : public Server {
 public:
  class Owner {
   public:
    /// The device of that lane, a shadow's, does not take the caller's memory.
    virtual void on_memory_rejected(size_t lane, const Error& why) = 0;
    /// Memory of a message is not known on another rail of the device, of this host or at the peer:
    /// none of its lanes is of use for it.
    virtual void on_rail_rejected(uint8_t rail) = 0;
    /// The peer tells no key for a chunk on a shadow: traffic goes to a better lane.  False: none
    /// works, and the key will come.
    virtual bool give_way() = 0;
    /// The last eager message has arrived.
    virtual void on_eager_arrived() = 0;
    // As of fabric::PathOwner.
    virtual void on_fence_late(size_t lane) = 0;
    virtual void on_fence_proven(size_t lane) = 0;

   protected:
    ~Owner() = default;
  };
  /// What became of the chunks that a fenced lane held.
  struct TakenBack {
    bool good = true;  ///< else the connection has failed
    uint32_t chunks_again = 0;
    uint64_t bytes_again = 0;
    uint32_t chunks_kept = 0;
    uint64_t bytes_kept = 0;
  };

  Sender(const ConnectionParts& parts, Owner& owner, SendChannel& channel);

  /// The tables that paths are made for.
  PathSet::Needs needs();
  /// What the peer writes on a lane.
  CtsRing& ring(size_t lane) { return *announced_.ring(lane); }
  /// A path was made: its device may have a smaller longest write, or reorder.
  void adapt_to(const Lane& lane);
  /// The connection is ready, and lanes are served.  `peer_takes_eager`: Welcome::takes_eager.
  /// `hints` may be null.
  void begin(bool peer_takes_eager, std::shared_ptr<ha::HintSource> hints = nullptr);

  /// The lanes that carry data from now on, in proportion to their weights.
  void serve(std::span<const ha::ServingSet::Share> shares);
  /// No chunk is half posted: it ends on the path where it began.
  bool between_chunks() const { return cursor_.request == nullptr || cursor_.offset == 0; }
  /// Rails that are slow, by what this side measures.
  const ha::Stragglers& stragglers() const { return chooser_.stragglers(); }
  void release(size_t rail) { chooser_.release(rail); }
  ha::LoadMeter& meter() { return chooser_.meter(); }
  /// A lane is being taken down: a chunk that is half posted there waits for the fence with all
  /// that the lane holds.
  void leave(size_t lane);
  /// Only the fence of that lane tells whether the peer has all that was posted there.
  bool holds(size_t lane) const;
  /// After the fence: what the lane held and the peer did not get goes again; the rest counts as
  /// acknowledged.
  TakenBack take_back(size_t lane, const ha::ArrivalReport& report);
  /// Posts what waits, as far as there is room.
  void pump();
  /// The receiver has closed after receiving every group below whole.
  void acknowledge_all_below(uint64_t group);
  /// Nothing that was submitted is open.
  bool idle() const;
  const EagerSends& eager() const { return eager_; }

  // Server
  void on_submitted() override;
  bool poll_cts() override;
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
  void on_fence_late(fabric::Path& path) override { owner_.on_fence_late(paths_.index_of(&path)); }
  void on_fence_proven(fabric::Path& path) override {
    owner_.on_fence_proven(paths_.index_of(&path));
  }

 private:
  /// The chunks that are being posted; a full queue interrupts it at any point.
  struct Cursor {
    SendRequest* request = nullptr;
    uint32_t chunk = 0;
    uint32_t end = 0;     ///< the chunk after the last one to post
    uint32_t offset = 0;  ///< within the chunk: what plain writes have covered
    size_t lane = 0;      ///< of the chunk; LaneChooser::none: it is to be chosen
    bool untold = false;  ///< no event has told that the message was begun
  };
  struct Chunk {
    uint16_t request = 0;
    uint8_t chunk = 0;
  };
  struct Keys {
    uint32_t local = 0;
    uint32_t remote = 0;
  };
  /// The flight recorder is told by whoever knows why.
  void finish(SendRequest& request);
  void finish_at_once(SendRequest& request);
  void note_begun();
  void note_news(const ClearToSends::News& news);
  void post_all();
  bool next_work();
  bool begin_request(uint16_t index);
  bool chunk_holds(const SendRequest& request);
  bool on_no_keys(const Lane& lane);
  bool post_next();
  bool lane_works() const {
    return cursor_.lane != LaneChooser::none && paths_.lane(cursor_.lane).usable;
  }
  bool pick_lane();
  void end_chunk();
  [[gnu::noinline]] bool translate(const SendRequest& request, const Lane& lane, Keys& keys);
  void on_clear_to_send(const fabric::Completion& completion, Lane& lane);
  /// False: no such chunk is under way, and the connection has failed.
  bool on_acknowledged(uint64_t id, size_t lane);
  [[nodiscard]] bool has_left(const SendRequest& request, size_t lane);

  ConnectionState& state_;
  PathSet& paths_;
  ControlBoxes& boxes_;
  Liveness& liveness_;
  Owner& owner_;
  SendChannel& channel_;
  ConnectionCounters& counters_;
  ClearToSends announced_;
  std::shared_ptr<DataTables> tables_;  ///< what is written into the peer's
  uint32_t record_above_ = UINT32_MAX;  ///< longer chunks announce their end separately
  Cursor cursor_;
  LaneChooser chooser_;
  EagerSends eager_;
  std::deque<Chunk> replay_;
  ha::AcknowledgementLog<cts_slots, group_max> acknowledged_;
};

}  // namespace nccl_ha
