// Two ends of a path for the contract suite, whatever provider carries it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::test {

/// Records what a path tells its owner.
class RecordingOwner final : public fabric::PathOwner {
 public:
  void on_completion(const fabric::Completion& completion) override {
    completions.push_back(completion);
    if (hook) {
      hook(completion);
    }
  }
  void on_path_state(fabric::Path&, fabric::PathState state, const Error& error) override {
    states.push_back(state);
    if (state == fabric::PathState::error) {
      last_error = error;
    }
  }
  size_t count(fabric::CompletionKind kind, fabric::CompletionStatus status) const {
    size_t n = 0;
    for (const auto& c : completions) {
      n += c.kind == kind && c.status == status ? 1 : 0;
    }
    return n;
  }
  std::vector<fabric::Completion> completions;
  std::vector<fabric::PathState> states;
  Error last_error{};
  std::function<void(const fabric::Completion&)> hook;
};

/// A provider under test: makes pairs of paths and lets time pass.
class PathHarness {
 public:
  virtual ~PathHarness() = default;
  /// Of registered memory.
  struct Keys {
    uint32_t local = 0;
    uint32_t remote = 0;
    uint64_t handle = 0;  ///< the provider's
  };
  struct End {
    RecordingOwner owner;
    std::unique_ptr<fabric::Path> path;
    std::function<Keys(void*, size_t)> add;
    std::function<void(Keys)> remove;
    /// Of another connection.
    std::function<Keys(void*, size_t)> add_foreign;
  };
  /// `side` 0 or 1.
  virtual std::unique_ptr<End> make_end(int side, fabric::PathOptions options) = 0;
  /// Turns both sides until `done` or the time (of the harness's clock) is up; false then.
  virtual bool run_until(const std::function<bool()>& done, Duration limit) = 0;
  virtual bool lossy() const { return false; }
  /// What the device reports where hardware reports `status`: Soft-RoCE knows fewer words.
  virtual fabric::CompletionStatus reported(fabric::CompletionStatus status) const {
    return status;
  }
  /// One protection domain per device: a peer may write whatever it has a key for.
  virtual bool shares_memory() const { return false; }
  /// From now on nothing gets through in either direction.
  virtual void cut() = 0;
};

using HarnessFactory = std::function<std::unique_ptr<PathHarness>()>;
std::unique_ptr<PathHarness> make_memory_harness(uint64_t seed, double drop, double duplicate,
                                                 double reorder, uint32_t mtu);
std::unique_ptr<PathHarness> make_udp_harness(double drop, double duplicate, double reorder,
                                              uint32_t mtu);
/// Over the first usable RDMA port, which have_verbs() says that there is.
std::unique_ptr<PathHarness> make_verbs_harness();
std::unique_ptr<PathHarness> make_ud_harness(double drop, double duplicate, double reorder);
bool have_verbs();

}  // namespace nccl_ha::test
