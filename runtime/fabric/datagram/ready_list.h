// Paths of a port that have something to send and may, in turn.
#pragma once

#include "runtime/base/linked_queue.h"

namespace nccl_ha::fabric {

class DatagramPath;

/// A path's place in the list.
struct ReadyLink {
  explicit ReadyLink(DatagramPath& its_path) : path(its_path) {}
  DatagramPath& path;
  QueueLink<ReadyLink> link;
};

using ReadyList = LinkedQueue<ReadyLink, &ReadyLink::link>;

}  // namespace nccl_ha::fabric
