// The rank processes of one host: starting them, hearing from them, ending them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "tools/perf/rank.h"

namespace nccl_ha::tools {

struct RankMessage;  // tools/perf/message.h

/// A set of forked ranks.  Ranks belong to groups, one per plugin.  Destroying it kills whatever
/// still runs.
class Children {
 public:
  Children() = default;
  ~Children();
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  /// Forks one rank.  In the child this does not return.
  Result<void> start(size_t group, RankSetup setup);

  /// Sends an order to a group's rank 0; false when it is gone (its end is then reported).
  bool order(size_t group, const nlohmann::json& message);

  /// Waits for the next message until `deadline`.  Nothing: the deadline passed, a rank failed
  /// (failed() tells), or no rank is left.
  std::optional<RankMessage> next(Instant deadline);

  /// Gives the ranks of the failed group until `deadline` to end and to say why, then kills all.
  void abort(Instant deadline);

  /// From here on SIGINT and SIGTERM end next(), and no more the process; a second one does.
  Result<void> watch_signals();
  bool interrupted() const { return interrupted_; }
  /// Ends all ranks at once.
  void kill_all();

  bool failed() const { return !deaths_.empty() || !primary_.empty() || !secondary_.empty(); }
  bool all_ended() const;
  /// Why the run failed, the causes before the consequences.
  std::vector<std::string> reasons() const;

 private:
  struct Child {
    size_t group = 0;
    uint32_t rank = 0;
    pid_t pid = -1;
    int fd = -1;
    bool killed_by_us = false;
    bool explained = false;  ///< it sent a failure message
    std::string name;
  };
  std::optional<RankMessage> read_from(Child& child);
  void reap(Child& child);
  void take_signal();

  int signals_ = -1;  ///< a signalfd
  bool interrupted_ = false;
  std::vector<Child> children_;
  std::vector<std::string> deaths_;
  std::vector<std::string> primary_;
  std::vector<std::string> secondary_;
};

}  // namespace nccl_ha::tools
