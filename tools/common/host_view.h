// What this host offers, as the plugin would see it; for nccl-ha info and nccl-ha check.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/fabric/verbs/port_list.h"

namespace nccl_ha::tools {

/// What the kernel offers to the datagram fabric.
struct KernelSupport {
  int64_t rmem_max = -1;
  int64_t wmem_max = -1;
  int64_t granted_bytes = -1;
  bool segmentation = false;
  bool coalescing = false;
};

/// The number that a file of /proc or /sys holds; -1 when there is none.
int64_t read_number(const std::string& path);

KernelSupport probe_kernel(const Config& config);

/// A port together with the GID that a queue pair on it would use.
struct ChosenPort {
  fabric::verbs::PortInfo info;
  std::optional<fabric::verbs::GidEntry> gid;
  bool gpu_memory = false;  ///< can be registered with it
};

/// What the plugin would do with the RDMA devices, and why not more.
struct RdmaView {
  std::vector<ChosenPort> ports;
  std::vector<fabric::verbs::PortInfo> down;         ///< selected, but not active
  std::vector<fabric::verbs::PortInfo> without_gid;  ///< active, but no GID fits the settings
  std::vector<std::string> notes;
};

Result<RdmaView> look_at_rdma(const Config& config);

}  // namespace nccl_ha::tools
