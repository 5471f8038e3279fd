#include "runtime/fabric/datagram/path_environment.h"

#include "runtime/fabric/datagram/datagram_path.h"

namespace nccl_ha::fabric {

void PathEnvironment::enter(DatagramPath& path) {
  completions.reserve(path.completions_max());  // without memory for that nothing has happened
  paths.enter(path, path.id(), path.fallback());
  wake();
}

void PathEnvironment::leave(DatagramPath& path) {
  paths.leave(path.id(), path.fallback());
  completions.forget(path, &path, path.completions_max());
  ready.remove(path.ready_link());
  resends.remove_if([&](const Segment& segment) { return segment.path == &path; });
}

}  // namespace nccl_ha::fabric
