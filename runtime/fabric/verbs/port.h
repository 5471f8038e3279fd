// One device port on one worker: completion queues, the completion channel to sleep on, and the
// queue pairs that share them.  Owner thread only.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/engine/poller.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/options.h"
#include "runtime/telemetry/counter_file.h"

namespace nccl_ha::fabric::verbs {

class VerbsPath;

/// What a work request id says.  An id of a queue pair that is gone must not be taken for one of
/// its successor, so it carries a generation.
struct WorkId {
  enum class Lane : uint8_t { send = 0, receive = 1, flush = 2 };
  uint32_t path = 0;  ///< slot in the port's table
  uint16_t generation = 0;
  Lane lane = Lane::send;
  uint32_t position = 0;  ///< in the lane's ring, modulo 2^22

  static constexpr uint32_t position_mask = (1U << 22) - 1;
  constexpr uint64_t pack() const {
    return uint64_t{generation} << 48 | uint64_t{path & 0xFFFFFFU} << 24 |
           uint64_t{static_cast<uint8_t>(lane)} << 22 | (position & position_mask);
  }
  static constexpr WorkId unpack(uint64_t id) {
    return {static_cast<uint32_t>(id >> 24) & 0xFFFFFFU, static_cast<uint16_t>(id >> 48),
            static_cast<Lane>((id >> 22) & 3U), static_cast<uint32_t>(id) & position_mask};
  }
};
static_assert(WorkId::unpack(WorkId{5, 9, WorkId::Lane::flush, 77}.pack()).position == 77);

class Port final : public Poller {
 public:
  struct Environment {
    Clock* clock = nullptr;  ///< the turn's
    TimerWheel* timers = nullptr;
    Random* random = nullptr;
    const LostTime* lost = nullptr;  ///< time in which nobody could look; may be null
    CounterPlace counters = {};
  };

  static Result<std::shared_ptr<Port>> open(std::shared_ptr<Device> device, uint8_t number,
                                            const Options& options, const Environment& environment);
  ~Port() override;

  /// `gid`: which entry to use, chosen at the time; nullopt on InfiniBand without GRH.  The path is
  /// the caller's; it must be destroyed before the port.
  Result<std::unique_ptr<Path>> create_path(const PathOptions& path_options,
                                            const GidPreference& want, PathOwner* owner);

  // Poller
  std::string name() const override;
  unsigned poll(Clock& time) override;
  unsigned push(Clock& time) override;
  /// The device answers the peer by itself; what is left are deaths to report, and receives that
  /// were held back.
  Duration max_poll_gap() const override { return std::chrono::milliseconds(10); }
  size_t wait_fds(std::span<int> out) const override;
  bool prepare_sleep() override;

  const VerbsPortCounters& statistics() const { return statistics_; }
  Device& device() { return *device_; }
  uint8_t number() const { return number_; }

 private:
  friend class VerbsPath;

  /// Completion queues have a fixed room; paths are put where there is enough of it left.
  struct Queue {
    ibv_cq* cq = nullptr;
    uint32_t room = 0;
    uint32_t used = 0;
    unsigned events = 0;  ///< to acknowledge
  };
  /// Where a path's slot is: a stale completion names another generation.
  struct Slot {
    VerbsPath* path = nullptr;
    uint16_t generation = 0;
  };

  Port(std::shared_ptr<Device> device, uint8_t number, const Options& options,
       const Environment& environment);
  Result<size_t> find_queue(uint32_t entries);
  Result<void> prepare_scratch();
  void remove(VerbsPath& path);
  void mark_dirty(VerbsPath& path);
  void unlist_dirty(VerbsPath& path);
  void watch_posts() {
    if (!watch_.armed()) [[unlikely]] {
      arm_watch();
    }
  }
  [[gnu::noinline]] void arm_watch();
  unsigned flush_posts();
  unsigned do_chores(unsigned work);
  /// The path holds back more receives than it may.
  void be_thirsty(VerbsPath& path);
  void hand_over_receives();
  static constexpr int batch = 32;  ///< completions taken at once
  unsigned poll_queue(Queue& queue);
  unsigned take_completions(Queue& queue, std::array<ibv_wc, batch>& completions, int got);
  void take_events();
  void empty(size_t queue);
  void add_fence(VerbsPath& path);
  void take_for_failed();
  unsigned look_at_fences();
  void queue_state(VerbsPath& path);
  unsigned report_states();
  void watch_progress();
  unsigned fail_all();

  std::shared_ptr<Device> device_;
  const Library& library_;
  const uint8_t number_;
  const Options options_;
  Environment env_;
  ibv_comp_channel* channel_ = nullptr;
  std::vector<Queue> queues_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  VerbsPath* dirty_ = nullptr;  ///< with posts that the device does not have yet, oldest first
  VerbsPath* last_dirty_ = nullptr;
  std::vector<VerbsPath*> needs_rx_refill_;  ///< with receives that the device does not have yet
  std::vector<VerbsPath*> state_events_;
  std::vector<VerbsPath*> fences_;  ///< broken, and perhaps not dead yet
  bool armed_ = false;              // this and what the lists hold are Poller's pending work
  bool lost_ = false;               ///< the device failed and the paths were told
  Timer watch_;
  // Where probes come from and go to, and where flushes read to: nobody looks at it.
  std::vector<std::byte> scratch_;
  Region scratch_region_{};
  CounterBlock<VerbsPortCounters> counters_;
  VerbsPortCounters& statistics_ = *counters_;
};

}  // namespace nccl_ha::fabric::verbs
