// What the transport agents of other hosts say of the processes there.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/top/reading.h"

namespace nccl_ha::tools {

struct AgentPlace {
  std::string host;  ///< name or address
  uint16_t port = 0;
};

/// Asks all of them side by side for /counters.  An agent that does not answer within `limit`, or
/// not with counters, is in CounterReading::unreadable with why.  Blocks the caller; a name that a
/// slow resolver looks up may take longer.
CounterReading read_agents(const std::vector<AgentPlace>& agents, std::chrono::milliseconds limit);

/// The body of an answer of HTTP/1.1 that ended with its connection.  Pure.
Result<std::string> http_body(const std::string& answer);

}  // namespace nccl_ha::tools
