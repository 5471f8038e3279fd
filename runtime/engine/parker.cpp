#include "runtime/engine/parker.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"

namespace nccl_ha {
namespace {

/// How long a thread sleeps while it does not hear of something that it waits for.
constexpr int half_deaf_ms = 1;

/// Milliseconds, rounded up: waking before the deadline would only spin until it.
int timeout_until(Instant deadline, Instant now) {
  const Duration left = std::max(deadline - now, Duration{0});
  const auto ms = (left.count() + 999'999) / 1'000'000;
  return static_cast<int>(std::min<int64_t>(ms, 1'000'000));
}

}  // namespace

Result<std::unique_ptr<Parker>> Parker::make() {
  std::unique_ptr<Parker> parker(new Parker);
  parker->event_ = make_fd([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (parker->event_ < 0 || !parker->renew()) {
    return fail(Errc::system, "cannot create what a progress thread sleeps on", errno);
  }
  return parker;
}

Parker::~Parker() {
  close_fd(epoll_);
  close_fd(event_);
}

void Parker::wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the sleeper wakes anyway.
  static_cast<void>(!write(event_, &one, sizeof one));
}

bool Parker::renew() {
  const int fresh = make_fd([] { return epoll_create1(EPOLL_CLOEXEC); });
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = event_;
  if (fresh < 0 || epoll_ctl(fresh, EPOLL_CTL_ADD, event_, &event) != 0) {
    close_fd(fresh);
    return false;
  }
  close_fd(epoll_);
  epoll_ = fresh;
  return true;
}

void Parker::watch(std::vector<int> fds) {
  const bool shrinks = std::any_of(fds_.begin(), fds_.end(), [&](int fd) {
    return std::find(fds.begin(), fds.end(), fd) == fds.end();
  });
  // What is no longer wanted may have been closed, and its number may be somebody else's by now:
  // it is not touched.  A new set is made instead; without one the old set merely wakes too often.
  if (shrinks) {
    static_cast<void>(renew());
  }
  int error = 0;
  for (const int fd : fds) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    // A number may have been closed and reused since: adding again is refused then, which is fine
    // for one that is still the same.
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0 && errno != EEXIST) {
      error = errno;
    }
  }
  if (error != 0 && whole_) {
    NHA_LOG_WARN(
        "a progress thread cannot sleep until something comes, and looks every millisecond "
        "instead: {} (fs.epoll.max_user_watches?)",
        std::strerror(error));
  }
  whole_ = error == 0;
  fds_ = std::move(fds);
}

void Parker::take_wakes() {
  uint64_t value = 0;
  static_cast<void>(!read(event_, &value, sizeof value));
}

void Parker::wait_until(Instant deadline, Instant now) {
  pollfd wakes{event_, POLLIN, 0};
  if (poll(&wakes, 1, timeout_until(deadline, now)) > 0) {
    take_wakes();
  }
}

void Parker::sleep(std::optional<Instant> deadline, Instant now) {
  int timeout_ms = deadline ? timeout_until(*deadline, now) : -1;
  if (!whole_) {
    timeout_ms = deadline ? std::min(timeout_ms, half_deaf_ms) : half_deaf_ms;
  }
  std::array<epoll_event, 16> events;
  const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int i = 0; i < count; ++i) {
    if (events[static_cast<size_t>(i)].data.fd == event_) {
      take_wakes();
    }
  }
}

}  // namespace nccl_ha
