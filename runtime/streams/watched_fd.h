// A descriptor of one's own under a watch.
#pragma once

#include <memory>
#include <utility>

#include "runtime/base/own_fd.h"
#include "runtime/streams/stream.h"

namespace nccl_ha {

/// Closes the descriptor at its end.  What reads it may be destroyed by those that it tells.
class WatchedFd : private FdWatchOwner {
 public:
  explicit WatchedFd(int fd) : fd_(OwnFds().add(fd)) {}
  ~WatchedFd() override {
    watch_.reset();  // the descriptor must outlive it
    close_fd(fd_);
    *alive_ = false;
  }
  WatchedFd(const WatchedFd&) = delete;
  WatchedFd& operator=(const WatchedFd&) = delete;

  Result<void> watch(StreamFactory& factory) {
    auto watch = factory.watch_fd(fd_, this);
    if (!watch) {
      return watch.error();
    }
    watch_ = std::move(*watch);
    return {};
  }

 protected:
  /// Becomes false when this object is destroyed, which it outlives.
  std::shared_ptr<const bool> alive() const { return alive_; }

 private:
  const int fd_;
  std::unique_ptr<FdWatch> watch_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace nccl_ha
