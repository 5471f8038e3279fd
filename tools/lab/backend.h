// What a lab's hosts are made of: network namespaces, or emulated machines (tests/rig/guests).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/common/loop.h"
#include "tools/lab/links.h"
#include "tools/lab/topology.h"

namespace nccl_ha::tools::lab {

struct HostCommand {
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;  ///< in addition to what the host has
};

enum class Stream : uint8_t { out, err };

/// What a backend tells; all calls come from the loop.
struct BackendEvents {
  std::function<void()> ready;  ///< every host is up, with its addresses
  std::function<void(size_t host, Stream stream, std::string_view bytes)> output;
  std::function<void(size_t host, uint64_t job, int status)> ended;
  std::function<void(const Error& error)> broken;  ///< the lab itself cannot go on
  /// A program on a host asks the lab something, by a way of the backend's own; the answer.
  std::function<std::string(const std::string& line)> asked;
};

/// Single-threaded: everything happens in calls from the loop's thread.
class Backend : public Cables {
 public:
  virtual Result<void> start(Loop& loop, BackendEvents events) = 0;
  /// Starts a command; `ended` is called once for each job, after its last output.
  virtual Result<uint64_t> run(size_t host, const HostCommand& command) = 0;
  /// Ends a host without warning; its jobs end with status 137.
  virtual Result<void> kill_host(size_t host) = 0;
  /// What `lab show --json` says of a host beside its name and addresses.
  virtual nlohmann::json describe(size_t host) = 0;
};

}  // namespace nccl_ha::tools::lab
