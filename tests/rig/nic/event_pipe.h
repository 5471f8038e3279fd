// Events that wait until they are read from a descriptor, as the kernel keeps them: what is about
// an object that is gone is taken out again.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <mutex>
#include <utility>

namespace nccl_ha::emulated {

/// Any thread.
template <class Event>
class EventPipe {
 public:
  EventPipe() {
    int ends[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC) == 0) {
      fcntl(ends[1], F_SETFL, O_NONBLOCK);
      fd_ = ends[0];
      write_end_ = ends[1];
    }
  }
  ~EventPipe() {
    close(fd_);
    end();
  }
  EventPipe(const EventPipe&) = delete;
  EventPipe& operator=(const EventPipe&) = delete;

  /// The user's: it may make it non-blocking.
  int fd() const { return fd_; }
  /// What waits can be read; then there is EIO, and who polls hears of it, as uverbs has it for a
  /// descriptor that it has closed.
  void end() {
    const std::lock_guard lock(mutex_);
    if (write_end_ >= 0) {
      close(std::exchange(write_end_, -1));
    }
  }
  void push(const Event& event) {
    const std::lock_guard lock(mutex_);
    if (write(write_end_, "", 1) == 1) {  // a byte for each
      events_.push_back(event);
    }
  }
  /// `taken` is called with it, before drop() can be.  False when there is none, with errno.
  template <class Taken>
  bool pop(Event* event, const Taken& taken) {
    char byte = 0;
    if (const ssize_t got = read(fd_, &byte, 1); got != 1) {
      errno = got == 0 ? EIO : errno;
      return false;
    }
    const std::lock_guard lock(mutex_);
    if (events_.empty()) {  // it was dropped meanwhile
      errno = EAGAIN;
      return false;
    }
    *event = events_.front();
    events_.pop_front();
    taken(*event);
    return true;
  }
  template <class Which>
  void drop(const Which& which) {
    const std::lock_guard lock(mutex_);
    for (size_t left = std::erase_if(events_, which); left != 0; --left) {
      pollfd ready{fd_, POLLIN, 0};
      char byte = 0;
      if (::poll(&ready, 1, 0) == 1) {
        static_cast<void>(!read(fd_, &byte, 1));
      }
    }
  }

 private:
  std::mutex mutex_;
  std::deque<Event> events_;
  int fd_ = -1;
  int write_end_ = -1;
};

}  // namespace nccl_ha::emulated
