// Two ends of a path for the contract suite, whatever provider carries it.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
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
  void on_path_address(fabric::Path&) override { ++addresses; }
  void on_path_link_down(fabric::Path&, const Error& why) override { links_down.push_back(why); }
  void on_fence_stuck(fabric::Path&, const Error& error) override { fence_error = error; }
  void on_fence_late(fabric::Path&) override { ++fences_late; }
  void on_fence_proven(fabric::Path&) override { ++fences_proven; }
  size_t count(fabric::CompletionKind kind, fabric::CompletionStatus status) const {
    size_t n = 0;
    for (const auto& c : completions) {
      n += c.kind == kind && c.status == status ? 1 : 0;
    }
    return n;
  }
  std::vector<fabric::Completion> completions;
  std::vector<fabric::PathState> states;
  std::vector<Error> links_down;
  size_t addresses = 0;  ///< told
  size_t fences_late = 0;
  size_t fences_proven = 0;
  Error last_error{};
  Error fence_error{};
  std::function<void(const fabric::Completion&)> hook;
};

/// Of registered memory.
struct PathKeys {
  uint32_t local = 0;
  uint32_t remote = 0;
  uint64_t handle = 0;  ///< the provider's
};

/// One end, with its memory.
struct PathEnd {
  RecordingOwner owner;
  std::unique_ptr<fabric::Path> path;
  std::function<PathKeys(void*, size_t)> add;
  std::function<void(PathKeys)> remove;
  /// Of another connection.
  std::function<PathKeys(void*, size_t)> add_foreign;
};

/// One host: makes an end on real time, here or in another machine.
class PathSide {
 public:
  virtual ~PathSide() = default;
  virtual std::unique_ptr<PathEnd> make_end(fabric::PathOptions options) = 0;
  /// One pass.  What arrived before it is in memory afterwards.
  virtual void turn() = 0;
  virtual bool lossy() const { return false; }
  /// What the device reports where hardware reports `status`: Soft-RoCE knows fewer words.
  virtual fabric::CompletionStatus reported(fabric::CompletionStatus status) const {
    return status;
  }
  /// One protection domain per device: a peer may write whatever it has a key for.
  virtual bool shares_memory() const { return false; }
  /// From now on nothing that this side sends gets through.  Only one side may be able to; the
  /// harness asks both.
  virtual void cut() = 0;
};

/// A provider under test: makes pairs of paths and lets time pass.
class PathHarness {
 public:
  using Keys = PathKeys;
  using End = PathEnd;
  virtual ~PathHarness() = default;
  /// `side` 0 or 1.
  virtual std::unique_ptr<End> make_end(int side, fabric::PathOptions options) = 0;
  /// Turns both sides until `done` or the time (of the harness's clock) is up; false then.
  virtual bool run_until(const std::function<bool()>& done, Duration limit) = 0;
  virtual bool lossy() const { return false; }
  virtual fabric::CompletionStatus reported(fabric::CompletionStatus status) const {
    return status;
  }
  virtual bool shares_memory() const { return false; }
  /// From now on nothing gets through in either direction.
  virtual void cut() = 0;
};

/// Two sides on real time.
class PairHarness final : public PathHarness {
 public:
  PairHarness(std::unique_ptr<PathSide> first, std::unique_ptr<PathSide> second)
      : sides_{std::move(first), std::move(second)} {}
  std::unique_ptr<End> make_end(int side, fabric::PathOptions options) override {
    return sides_[static_cast<size_t>(side)]->make_end(options);
  }
  bool run_until(const std::function<bool()>& done, Duration limit) override;
  bool lossy() const override { return sides_[0]->lossy(); }
  fabric::CompletionStatus reported(fabric::CompletionStatus status) const override {
    return sides_[0]->reported(status);
  }
  bool shares_memory() const override { return sides_[0]->shares_memory(); }
  void cut() override {
    for (auto& side : sides_) {
      side->cut();
    }
  }

 private:
  std::array<std::unique_ptr<PathSide>, 2> sides_;
};

using HarnessFactory = std::function<std::unique_ptr<PathHarness>()>;
std::unique_ptr<PathHarness> make_memory_harness(uint64_t seed, double drop, double duplicate,
                                                 double reorder, uint32_t mtu,
                                                 bool fallback = false);
/// The verbs fabric over simulated NICs.  Nothing is lost: a refusal is not repeated.
std::unique_ptr<PathHarness> make_sim_verbs_harness(uint64_t seed, double duplicate,
                                                    double reorder);
/// Over relays in a line, on virtual time, by hops of several kinds.
std::vector<std::pair<const char*, HarnessFactory>> relay_harnesses();
/// Datagrams whose frames are sealed, or encrypted.
std::vector<std::pair<const char*, HarnessFactory>> sealed_harnesses();
std::unique_ptr<PathHarness> make_udp_harness(double drop, double duplicate, double reorder,
                                              uint32_t mtu);

/// Sides over the first usable RDMA port, which have_verbs() says that there is: `verbs_rc`,
/// `verbs_ud` or `verbs_ud_lossy`.  `index` 0 or 1: only side 1 can be cut off from the other.
std::unique_ptr<PathSide> make_rdma_side(const std::string& provider, size_t index);
inline constexpr const char* rdma_providers[] = {"verbs_rc", "verbs_ud", "verbs_ud_lossy"};
bool have_verbs();

/// Side 1 in another machine, where serve_side() runs; side 0 here.  Throws when it cannot be
/// reached.
std::unique_ptr<PathHarness> make_remote_harness(const std::string& provider,
                                                 const std::string& host, uint16_t port);
/// Serves one harness after another on a TCP port until it is told to end.  Gives an exit status.
int serve_side(uint16_t port);
/// Ends whoever serves.
void end_served_side(const std::string& host, uint16_t port);

}  // namespace nccl_ha::test
