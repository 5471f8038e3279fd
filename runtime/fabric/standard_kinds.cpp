#include "runtime/fabric/standard_kinds.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/setting_rules.h"
#include "runtime/fabric/datagram/ud_factory.h"
#include "runtime/fabric/datagram/udp_factory.h"
#include "runtime/fabric/verbs/host_ports.h"
#include "runtime/fabric/verbs/port_list.h"
#include "runtime/fabric/verbs/rc_factory.h"

namespace nccl_ha::fabric {
namespace {

/// The ports that rdma-core offers and the settings allow; null: none are to be used.
Result<std::shared_ptr<RdmaPorts>> find_rdma(const Config& config, FabricHost& host) {
  const std::string& fabric = config.fabric;
  const bool forced = fabric == "verbs" || fabric == "ud";
  if (!forced && (fabric != "auto" || config.ib_disable)) {
    return std::shared_ptr<RdmaPorts>();
  }
  auto list = verbs::list_ports(config);
  if (!list) {
    return list.error();
  }
  std::string why;
  for (const std::string& note : list->notes) {
    NHA_LOG_INFO("{}", note);
    why += (why.empty() ? "" : "; ") + note;
  }
  if (!list->ports.empty()) {
    if (const auto slow = slow_retries(config)) {
      NHA_LOG_WARN("{}: {}", slow->what, slow->remedy);
    }
    // The library is loaded, as there are ports.
    const verbs::Library& library = list->ports.front().device->library();
    const auto find = [&library, settings = std::make_shared<const Config>(config)](
                          const verbs::NicIdentity& before) {
      return verbs::open_successor(library, before, *settings);
    };
    return std::shared_ptr<RdmaPorts>(
        std::make_shared<verbs::HostPorts>(std::move(list->ports), host.workers, host.nics, find));
  }
  if (forced) {
    return fail(Errc::system,
                fmt::format("HA_NCCL_FABRIC={}, but no RDMA port is usable: {}", fabric, why));
  }
  return std::shared_ptr<RdmaPorts>();
}

}  // namespace

Result<std::vector<std::unique_ptr<PathFactory>>> standard_kinds(const Config& config,
                                                                 FabricHost& host,
                                                                 const StandardSources& sources) {
  auto opener = PortOpener::from(config, host.memory);
  if (!opener) {
    return opener.error();
  }
  std::shared_ptr<RdmaPorts> ports;
  if (sources.rdma) {
    ports = sources.rdma(host.nics);
  } else {
    auto found = find_rdma(config, host);
    if (!found) {
      return found.error();
    }
    ports = std::move(*found);
  }
  std::vector<std::unique_ptr<PathFactory>> kinds;
  kinds.push_back(std::make_unique<verbs::RcFactory>(config, host, ports));
  kinds.push_back(std::make_unique<UdFactory>(config, host, ports, *opener));
  kinds.push_back(std::make_unique<UdpFactory>(config, host, *opener, sources.packets));
  return kinds;
}

Result<void> check_fabric_name(const Config& config) {
  return check_fabric_setting(config.fabric, {"verbs", "ud", "datagram"});
}

}  // namespace nccl_ha::fabric
