#include "runtime/streams/uv_room.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace nccl_ha {
namespace {

/// Closes at its end what it holds.
class Held {
 public:
  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    for (size_t i = 0; i < count_; ++i) {
      close(fds_[i]);
    }
  }
  bool add(int fd) {
    if (fd >= 0) {
      fds_[count_++] = fd;
    }
    return fd >= 0;
  }
  bool add_pipe() {
    int ends[2];
    return pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0 && add(ends[0]) && add(ends[1]);
  }

 private:
  std::array<int, 6> fds_{};
  size_t count_ = 0;
};

}  // namespace

Result<void> probe_uv_loop() {
  Held held;
  // Its poll set, the pipe that serialises signals of all loops, this loop's own, its wake-up.
  const bool enough = held.add(epoll_create1(EPOLL_CLOEXEC)) && held.add_pipe() &&
                      held.add_pipe() && held.add(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return enough ? Result<void>() : fail(Errc::system, "cannot create an event loop", errno);
}

int hold_in_set(int set, int fd) {
  epoll_event nothing{};
  nothing.data.fd = fd;
  return epoll_ctl(set, EPOLL_CTL_ADD, fd, &nothing) == 0 || errno == EEXIST ? 0 : errno;
}

Error not_held(int error) {
  return fail(Errc::system,
              "the kernel watches no more descriptors for this user (raise "
              "fs.epoll.max_user_watches with sysctl)",
              error);
}

}  // namespace nccl_ha
