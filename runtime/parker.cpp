#include "runtime/parker.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace nccl_ha {

Result<std::unique_ptr<Parker>> Parker::make() {
  std::unique_ptr<Parker> parker(new Parker);
  parker->epoll_ = epoll_create1(EPOLL_CLOEXEC);
  parker->event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = parker->event_;
  if (parker->epoll_ < 0 || parker->event_ < 0 ||
      epoll_ctl(parker->epoll_, EPOLL_CTL_ADD, parker->event_, &event) != 0) {
    return fail(Errc::system, "cannot create what a progress thread sleeps on", errno);
  }
  return parker;
}

Parker::~Parker() {
  if (epoll_ >= 0) {
    close(epoll_);
  }
  if (event_ >= 0) {
    close(event_);
  }
}

void Parker::wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the sleeper wakes anyway.
  static_cast<void>(!write(event_, &one, sizeof one));
}

void Parker::watch(const std::vector<int>& fds) {
  for (const int fd : fds_) {
    if (std::find(fds.begin(), fds.end(), fd) == fds.end()) {
      // A descriptor closed meanwhile has left the set by itself.
      static_cast<void>(epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr));
    }
  }
  for (const int fd : fds) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    // A number may have been closed and reused since: adding again is refused then, which is fine
    // for one that is still the same.
    static_cast<void>(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event));
  }
  fds_ = fds;
}

void Parker::sleep(std::optional<Instant> deadline, Instant now) {
  int timeout_ms = -1;
  if (deadline) {
    const Duration left = std::max(*deadline - now, Duration{0});
    // Rounded up: waking before the deadline would only spin until it.
    const auto ms = (left.count() + 999'999) / 1'000'000;
    timeout_ms = static_cast<int>(std::min<int64_t>(ms, 1'000'000));
  }
  std::array<epoll_event, 16> events;
  const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int i = 0; i < count; ++i) {
    if (events[static_cast<size_t>(i)].data.fd == event_) {
      uint64_t value = 0;
      static_cast<void>(!read(event_, &value, sizeof value));
    }
  }
}

}  // namespace nccl_ha
