#include "runtime/fabric/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <stdlib.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "runtime/base/host.h"
#include "runtime/base/log.h"

namespace nccl_ha::fabric {
namespace {

constexpr int64_t unknown_speed_mbps = 10000;

std::string read_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

int64_t read_number(const std::string& path, int64_t otherwise) {
  const std::string line = read_line(path);
  int64_t value = otherwise;
  const auto [at, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  return error == std::errc{} ? value : otherwise;
}

/// FNV-1a, 64 bit (Fowler, Noll, Vo).
uint64_t hash(uint64_t seed, const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) {
    seed = (seed ^ at[i]) * 0x100000001B3;
  }
  return seed;
}

uint64_t make_guid(const NetInterface& interface) {
  static const std::string machine = [] {
    const std::string id = read_line("/etc/machine-id");
    return id.empty() ? host_name() : id + host_name();
  }();
  uint64_t value = hash(0xCBF29CE484222325, machine.data(), machine.size());
  value = hash(value, interface.mac.data(), interface.mac.size());
  value = hash(value, interface.name.data(), interface.name.size());
  return value == 0 ? 1 : value;
}

uint8_t prefix_length(const sockaddr* mask) {
  if (mask == nullptr) {
    return 0;
  }
  const auto address = IpAddress::from_sockaddr(mask);
  int bits = 0;
  for (const uint8_t byte : address ? address->bytes : std::array<uint8_t, 16>{}) {
    bits += std::popcount(byte);
  }
  return static_cast<uint8_t>(bits);
}

std::string system_image(const std::string& device) {
  // A device may go while it is looked at, which is no exception here.
  std::error_code gone;
  std::filesystem::directory_iterator entry(device + "/infiniband", gone);
  for (; !gone && entry != std::filesystem::directory_iterator(); entry.increment(gone)) {
    std::string guid = read_line(entry->path().string() + "/sys_image_guid");
    if (guid.find_first_not_of("0:") != std::string::npos) {
      return guid;
    }
  }
  return "";
}

void read_sysfs(NetInterface& interface) {
  const std::string base = "/sys/class/net/" + interface.name;
  interface.mtu = static_cast<uint32_t>(read_number(base + "/mtu", 1500));
  const int64_t speed = read_number(base + "/speed", -1);
  interface.speed_mbps = speed > 0 ? speed : unknown_speed_mbps;
  interface.numa_node = static_cast<int>(read_number(base + "/device/numa_node", -1));
  char real[PATH_MAX];
  const std::string device = base + "/device";
  char subsystem[PATH_MAX];
  if (realpath((device + "/subsystem").c_str(), subsystem) != nullptr &&
      std::string_view(subsystem).ends_with("/pci") && realpath(device.c_str(), real) != nullptr) {
    interface.pci_path = real;
    interface.port = read_port_identity(interface.name);
  }
}

bool name_matches(std::string_view name, std::string_view spec, bool exact) {
  while (!spec.empty()) {
    const size_t comma = spec.find(',');
    std::string_view part = spec.substr(0, comma);
    spec = comma == std::string_view::npos ? std::string_view{} : spec.substr(comma + 1);
    part = part.substr(0, part.find(':'));  // a port, meant for other transports
    if (!part.empty() && (exact ? name == part : name.starts_with(part))) {
      return true;
    }
  }
  return false;
}

}  // namespace

PortIdentity read_port_identity(const std::string& interface, const std::string& classes) {
  const std::string base = classes + "/net/" + interface;
  PortIdentity identity;
  identity.port_name = read_line(base + "/phys_port_name");
  identity.switch_id = read_line(base + "/phys_switch_id");
  if (identity.switch_id.empty()) {
    identity.switch_id = system_image(base + "/device");
  }
  return identity;
}

Result<std::vector<NetInterface>> list_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return fail(Errc::system, "cannot list the network interfaces", errno);
  }
  std::map<std::string, NetInterface> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    NetInterface& interface = found[entry->ifa_name];
    interface.name = entry->ifa_name;
    interface.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    interface.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    if (entry->ifa_addr == nullptr) {
      continue;
    }
    if (entry->ifa_addr->sa_family == AF_PACKET) {
      const auto* link = reinterpret_cast<const sockaddr_ll*>(entry->ifa_addr);
      interface.ifindex = link->sll_ifindex;
      std::copy_n(link->sll_addr, std::min<size_t>(link->sll_halen, 6), interface.mac.begin());
      continue;
    }
    if (auto address = IpAddress::from_sockaddr(entry->ifa_addr)) {
      address->prefix_len = prefix_length(entry->ifa_netmask);
      interface.addresses.push_back(*address);
    }
  }
  freeifaddrs(list);
  std::vector<NetInterface> interfaces;
  for (auto& [name, interface] : found) {
    auto& addresses = interface.addresses;
    std::stable_sort(addresses.begin(), addresses.end(), [](const auto& a, const auto& b) {
      return std::pair(a.link_local(), a.family) < std::pair(b.link_local(), b.family);
    });
    if (!addresses.empty() && !addresses.front().link_local()) {
      std::erase_if(addresses, [](const IpAddress& a) { return a.link_local(); });
    }
    if (addresses.empty()) {
      continue;
    }
    if (interface.ifindex == 0) {  // it has no link layer of its own
      interface.ifindex = static_cast<int>(if_nametoindex(name.c_str()));
    }
    read_sysfs(interface);
    interface.guid = make_guid(interface);
    interfaces.push_back(std::move(interface));
  }
  std::sort(interfaces.begin(), interfaces.end(),
            [](const auto& a, const auto& b) { return a.ifindex < b.ifindex; });
  return interfaces;
}

