// The end of a simulated run: all that is open is closed, in any order, and nothing is left of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "tests/rig/runs/stage.h"

namespace nccl_ha::rig {

class Closing {
 public:
  explicit Closing(Stage& stage);
  /// Besides those of the stage: some connect to a listener whose owner never accepts.
  void make_links();
  /// Callers of connections that nobody accepts.
  void step();
  /// Closes some more.  True: all is closed, and the processes have forgotten it.
  bool step_closing();
  /// Of processes that have closed all; empty: nothing is left there.
  std::string left_over() const;
  /// They finalize the plugin, or end.  Empty: it gave everything back.
  std::string end_processes();

 private:
  struct Open {
    SimLink* link = nullptr;
    void (SimLink::*close)() = nullptr;
  };
  Stage& stage_;
  Random random_;
  std::vector<std::unique_ptr<SimLink>> unaccepted_;
  std::vector<Open> open_;
  bool begun_ = false;
};

}  // namespace nccl_ha::rig
