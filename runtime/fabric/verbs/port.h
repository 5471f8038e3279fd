// One device port on one worker: completion queues, the completion channel to sleep on, and the
// queue pairs that share them.  Owner thread only.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/poller.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/options.h"
#include "runtime/fabric/verbs/path_environment.h"
#include "runtime/fabric/verbs/port_objects.h"

namespace nccl_ha::fabric::verbs {

class Port final : public Poller, private PathTable {
 public:
  using Environment = PortServices;

  static Result<std::shared_ptr<Port>> open(const UsablePort& port, const Options& options,
                                            const Environment& environment);
  ~Port() override;

  /// The device makes it later, and the owner hears of it (Path::address_ready).  `want`: which
  /// entry to use, chosen at the time.  The path is the caller's; it must be destroyed before the
  /// port.
  Result<std::unique_ptr<Path>> create_path(const PathOptions& path_options,
                                            const GidPreference& want, PathOwner* owner);

  /// Of one completion queue, where the device has them.
  static constexpr uint32_t queue_entries_max = 16383;
  /// Of them, for a path that is made so.
  static uint32_t entries_of(const PathOptions& path_options);

  // Poller
  std::string name() const override;
  unsigned poll(Clock& time) override;
  unsigned push(Clock& time) override;
  /// The device answers the peer by itself; what is left are deaths to report, and receives that
  /// were held back.
  Duration max_poll_gap() const override { return std::chrono::milliseconds(10); }
  size_t wait_fds(std::span<int> out) const override;
  bool prepare_sleep() override;

  const VerbsPortCounters& statistics() const { return env_.statistics; }
  Device& device() { return *env_.device; }

 private:
  struct Queue {
    std::shared_ptr<CompletionQueue> shared;  ///< with the queue pairs that complete there
    ibv_cq* cq = nullptr;                     ///< null until the device has made it
    unsigned events = 0;                      ///< to acknowledge
    bool lost = false;                        ///< it takes nothing any more, and no further path
  };
  /// Where a path's slot is: a stale completion names another generation.
  struct Slot {
    VerbsPath* path = nullptr;
    uint16_t generation = 0;
  };

  Port(const UsablePort& port, std::shared_ptr<PortObjects> objects, std::shared_ptr<DoneList> done,
       const Options& options, const Environment& environment);
  // PathTable
  void remove(VerbsPath& path) override;

  size_t find_queue(uint32_t entries);
  VerbsPath* find(uint32_t slot, uint16_t generation) const {
    return slot < slots_.size() && slots_[slot].generation == generation ? slots_[slot].path
                                                                         : nullptr;
  }
  /// What the conductor has done.
  unsigned take_done();
  unsigned do_pending_work(unsigned work);
  /// Posts of all paths that wait for the doorbell.
  unsigned post_waiting();
  void post_held_receives();
  unsigned move_fences();
  static constexpr int batch = 32;  ///< completions taken at once
  unsigned poll_queue(Queue& queue);
  unsigned take_completions(Queue& queue, std::array<ibv_wc, batch>& completions, int got);
  void take_events();
  void drain(size_t queue);
  /// Queues that failed alone, as the device's events say.
  unsigned take_faults();
  unsigned retire(Queue& queue);
  void check_progress();
  unsigned fail_all();
  /// Those that `is(path)` holds for.
  template <class Is>
  unsigned fail_paths(const char* what, const Is& is);

  PathEnvironment env_;
  std::shared_ptr<PortObjects> objects_;
  std::vector<Queue> queues_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  bool armed_ = false;  // this and what the environment's lists hold are Poller's pending work
  bool lost_ = false;   ///< the device failed and the paths were told
  uint64_t faults_seen_ = 0;
};

}  // namespace nccl_ha::fabric::verbs
