// What a conductor has done for the paths of a port.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/base/result.h"

namespace nccl_ha::fabric::verbs {

/// The conductor's thread adds, the port's takes; a descriptor wakes the port's from its sleep.
class DoneList {
 public:
  enum class Step : uint8_t {
    opened,  ///< PathPairs::take_opened() says what came of it
    ready,   ///< PathPairs::take_ready() does
    ending,  ///< its fence may move
  };
  struct Done {
    uint32_t slot = 0;  ///< with the generation: whose
    uint16_t generation = 0;
    Step step{};
  };

  static Result<std::shared_ptr<DoneList>> make();
  ~DoneList();
  DoneList(const DoneList&) = delete;
  DoneList& operator=(const DoneList&) = delete;

  void add(const Done& done);
  /// Owner only.
  bool any() const { return any_.load(std::memory_order_acquire); }
  std::vector<Done> take();
  /// Readable while any() may be true.
  int fd() const { return event_; }

 private:
  DoneList() = default;

  int event_ = -1;
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::vector<Done> waiting_;
};

}  // namespace nccl_ha::fabric::verbs
