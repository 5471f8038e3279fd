#include "runtime/fabric/verbs/port_objects.h"

#include <fmt/format.h>

#include <cerrno>

#include "runtime/base/check.h"

namespace nccl_ha::fabric::verbs {

Result<void> PortObjects::open_scratch() {
  return scratch_.is_open() ? Result<void>() : scratch_.open(device_.pd());
}

Result<void> CompletionQueue::open() {
  if (queue_ != nullptr) {
    return {};
  }
  const Device& device = port_->device();
  queue_ = device.library().completion.create_queue(device.context(), static_cast<int>(room_),
                                                    owner_, port_->channel(), 0);
  if (queue_ == nullptr) {
    const int error = errno;
    return fail(Errc::system,
                fmt::format("RDMA device {}: cannot create a completion queue of {} entries{}",
                            device.name(), room_, memlock_hint(error)),
                error);
  }
  return {};
}

CompletionQueue::~CompletionQueue() {
  NHA_DASSERT(used_.load() == 0, "queue pairs give the room for their completions back");
  if (queue_ != nullptr) {
    static_cast<void>(port_->device().library().completion.destroy_queue(queue_));
  }
}

}  // namespace nccl_ha::fabric::verbs
