// What may be wrong with a host, and what to do about it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/check/host_facts.h"

namespace nccl_ha::tools {

/// error: the job will not run, or not as configured.  warning: it runs worse than it could, or may
/// fail later.  hint: worth a look.
enum class Level : uint8_t { error, warning, hint };
const char* to_text(Level level);

/// A rail of a host: the name of its device or of its interface; empty: each rail of that host.
struct RailAt {
  size_t host = 0;  ///< rank; of a host's own findings 0, until they are with those of others
  std::string rail;
};

struct Finding {
  Level level = Level::hint;
  std::string what;
  std::string remedy;              ///< what to do, never empty
  std::vector<RailAt> rails = {};  ///< that it may keep from carrying anything
};
/// Without the hosts of its rails.
nlohmann::json to_json(const Finding& finding);
/// Nothing for what no finding looks like.
std::optional<Finding> finding_from_json(const nlohmann::json& from);

/// As in "1 error" and "2 errors".
std::string counted(size_t number, const std::string& noun);

/// What two PCI devices share beside the host.
enum class SharedPci : uint8_t { nothing, one_card, one_switch };
/// By their folders in sysfs; an empty one shares nothing.  Pure.
SharedPci shared_pci(const std::string& one, const std::string& other);

/// What is to be asked of a host beside what keeps it from working.
struct Demands {
  bool plugin = false;  ///< NCCL finds this plugin, whether or not NCCL_NET_PLUGIN is set here
};
/// Pure.
std::vector<Finding> judge(const HostFacts& facts, const Demands& demands = {});

}  // namespace nccl_ha::tools
