// What the paths of a port have of it: the device, time, settings, counters, and the lists in which
// they say that they have something to do.  One thread.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/done_list.h"
#include "runtime/fabric/verbs/options.h"
#include "runtime/fabric/verbs/path_lists.h"
#include "runtime/fabric/verbs/port_services.h"
#include "runtime/fabric/verbs/work_id.h"

namespace nccl_ha::fabric::verbs {

/// Where a port has put a path: in its table, and in one of its completion queues.
struct PathPlace {
  uint32_t slot = 0;
  uint16_t generation = 0;
  size_t queue = 0;
  uint32_t entries = 0;  ///< of the completion queue, reserved for it

  WorkId ids(WorkId::Lane lane) const { return {slot, generation, lane, 0}; }
};

/// Knows the paths by their places.
class PathTable {
 public:
  /// From the path's destructor.
  virtual void remove(VerbsPath& path) = 0;

 protected:
  ~PathTable() = default;
};

/// The port has it, by value, so that a path is one step away from all of it; it outlives the
/// paths.
struct PathEnvironment : PortServices {
  PathEnvironment(const PortServices& services, const UsablePort& its_port,
                  std::shared_ptr<DoneList> its_done, const Options& settings,
                  const std::string& name, bool& its_pending_work, PathTable& its_table)
      : PortServices(services),
        device(its_port.device),
        info(its_port.info),
        done(std::move(its_done)),
        options(settings),
        counter_block(services.counters, name),
        table(its_table),
        pending_work_(its_pending_work) {}
  ~PathEnvironment() { timers->cancel(progress_timer); }
  PathEnvironment(const PathEnvironment&) = delete;
  PathEnvironment& operator=(const PathEnvironment&) = delete;

  const std::shared_ptr<Device> device;
  const PortInfo info;  ///< as it was when the device was opened
  const std::shared_ptr<DoneList> done;
  const Options options;
  CounterBlock<VerbsPortCounters> counter_block;
  VerbsPortCounters& statistics = *counter_block;
  PostedList posted;
  RefillList refills;
  PathList states;       ///< changed, and the owner is to be told
  PathList fences;       ///< broken, and perhaps not dead yet
  Timer progress_timer;  ///< armed while the device has work: does it get on with it?
  PathTable& table;

  void mark_posted(PathLinks& links) {
    if (posted.push(links)) {
      pending_work_ = true;
    }
  }
  void mark_refill(PathLinks& links) {
    refills.push(links);
    pending_work_ = true;
  }
  void queue_state(VerbsPath& path, PathLinks& links) {
    links.state_listed = true;
    states.push(path);
    pending_work_ = true;
  }
  void add_fence(VerbsPath& path) {
    fences.push(path);
    pending_work_ = true;
  }
  /// Tells the owners; returns how many.
  unsigned report_states();
  /// The device was given work.
  void watch_posts() {
    if (!progress_timer.armed()) [[unlikely]] {
      arm_progress_timer();
    }
  }
  [[gnu::noinline]] void arm_progress_timer();

 private:
  bool& pending_work_;  ///< the port's: a list has something in it
};

}  // namespace nccl_ha::fabric::verbs
