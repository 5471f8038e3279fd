// Which of the lanes that serve carries the next chunk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "actors/connection/path_set.h"
#include "actors/connection/state.h"
#include "actors/request.h"
#include "actors/send_channel.h"
#include "ha/load_meter.h"
#include "ha/rail_policy.h"
#include "ha/rail_scheduler.h"
#include "ha/rotation.h"
#include "ha/serving_set.h"
#include "ha/stragglers.h"

namespace nccl_ha {

/// Lanes on one NIC share a message by their weights, or take turns.  Lanes on several rails get it
/// chunk by chunk, as an agent hints or as each rail delivers.  One thread.
class LaneChooser {
 public:
  /// For a chunk that waits until a rail has less to do.
  static constexpr size_t none = SIZE_MAX;

  LaneChooser(ConnectionState& state, PathSet& paths, const SendChannel& channel)
      : state_(state), paths_(paths), channel_(channel) {}
  /// The handshake is over; `hints` may be null.
  void begin(std::shared_ptr<ha::HintSource> hints);

  /// The lanes that carry data from now on.  False: they do so already.
  bool serve(std::span<const ha::ServingSet::Share> shares);
  size_t count() const { return share_count_; }
  /// Chunks go over several rails.
  bool spreads() const { return spreads_; }

  /// Cuts a message for the lanes as they are.
  void cut(SendRequest& request);
  /// For a chunk of a message that was cut before, which may have been for other lanes.  Among
  /// rails each call is a decision, and `none` is one.
  size_t lane_for(const SendRequest& request, uint32_t chunk) {
    return share_count_ > 1 ? lane_among(request, chunk) : size_t{shares_[0].lane};
  }
  /// For a message of so many bytes that is not cut, likewise.
  size_t lane_for(uint32_t bytes) { return spreads_ ? spread(bytes, 0, bytes) : in_turn(); }
  size_t in_turn() { return share_count_ > 1 ? shares_[rotation_.next()].lane : shares_[0].lane; }
  /// Another one than was chosen, as that does not work; `none`: nothing does.
  size_t any_usable();
  /// Another one, as memory of that message is not known on the rail of `not_on`.
  size_t on_another_rail(size_t not_on) const;

  /// lane.bytes_open is still without them.  Where nothing is measured no clock is read: a turn
  /// that knows the time looks at timers as well.
  void on_posted(const Lane& lane, uint64_t bytes) {
    if (measures_ || meters_) {
      measure_posted(lane, bytes);
    }
  }
  void on_delivered(const Lane& lane, uint64_t bytes, bool good) {
    if (measures_ || meters_) {
      measure_delivered(lane, bytes, good);
    }
  }
  /// See ha/invariant.h.
  const char* broken() const { return rotation_.broken(); }
  const ha::RailScheduler& scheduler() const { return scheduler_; }
  const ha::Stragglers& stragglers() const { return stragglers_; }
  /// What the lanes that serve deliver, all together.
  ha::LoadMeter& meter() { return meter_; }
  /// A rail that was fenced off for being slow gets its chance.
  void release(size_t rail);

 private:
  using Rails = std::array<ha::RailScheduler::Load, ha::device_rails_max>;
  Rails rails() const;
  uint64_t open_on(uint8_t rail) const;
  std::optional<uint32_t> hinted_parts(uint32_t size);
  size_t lane_among(const SendRequest& request, uint32_t chunk);
  size_t spread(uint32_t size, uint32_t begin, uint32_t bytes);
  [[gnu::noinline]] void measure_posted(const Lane& lane, uint64_t bytes);
  [[gnu::noinline]] void measure_delivered(const Lane& lane, uint64_t bytes, bool good);
  void look_for_stragglers(Instant now);
  void tell_straggler(size_t rail, double behind);
  uint64_t promised(size_t rail) const;
  /// That with the least under way.
  size_t lane_on(size_t rail) const;

  ConnectionState& state_;
  PathSet& paths_;
  const SendChannel& channel_;
  std::shared_ptr<ha::HintSource> hints_;
  size_t share_count_ = 0;
  std::array<ha::ServingSet::Share, lanes_max> shares_{};
  std::array<uint32_t, lanes_max> weights_{};  ///< of all lanes; 0: carries nothing
  ha::Rotation rotation_;
  bool spreads_ = false;
  bool measures_ = false;  ///< there are several rails
  bool meters_ = false;    ///< there is something to move to
  ha::LoadMeter meter_;
  ha::RailScheduler scheduler_;
  ha::ShareAccumulator accumulator_;
  uint32_t parts_noted_ = UINT32_MAX;  ///< the hint that the flight recorder has
  ha::Stragglers stragglers_;
  Instant look_at_{};  ///< for stragglers
};

}  // namespace nccl_ha