Result<std::vector<NetInterface>> select_interfaces(const std::vector<NetInterface>& all,
                                                    std::string_view ifname_spec,
                                                    std::string_view family) {
  if (!family.empty() && family != "AF_INET" && family != "AF_INET6") {
    return fail(Errc::invalid_argument,
                fmt::format("HA_NCCL_SOCKET_FAMILY={}: use AF_INET or AF_INET6", family));
  }
  const bool exclude = ifname_spec.starts_with('^');
  std::string_view names = exclude ? ifname_spec.substr(1) : ifname_spec;
  const bool exact = names.starts_with('=');
  names = exact ? names.substr(1) : names;

  std::vector<NetInterface> chosen;
  std::string available;
  auto collect = [&](bool loopback) {
    for (const NetInterface& interface : all) {
      const bool named = name_matches(interface.name, names, exact);
      const bool bridge =
          interface.name.starts_with("docker") || interface.name.starts_with("virbr");
      const bool wanted =
          ifname_spec.empty() || exclude
              ? interface.loopback == loopback && !(bridge && !exclude) && !(exclude && named)
              : named;
      if (!wanted || !interface.up) {
        continue;
      }
      NetInterface usable = interface;
      if (!family.empty()) {
        std::erase_if(usable.addresses, [&](const IpAddress& address) {
          return address.family != (family == "AF_INET6" ? 6 : 4);
        });
      }
      if (!usable.addresses.empty()) {
        chosen.push_back(std::move(usable));
      }
    }
  };
  collect(false);
  if (chosen.empty() && (ifname_spec.empty() || exclude)) {
    collect(true);
  }
  if (!chosen.empty()) {
    return chosen;
  }
  for (const NetInterface& interface : all) {
    available += fmt::format("{}{} ({}{})", available.empty() ? "" : ", ", interface.name,
                             interface.addresses.front().text(), interface.up ? "" : ", down");
  }
  return fail(
      Errc::system,
      fmt::format("no usable network interface: HA_NCCL_IFNAME (or NCCL_SOCKET_IFNAME) is "
                  "'{}', family '{}'; this host has {}",
                  ifname_spec, family, available.empty() ? "none with an address" : available));
}

std::optional<size_t> find_interface(const std::vector<NetInterface>& interfaces,
                                     const sockaddr* address) {
  const auto wanted = IpAddress::from_sockaddr(address);
  for (size_t i = 0; wanted && i < interfaces.size(); ++i) {
    // Where there are others, an interface's list leaves them out.
    if (wanted->link_local() && wanted->scope_id != 0 &&
        wanted->scope_id == static_cast<uint32_t>(interfaces[i].ifindex)) {
      return i;
    }
    for (const IpAddress& own : interfaces[i].addresses) {
      if (own.family == wanted->family && own.bytes == wanted->bytes) {
        return i;
      }
    }
  }
  return std::nullopt;
}

IpAddress with_prefix(const std::vector<NetInterface>& interfaces, IpAddress address) {
  for (const NetInterface& own : interfaces) {
    for (const IpAddress& one : own.addresses) {
      if (one.family == address.family && one.bytes == address.bytes) {
        address.prefix_len = one.prefix_len;
      }
    }
  }
  return address;
}

}  // namespace nccl_ha::fabric
