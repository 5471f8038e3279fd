#include "plugin/device_list.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/fabric/port_halves.h"

namespace nccl_ha::plugin {
namespace {

/// By the name of the device, without its port too, or by that of the interface beneath.
Result<size_t> find_named(const char* variable, const std::string& name,
                          std::span<const fabric::NetDevice> all) {
  std::optional<size_t> found;
  std::string known;
  for (size_t i = 0; i < all.size(); ++i) {
    const fabric::NetDevice& one = all[i];
    const std::string device = one.name.substr(0, one.name.find(':'));
    known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
    if (one.name == name || one.netdev == name) {
      return i;
    }
    found = !found && device == name ? i : found;
  }
  if (found) {
    return *found;
  }
  return fail(Errc::invalid_argument,
              fmt::format("{}={}: no such device is in use; there are {} (nccl-ha info tells why)",
                          variable, name, known));
}

/// NCCL's topology tells ports of one GUID apart by number, and those of a card may each be port 1
/// of a device of its own: NCCL's own transport counts those too.
int port_of_card(std::span<const fabric::NetDevice> all, size_t at) {
  const auto same = std::count_if(
      all.begin(), all.begin() + static_cast<ptrdiff_t>(at), [&](const fabric::NetDevice& before) {
        return before.guid == all[at].guid && before.port == all[at].port;
      });
  return all[at].port + static_cast<int>(same);
}

/// Which of them are one device; what somebody has named is as it was named.
std::vector<std::vector<size_t>> groups_of(const Config& config,
                                           std::span<const fabric::NetDevice> all,
                                           std::optional<size_t> sout, std::optional<size_t> sup) {
  std::vector<std::vector<size_t>> groups;
  const bool join = config.join_port_halves && config.enable_backup;
  for (const std::vector<size_t>& group : fabric::group_by_port(all)) {
    std::vector<size_t> rest;
    for (const size_t i : group) {
      if (i == sout) {
        groups.push_back({i, *sup});
      } else if (i != sup) {
        rest.push_back(i);
      }
    }
    for (size_t i = 0; !join && i < rest.size(); ++i) {
      groups.push_back({rest[i]});
    }
    if (join && !rest.empty()) {
      groups.push_back(std::move(rest));
    }
  }
  std::sort(groups.begin(), groups.end());  // each in the place of its first one
  return groups;
}

std::string names_of(std::span<const DeviceList::Device> devices) {
  std::string names;
  for (const DeviceList::Device& one : devices) {
    names += (names.empty() ? "" : ", ") + one.name;
  }
  return names;
}

}  // namespace

Result<void> DeviceList::begin(const Config& config, std::span<const fabric::NetDevice> all) {
  const bool paired = !config.mpib_hca_sout.empty() || !config.mpib_hca_sup.empty();
  std::optional<size_t> sout;
  std::optional<size_t> sup;
  if (paired) {
    if (config.mpib_hca_sout.empty() || config.mpib_hca_sup.empty()) {
      return fail(Errc::invalid_argument,
                  "of HA_NCCL_HCA_SOUT and HA_NCCL_HCA_SUP only one is set: set both, or neither");
    }
    if (!config.enable_backup) {
      return fail(Errc::invalid_argument,
                  "HA_NCCL_HCA_SOUT and HA_NCCL_HCA_SUP: paths on other rails need "
                  "HA_NCCL_ENABLE_BACKUP=1");
    }
    auto first = find_named("HA_NCCL_HCA_SOUT", config.mpib_hca_sout, all);
    auto second = find_named("HA_NCCL_HCA_SUP", config.mpib_hca_sup, all);
    if (!first || !second) {
      return !first ? first.error() : second.error();
    }
    if (*first == *second) {
      return fail(
          Errc::invalid_argument,
          fmt::format("HA_NCCL_HCA_SOUT and HA_NCCL_HCA_SUP are both {}: they are to be two",
                      all[*first].name));
    }
    sout = *first;
    sup = *second;
  }
  std::vector<Device> listed;
  for (const std::vector<size_t>& group : groups_of(config, all, sout, sup)) {
    Device device;
    device.rails.count = 0;
    for (const size_t i : group) {
      device.rails.devices[device.rails.count++] = i;
      device.name += (device.name.empty() ? "" : "+") + all[i].name;
      device.speed_mbps += all[i].speed_mbps;
    }
    device.has_pci_path = !all[group.front()].pci_path.empty();
    device.port = port_of_card(all, group.front());
    device.rails.sout_and_sup = group.front() == sout;
    device.members = {static_cast<int>(listed.size())};
    listed.push_back(std::move(device));
  }
  std::lock_guard lock(mutex_);
  const auto merged =
      std::ranges::find_if(devices_, [](const Device& one) { return one.members.size() > 1; });
  const auto same_name = [](const Device& one, const Device& other) {
    return one.name == other.name;
  };
  if (!devices_.empty() &&
      !std::equal(devices_.begin(), merged, listed.begin(), listed.end(), same_name)) {
    return fail(Errc::invalid_usage, fmt::format("the devices are {} now and were {}, by whose "
                                                 "numbers NCCL still knows them",
                                                 names_of(listed), names_of(devices_)));
  }
  for (auto one = merged; one != devices_.end(); ++one) {
    for (size_t i = 0; i < one->members.size(); ++i) {
      one->rails.devices[i] = listed[static_cast<size_t>(one->members[i])].rails.first();
    }
    listed.push_back(std::move(*one));
  }
  devices_ = std::move(listed);
  return {};
}

void DeviceList::end() {
  std::lock_guard lock(mutex_);
  devices_ = decltype(devices_)();  // clear() would keep its room
}

size_t DeviceList::count() const {
  std::lock_guard lock(mutex_);
  return devices_.size();
}

std::optional<DeviceList::Device> DeviceList::find(int device) const {
  std::lock_guard lock(mutex_);
  return device >= 0 && static_cast<size_t>(device) < devices_.size()
             ? std::optional(devices_[static_cast<size_t>(device)])
             : std::nullopt;
}

std::vector<fabric::RailDevices> DeviceList::ports() const {
  std::lock_guard lock(mutex_);
  std::vector<fabric::RailDevices> ports;
  for (const Device& device : devices_) {
    ports.push_back(device.rails);
  }
  return ports;
}

Result<int> DeviceList::merge(std::span<const int> members) {
  std::lock_guard lock(mutex_);
  const auto before = std::ranges::find_if(devices_, [&](const Device& one) {
    return one.members.size() > 1 && std::ranges::equal(one.members, members);
  });
  if (before != devices_.end()) {
    return static_cast<int>(before - devices_.begin());
  }
  if (members.size() < 2 || members.size() > fabric::rails_per_device_max ||
      devices_.size() >= devices_max) {
    return fail(Errc::invalid_argument,
                fmt::format("makeVDevice: {} devices cannot be merged, 2 to {} can", members.size(),
                            fabric::rails_per_device_max));
  }
  Device merged;
  merged.rails.count = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const int number = members[i];
    const bool known = number >= 0 && static_cast<size_t>(number) < devices_.size();
    if (!known || devices_[static_cast<size_t>(number)].rails.count != 1 ||
        std::find(members.begin(), members.begin() + static_cast<ptrdiff_t>(i), number) !=
            members.begin() + static_cast<ptrdiff_t>(i)) {
      return fail(Errc::invalid_argument,
                  fmt::format("makeVDevice: device {} cannot be a member: {}", number,
                              known ? "it is one of several rails already, or named twice"
                                    : "there is none"));
    }
    const Device& member = devices_[static_cast<size_t>(number)];
    if (!member.has_pci_path) {
      // NCCL merges what it finds beside each other, puts the result below a bridge that does not
      // exist, and then finds no way to it.
      return fail(
          Errc::invalid_argument,
          fmt::format("makeVDevice: {} is no PCI device, and NCCL cannot place what it "
                      "merges of those; HA_NCCL_HCA_SOUT and HA_NCCL_HCA_SUP make one device of "
                      "two",
                      member.name));
    }
    merged.has_pci_path = true;
    merged.port = i == 0 ? member.port : merged.port;
    merged.rails.devices[merged.rails.count++] = member.rails.first();
    merged.name += (i == 0 ? "" : "+") + member.name;
    merged.speed_mbps += member.speed_mbps;
    merged.members.push_back(number);
  }
  devices_.push_back(std::move(merged));
  return static_cast<int>(devices_.size() - 1);
}

}  // namespace nccl_ha::plugin
