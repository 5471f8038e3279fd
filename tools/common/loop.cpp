#include "tools/common/loop.h"

#include <poll.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace nccl_ha::tools {

void Loop::watch(int fd, std::function<void()> ready) {
  watched_[fd] = std::make_shared<std::function<void()>>(std::move(ready));
}

void Loop::forget(int fd) { watched_.erase(fd); }

void Loop::at(Instant when, std::function<void()> task) { tasks_.emplace(when, std::move(task)); }

int Loop::timeout_ms() {
  if (tasks_.empty()) {
    return -1;
  }
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(tasks_.begin()->first - clock_.now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1000000));
}

void Loop::run() {
  while (!stopped_) {
    std::vector<pollfd> wait;
    for (const auto& [fd, ready] : watched_) {
      wait.push_back({fd, POLLIN, 0});
    }
    const int count = poll(wait.data(), wait.size(), timeout_ms());
    for (size_t i = 0; i < wait.size() && count > 0 && !stopped_; ++i) {
      if (wait[i].revents == 0) {
        continue;
      }
      // What ran before may have forgotten this one.
      if (const auto found = watched_.find(wait[i].fd); found != watched_.end()) {
        const auto ready = found->second;
        (*ready)();
      }
    }
    while (!stopped_ && !tasks_.empty() && tasks_.begin()->first <= clock_.now()) {
      auto task = std::move(tasks_.begin()->second);
      tasks_.erase(tasks_.begin());
      task();
    }
  }
}

}  // namespace nccl_ha::tools
