// Two hosts of one island with two rails and a transport agent each, under load, in a lab.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/base/instant.h"
#include "tests/support/background_lab.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::tests {

/// What a host's kernel has sent over each rail.
struct RailBytes {
  Instant at{};
  uint64_t sout = 0;
  uint64_t sup = 0;
};
RailBytes operator-(const RailBytes& later, const RailBytes& earlier);
/// SUP's part.
double share_of(const RailBytes& sent);

class AgentLab {
 public:
  /// `perf`: the words of `nccl-ha perf`, which runs on both hosts; h1 sends.  An agent that ends
  /// is started again, as a service manager would.
  AgentLab(std::string tool, const std::string& perf);
  ~AgentLab();
  AgentLab(const AgentLab&) = delete;
  AgentLab& operator=(const AgentLab&) = delete;

  /// Both rails of the sender carry so much: "400mbit".
  bool slow_down(const std::string& rate) const;
  /// Waits until the sender's agent runs and knows its flow.
  bool up();
  /// JSON without braces for the sender's agent, whose settings are read again.  False: it did not
  /// take them.
  bool settle(const std::string& settings);
  /// Ends the sender's agent by that signal; the next one knows nothing when `forget`.
  void end_agent(int signal, bool forget);
  /// What the sender's agent knows; not an object: none answers.
  nlohmann::json status() const;
  /// The share of the one flow as the agent has it; -1: none answers, or it has no flow.
  int share() const;
  /// A switch plays the script to the sender's agent, to its end.
  ToolRun play(const std::string& script) const;
  /// The sender's, now.
  RailBytes sent() const;
  /// What was sent while so many bytes more went out; nothing went any more when less came.
  RailBytes sent_in(uint64_t bytes) const;
  /// Process of the sender's agent as seen from here; 0: none.
  int agent_process() const;
  const std::string& folder() const { return folder_; }
  BackgroundLab& lab() const { return *lab_; }

 private:
  std::string run() const { return folder_ + "/0"; }
  void write_settings(const std::string& more) const;

  const std::string tool_;
  tests::TemporaryFolder temporary_;
  const std::string folder_{temporary_.path()};
  std::unique_ptr<BackgroundLab> lab_;
  int sender_ = 0;  ///< a process on the sending host
};

/// Notes what a lab's sender sends, all the time.
class RailWatch {
 public:
  explicit RailWatch(const AgentLab& lab);
  ~RailWatch() { end(); }
  RailWatch(const RailWatch&) = delete;
  RailWatch& operator=(const RailWatch&) = delete;
  /// What follows is asked after this.
  void end();
  /// SUP's part between two times after a moment.
  double share(Instant moment, Duration from, Duration to) const {
    return share_of(at(moment + to) - at(moment + from));
  }
  /// Bytes per second of both rails between two times after a moment.
  double rate(Instant moment, Duration from, Duration to) const;
  /// After how many milliseconds the traffic of 2 ms had a share that `good` is true of; -1: never.
  double ms_until(Instant moment, const std::function<bool(double)>& good) const;
  /// After how many milliseconds the traffic of `window` had that rate; -1: never.
  double ms_until_rate(Instant moment, Duration window, double rate) const;
  /// The longest time in which nothing was sent, and something before and after it.
  Duration longest_pause() const;
  RailBytes at(Instant moment) const;

 private:
  std::vector<RailBytes> samples_;
  std::atomic<bool> watch_{true};
  std::future<void> watching_;
};

}  // namespace nccl_ha::tests
