#include "tools/common/host_view.h"

#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>

#include "runtime/base/setting_rules.h"

namespace nccl_ha::tools {

int64_t read_number(const std::string& path) {
  std::ifstream in(path);
  int64_t value = -1;
  in >> value;
  return value;
}

KernelSupport probe_kernel(const Config& config) {
  KernelSupport support;
  support.rmem_max = read_number("/proc/sys/net/core/rmem_max");
  support.wmem_max = read_number("/proc/sys/net/core/wmem_max");
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return support;
  }
  int value = 0;
  socklen_t length = sizeof value;
  support.segmentation = getsockopt(fd, SOL_UDP, UDP_SEGMENT, &value, &length) == 0;
  const int on = 1;
  support.coalescing = setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof on) == 0;
  const int wanted = static_cast<int>(config.dgram_socket_bytes);
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &wanted, sizeof wanted) != 0) {
    static_cast<void>(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &wanted, sizeof wanted));
  }
  length = sizeof value;
  if (getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &length) == 0) {
    support.granted_bytes = value / 2;  // the kernel reports twice what it grants to payload
  }
  close(fd);
  return support;
}

Result<RdmaView> look_at_rdma(const Config& config) {
  RdmaView view;
  if (config.fabric == "datagram") {
    view.notes.emplace_back("HA_NCCL_FABRIC=datagram leaves RDMA devices alone");
    return view;
  }
  if (config.fabric == "auto" && config.ib_disable) {
    view.notes.emplace_back("HA_NCCL_IB_DISABLE=1 leaves RDMA devices alone");
    return view;
  }
  auto list = fabric::verbs::list_ports(config);
  if (!list) {
    return list.error();
  }
  view.notes = std::move(list->notes);
  view.down = std::move(list->down);
  view.without_gid = std::move(list->without_gid);
  if (const auto slow = slow_retries(config); slow && !list->ports.empty()) {
    view.notes.push_back(slow->what + ": " + slow->remedy);
  }
  for (const fabric::verbs::UsablePort& port : list->ports) {
    const auto want = fabric::verbs::gid_preference(config, port.info);
    if (!want) {
      return want.error();
    }
    view.ports.push_back({port.info, fabric::verbs::select_gid(port.info.gids, *want),
                          port.device->peer_memory() || port.device->dmabuf()});
  }
  return view;
}

}  // namespace nccl_ha::tools
