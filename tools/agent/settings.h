// The settings of a host's transport agent: a file in JSON, in which comments are allowed
// (docs/agent.md).
#pragma once

#include <sys/types.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ha/share_policy.h"
#include "runtime/base/ip_address.h"
#include "runtime/base/result.h"
#include "tools/agent/keys.h"
#include "tools/agent/socket_point.h"

namespace nccl_ha::tools {

struct RailSettings {
  std::string interface;   ///< empty: not measured
  int64_t speed_mbps = 0;  ///< 0: what the interface says
};

struct AgentSettings {
  // Fixed while the agent runs.
  std::string directory;         ///< empty: AgentDirectory::chosen
  bool directory_given = false;  ///< by the command line, whatever the file says
  uint32_t slots = 4096;
  std::optional<SocketPoint> telemetry;  ///< where it hears switches; none: it hears nobody
  std::optional<SocketPoint> page;       ///< where it serves metrics and the page
  Duration heartbeat = std::chrono::milliseconds(20);
  // These follow the file when it is read again.
  uint32_t connections_per_client = 16384;
  uint32_t clients = 4096;
  std::vector<uid_t> users;      ///< whose processes may register, besides root and this user
  bool all_users = false;        ///< anybody's may
  bool all_counters = false;     ///< /counters is of all users, not of this one only
  std::vector<IpAddress> allow;  ///< switches
  std::string key_file;
  TelemetryKeys keys;
  bool unauthenticated = false;  ///< datagrams without a tag count too
  Duration age_max = std::chrono::seconds(5);
  Duration drain{};  ///< SIGTERM: how long it waits for registered processes to end
  std::optional<SocketPoint> report_to;  ///< the switch that is told of flows and NICs
  Duration report_every = std::chrono::milliseconds(100);
  std::array<RailSettings, 2> rails;
  ha::SharePolicy::Options policy;

  /// Those of a file, with its keys; an empty path, or one where there is no file: the defaults.
  static Result<AgentSettings> read(const std::string& path);
  /// The same of the text itself; keys are not read.
  static Result<AgentSettings> parse(const std::string& text);
  /// Takes what needs a restart from the settings that are in force.
  void keep_fixed(const AgentSettings& in_force);
  /// What cannot change while the agent runs and is another in `next`; empty: nothing.
  std::string fixed_differences(const AgentSettings& next) const;
};

}  // namespace nccl_ha::tools
