#include "runtime/fabric/verbs/path_environment.h"

#include <utility>

#include "runtime/fabric/verbs/verbs_path.h"

namespace nccl_ha::fabric::verbs {
namespace {

constexpr int looks_per_limit = 8;

}  // namespace

unsigned PathEnvironment::report_states() {
  unsigned count = 0;
  for (size_t i = 0; i < states.size(); ++i) {
    VerbsPath* path = states[i];
    if (path != nullptr && std::exchange(path->links().state_listed, false)) {
      ++count;
      path->report_state();
    }
  }
  states.clear();
  return count;
}

void PathEnvironment::arm_progress_timer() {
  timers->arm(progress_timer, clock->now() + options.dead_after / looks_per_limit);
}

}  // namespace nccl_ha::fabric::verbs
