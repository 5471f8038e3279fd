// Two hosts of one island with two rails and a transport agent each, under load, in a lab.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/base/instant.h"
#include "tests/support/background_lab.h"

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
  BackgroundLab& lab() { return *lab_; }

 private:
  std::string run() const { return folder_ + "/0"; }
  void write_settings(const std::string& more) const;

  const std::string tool_;
  std::string folder_;
  std::unique_ptr<BackgroundLab> lab_;
  int sender_ = 0;  ///< a process on the sending host
};

}  // namespace nccl_ha::tests
