// What goes wrong in a simulated run: parts that each do something now and then.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/random.h"
#include "tests/rig/runs/stage.h"

namespace nccl_ha::rig {

class FaultSource {
 public:
  FaultSource(Stage& stage, uint64_t salt, size_t times);
  virtual ~FaultSource() = default;
  FaultSource(const FaultSource&) = delete;
  FaultSource& operator=(const FaultSource&) = delete;
  void step();
  size_t times() const { return times_; }
  size_t happened() const { return times_ - left_; }
  /// Nothing is wrong any more of what was to last for a while.
  bool healed() const { return unhealed_ == 0; }

 protected:
  virtual void happen() = 0;
  /// What a fault has changed is as it was after that time.
  void heals_in(Duration time, std::function<void()> what);
  /// A link of the run, by chance.
  const Scenario::Ends& some_link();
  Stage& stage_;
  Random random_;

 private:
  void choose_next();
  const size_t times_;
  size_t left_;
  size_t unhealed_ = 0;
  Instant next_{};
};

/// Rails, NICs and paths: cut, slow, lost, or only believed dead.  In runs with Scenario::paired
/// another lane often meets one microseconds to milliseconds after, and some wait for a chunk that
/// is half posted.
class PathFaults final : public FaultSource {
 public:
  explicit PathFaults(Stage& stage);
  void step();
  /// A rail or a device is gone for good, or has come back as another one.
  bool any_gone() const { return gone_.has_value() || any_back_; }

 private:
  void happen() override;
  void strike();
  bool begins_half();
  void second_soon();
  void take_port(size_t host, size_t rail, Duration lasts);
  void suspect(size_t link, std::optional<uint32_t> chosen);
  uint32_t some_path(size_t link);
  void cut(size_t one, size_t other, size_t line);
  void slow(size_t one, size_t other, size_t line);
  void hurt_nic();
  void lose_device(size_t host, size_t rail);
  void bring_back_in(Duration time, size_t host, size_t rail);
  std::optional<size_t> gone_;  ///< a line, for good
  bool any_back_ = false;
  // Of pairs; what was drawn before there were any stays as it was.
  Random pairs_;
  Random returns_;                 ///< of devices
  std::optional<Instant> second_;  ///< when the other lane meets its fault
  size_t last_link_ = 0;           ///< of the latest verdict
  uint32_t last_path_ = 0;
  bool half_posted_ = false;    ///< at the last look
  size_t for_half_posted_ = 0;  ///< faults that wait for that, beside the others
};

/// The network under the control streams.
class StreamFaults final : public FaultSource {
 public:
  explicit StreamFaults(Stage& stage);

 private:
  void happen() override;
  /// A pair of addresses that streams take: mostly those that they take first.
  std::pair<sim::Ip, sim::Ip> some_way();
  void cut();
};

/// Processes, workers and callers that do not run for a while.
class Pauses final : public FaultSource {
 public:
  explicit Pauses(Stage& stage) : FaultSource(stage, 3, stage.scenario().pauses) {}
  /// No process stood still longer in one go.
  Duration longest() const { return longest_; }

 private:
  void happen() override;
  struct Stop {
    Instant since{};
    Instant until{};
  };
  std::map<size_t, Stop> stops_;  ///< the latest, of each process
  Duration longest_{};
};

/// A process or a host that dies, once.
class Death final : public FaultSource {
 public:
  explicit Death(Stage& stage) : FaultSource(stage, 4, stage.scenario().death ? 1 : 0) {}
  bool touches(const SimLink& link) const;
  std::optional<Instant> at() const { return at_; }
  bool silent() const { return silent_; }

 private:
  void happen() override;
  std::optional<Instant> at_;
  bool silent_ = false;  ///< the host lost power; else a process was killed
};

}  // namespace nccl_ha::rig
