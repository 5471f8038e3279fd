#include "runtime/fabric/path_factory.h"

#include <fmt/format.h>

#include <algorithm>

namespace nccl_ha::fabric {

bool FabricHost::beneath_device(const NetInterface& own) const {
  const auto all = interfaces.now();
  return std::any_of(devices.begin(), devices.end(), [&](const NetDevice& device) {
    return device.netdev == own.name ||
           std::any_of(all->begin(), all->end(), [&](const NetInterface& other) {
             return device.netdev == other.name && own.shares_cable(other);
           });
  });
}

size_t FabricHost::cable_of(const InterfaceTable::List& interfaces, size_t interface) {
  size_t first = 0;
  while (first < interface && !interfaces[first].shares_cable(interfaces[interface])) {
    ++first;
  }
  return first;
}

Result<RegionKeys> PathFactory::add_memory(const Attachment& at, const RegionOrigin& origin,
                                           Waits who) {
  (void)at;
  (void)origin;
  (void)who;
  return fail(Errc::internal, fmt::format("{} has no keys of its own", text()));
}

Result<std::shared_ptr<OwnMemory>> PathFactory::own_memory(const Attachment& at,
                                                           const RegionOrigin& origin,
                                                           std::shared_ptr<void> bytes) {
  (void)at;
  (void)origin;
  bytes.reset();
  return fail(Errc::internal, fmt::format("{} has no keys of its own", text()));
}

void PathFactory::remove_memory(const Attachment& at, const RegionKeys& keys,
                                std::shared_ptr<void> keep) {
  (void)at;
  (void)keys;
  keep.reset();
}

bool fabric_is_forced(const Config& config) {
  return config.fabric != "auto" && config.fabric != "datagram";
}

Result<void> check_fabric_setting(const std::string& fabric,
                                  const std::vector<const char*>& settings) {
  std::string known = "auto";
  bool found = fabric == known;
  for (size_t i = 0; i < settings.size(); ++i) {
    found = found || fabric == settings[i];
    known += fmt::format("{}{}", i + 1 == settings.size() ? " or " : ", ", settings[i]);
  }
  if (found) {
    return {};
  }
  return fail(Errc::invalid_argument, fmt::format("HA_NCCL_FABRIC={}: use {}", fabric, known));
}

}  // namespace nccl_ha::fabric
