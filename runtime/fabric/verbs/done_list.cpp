#include "runtime/fabric/verbs/done_list.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/own_fd.h"

namespace nccl_ha::fabric::verbs {

Result<std::shared_ptr<DoneList>> DoneList::make() {
  std::shared_ptr<DoneList> made(new DoneList);
  made->event_ = make_fd([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (made->event_ < 0) {
    return fail(Errc::system, "cannot create what tells of an RDMA device's answers", errno);
  }
  return made;
}

DoneList::~DoneList() { close_fd(event_); }

void DoneList::add(const Done& done) {
  // With the lock: an owner that looks all along would else take what was added, and leave behind
  // a descriptor that is readable for ever.
  std::lock_guard lock(mutex_);
  if (waiting_.empty()) {
    const uint64_t one = 1;
    static_cast<void>(!write(event_, &one, sizeof one));  // fails only where it is readable anyway
  }
  waiting_.push_back(done);
  any_.store(true, std::memory_order_release);
}

std::vector<DoneList::Done> DoneList::take() {
  std::lock_guard lock(mutex_);
  uint64_t count = 0;
  static_cast<void>(!read(event_, &count, sizeof count));
  any_.store(false, std::memory_order_relaxed);
  return std::exchange(waiting_, {});
}

}  // namespace nccl_ha::fabric::verbs
