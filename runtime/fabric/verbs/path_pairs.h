// The queue pairs of a path, and the control verbs that make and lead them.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/fabric/own_memory.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/options.h"
#include "runtime/fabric/verbs/path_ends.h"
#include "runtime/fabric/verbs/port_objects.h"
#include "runtime/fabric/verbs/queue_pair.h"

namespace nccl_ha::fabric::verbs {

/// All but the answers is the conductor's, whose commands keep it until the device knows nothing of
/// it any more.
class PathPairs {
 public:
  /// What is known of a path before there is anything of it.
  struct Plan {
    std::shared_ptr<CompletionQueue> completions;
    uint32_t entries = 0;  ///< of it, which are reserved
    uint8_t port = 1;
    GidPreference gid;
    Options options;
    uint32_t sends_max = 0;
    uint32_t receives_max = 0;
    uint32_t flushes_max = 0;
    std::optional<uint64_t> domain;  ///< of its own; else the device's
    std::vector<std::shared_ptr<OwnMemory>> memory;
    uint32_t packet_sequence = 0;
  };
  struct Opened {
    PathEnds ends;
    ibv_qp* pair = nullptr;
    ibv_cq* completions = nullptr;
    Scratch* scratch = nullptr;
    uint32_t inline_max = 0;
  };
  struct Ready {
    std::optional<ibv_ece> ece;  ///< what both devices can do, where this one says
    ibv_qp* flush = nullptr;
  };

  PathPairs(Device& device, Plan plan);
  ~PathPairs();
  PathPairs(const PathPairs&) = delete;
  PathPairs& operator=(const PathPairs&) = delete;

  /// The worker's: whatever is not begun yet is for nobody.
  void leave() { wanted_.store(false, std::memory_order_relaxed); }

  // Commands.
  void open();
  /// `ends`: of both sides.
  void make_ready(const PathEnds& ends, const QueuePair::Connection& way);
  /// To ERR, what there is; nothing is made any more.  0 or an errno value.
  int stop();
  /// The same: the device knows them no more.
  int destroy();

  // Once the command is done, and once only.
  Result<Opened> take_opened() { return std::move(opened_); }
  Result<Ready> take_ready() { return std::move(ready_); }

 private:
  Result<Opened> try_open();
  Result<void> make_pair(const PathEnds& ends, Opened& made);
  Result<Ready> try_make_ready(const PathEnds& ends, const QueuePair::Connection& way);
  Result<void> make_flush_pair(const PathEnds& ends);
  std::optional<ibv_ece> ece() const;
  ibv_pd* protection() const { return domain_ ? domain_->get() : device_.pd(); }

  Device& device_;
  Plan plan_;
  std::shared_ptr<ProtectionDomain> domain_;
  QueuePair pair_{device_};
  QueuePair flush_{device_};
  bool ended_ = false;
  std::atomic<bool> wanted_{true};
  // Errors where a command ended for want of memory.
  Result<Opened> opened_ = fail(Errc::no_memory, "out of memory");
  Result<Ready> ready_ = fail(Errc::no_memory, "out of memory");
};

}  // namespace nccl_ha::fabric::verbs
