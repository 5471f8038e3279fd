#include "runtime/fabric/interfaces.h"

#include <fmt/format.h>
#include <limits.h>
#include <stdlib.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <system_error>
#include <tuple>
#include <utility>

#include "runtime/base/host.h"

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
  const int64_t speed = read_number(base + "/speed", -1);
  interface.speed_mbps = speed > 0 ? speed : unknown_speed_mbps;
  interface.numa_node = static_cast<int>(read_number(base + "/device/numa_node", -1));
  interface.pci_path = pci_path_of(base + "/device");
  if (!interface.pci_path.empty()) {
    interface.port = read_port_identity(interface.name);
  }
}

/// The names of NCCL_SOCKET_IFNAME, taken apart.
struct Names {
  explicit Names(std::string_view spec) {
    exclude = spec.starts_with('^');
    spec.remove_prefix(exclude ? 1 : 0);
    exact = spec.starts_with('=');
    spec.remove_prefix(exact ? 1 : 0);
    while (!spec.empty()) {
      const size_t comma = spec.find(',');
      std::string_view part = spec.substr(0, comma);
      spec = comma == std::string_view::npos ? std::string_view{} : spec.substr(comma + 1);
      part = part.substr(0, part.find(':'));  // a port, meant for other transports, or a label
      if (!part.empty()) {
        parts.push_back(part);
      }
    }
  }
  bool fits(std::string_view part, std::string_view name) const {
    return exact ? name == part : name.starts_with(part);
  }
  bool fits(std::string_view part, const NetInterface& one) const {
    return fits(part, one.name) ||
           std::ranges::any_of(one.other_names, [&](const auto& name) { return fits(part, name); });
  }
  bool name(const NetInterface& one) const {
    return std::ranges::any_of(parts, [&](std::string_view part) { return fits(part, one); });
  }
  /// It or something beneath it.
  bool name_any_of(const NetInterface& one) const {
    return name(one) || std::ranges::any_of(one.lies_on, [&](const std::string& beneath) {
             return std::ranges::any_of(parts,
                                        [&](std::string_view part) { return fits(part, beneath); });
           });
  }
  /// Nothing in particular is asked for.
  bool any() const { return parts.empty() || exclude; }

  bool exclude = false;
  bool exact = false;
  std::vector<std::string_view> parts;
};

/// So many at most stand by without being offered: hosts of containers have hundreds.
constexpr size_t standbys_max = 8;

bool only_loopback(const NetInterface& one) {
  return one.loopback && one.addresses.front().loopback();
}

/// Why `one` is not used at all, where nothing in particular is asked for; empty: it may be used.
std::string useless(const NetInterface& one) {
  if (only_loopback(one)) {
    return "loopback is used only when nothing else is up";
  }
  if (one.is_port) {
    return "it is a port of a bridge or bond";
  }
  if (one.leads_to == LinkClass::internal) {
    return "it leads to no other host (a bridge or a cable of containers)";
  }
  return "";
}

/// The lowest are offered.
unsigned rank_of(const NetInterface& one) {
  const bool local = one.only_self_assigned();
  switch (one.leads_to) {
    case LinkClass::nic:
      return local ? 3 : 0;
    case LinkClass::pair:
      return local ? 4 : 1;
    case LinkClass::routed:
      return 2;
    case LinkClass::tunnel:
      return 5;
    case LinkClass::internal:
      break;
  }
  return 6;
}

/// Marks which of `chosen` are offered, and says why the others are not.
void choose_offered(std::vector<NetInterface>& chosen, bool named) {
  unsigned best = UINT32_MAX;
  int64_t fastest = 0;
  for (const NetInterface& one : chosen) {
    if (one.up) {
      best = std::min(best, rank_of(one));
    }
  }
  for (const NetInterface& one : chosen) {
    fastest = one.up && rank_of(one) == best ? std::max(fastest, one.speed_mbps) : fastest;
  }
  // Where two share a cable the one that is nearer to it is offered.
  std::ranges::stable_sort(chosen, {}, [](const NetInterface& one) {
    return std::tuple(!one.up, one.only_self_assigned(), one.lies_on.size(), one.ifindex);
  });
  for (size_t i = 0; i < chosen.size(); ++i) {
    NetInterface& one = chosen[i];
    // A cable between two hosts often has no network of its own, and is faster than those that do.
    const bool fast_cable = best == 0 && rank_of(one) == 3 && one.speed_mbps >= fastest;
    const auto offered = std::span(chosen).first(i);
    const auto same = std::ranges::find_if(offered, [&](const NetInterface& other) {
      return other.offered && other.shares_cable(one);
    });
    if (!one.up) {
      one.why_not = "it is down";
    } else if (!named && rank_of(one) != best && !fast_cable) {
      one.why_not = fmt::format("it only stands by: {}{}", to_text(one.leads_to),
                                one.only_self_assigned() ? " with link-local addresses" : "");
    } else if (same != offered.end()) {
      one.why_not = fmt::format("it only stands by: its cable is that of {}", same->name);
    }
    one.offered = one.why_not.empty();
  }
  std::ranges::stable_sort(chosen, {}, [](const NetInterface& one) {
    return std::tuple(!one.offered, one.offered ? 0 : rank_of(one), !one.up, one.ifindex);
  });
}

void leave_out(std::vector<NetInterface>& left_out, NetInterface one, std::string why) {
  one.offered = false;
  one.why_not = std::move(why);
  left_out.push_back(std::move(one));
}

/// Of names that nothing here has, or that is down.
void warn_of_names(const std::vector<NetInterface>& all, const Names& names,
                   std::vector<std::string>& warnings) {
  for (const std::string_view part : names.parts) {
    const auto known =
        std::ranges::find_if(all, [&](const NetInterface& one) { return names.fits(part, one); });
    if (!names.exclude && (known == all.end() || !known->up)) {
      warnings.push_back(
          fmt::format("HA_NCCL_IFNAME (or NCCL_SOCKET_IFNAME) names {}, {}: {}", part,
                      known == all.end() ? "and this host has no such interface with an address"
                                         : "which is down",
                      known == all.end() ? "see ip address" : "it is used as soon as it is up"));
    }
  }
}

/// An address that two interfaces have names neither of them.
void leave_twins_out(std::vector<NetInterface>& chosen, std::vector<NetInterface>& left_out) {
  for (size_t i = 0; i < chosen.size();) {
    const auto before = std::span(chosen).first(i);
    const auto twin = std::ranges::find_if(before, [&](const NetInterface& other) {
      return !chosen[i].only_self_assigned() &&
             other.addresses.front().same_as(chosen[i].addresses.front());
    });
    if (twin == before.end()) {
      ++i;
      continue;
    }
    leave_out(left_out, std::move(chosen[i]), fmt::format("it has the address of {}", twin->name));
    chosen.erase(chosen.begin() + static_cast<ptrdiff_t>(i));
  }
}

/// The host's ends of containers' cables have nothing but link-local addresses, and may be many.
void limit_standbys(std::vector<NetInterface>& chosen, std::vector<NetInterface>& left_out) {
  const auto offered = static_cast<size_t>(std::ranges::count_if(chosen, &NetInterface::offered));
  for (size_t i = offered; i < chosen.size();) {
    const bool container = chosen[i].leads_to == LinkClass::pair &&
                           chosen[i].only_self_assigned() &&
                           chosen.front().leads_to == LinkClass::nic;
    if (!container && i < offered + standbys_max) {
      ++i;
      continue;
    }
    leave_out(left_out, std::move(chosen[i]),
              container ? "it leads to a container" : "others stand by");
    chosen.erase(chosen.begin() + static_cast<ptrdiff_t>(i));
  }
}

}  // namespace

std::string pci_path_of(const std::string& device) {
  char real[PATH_MAX];
  char subsystem[PATH_MAX];
  if (realpath((device + "/subsystem").c_str(), subsystem) == nullptr ||
      realpath(device.c_str(), real) == nullptr) {
    return "";
  }
  const std::string_view bus(subsystem);
  if (bus.ends_with("/auxiliary")) {
    return std::filesystem::path(real).parent_path();
  }
  return bus.ends_with("/pci") ? real : "";
}

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

bool NetInterface::shares_cable(const NetInterface& other) const {
  return std::ranges::any_of(cables, [&](uint64_t cable) {
    return std::ranges::find(other.cables, cable) != other.cables.end();
  });
}

std::vector<IpAddress> NetInterface::all_addresses() const {
  std::vector<IpAddress> all = addresses;
  all.insert(all.end(), link_local.begin(), link_local.end());
  return all;
}

std::vector<NetInterface> make_interfaces(const LinkList& list) {
  const LinkTree tree(list.links);
  std::vector<NetInterface> interfaces;
  for (const Link& link : list.links) {
    std::vector<LinkAddress> addresses;
    std::ranges::copy_if(list.addresses, std::back_inserter(addresses),
                         [&](const LinkAddress& one) { return one.index == link.index; });
    std::ranges::stable_sort(addresses, {}, [](const LinkAddress& one) {
      return std::tuple(one.address.loopback(), one.address.self_assigned(), one.temporary,
                        one.address.family);
    });
    if (addresses.empty()) {
      continue;
    }
    NetInterface interface;
    interface.name = link.name;
    interface.other_names = link.other_names;
    interface.ifindex = link.index;
    interface.mtu = link.mtu;
    interface.mac = link.mac;
    interface.loopback = link.loopback;
    interface.up = link.up;
    interface.leads_to = tree.class_of(link);
    interface.is_port = tree.is_port(link);
    interface.cables = tree.cables_of(link);
    for (const Link* beneath : tree.beneath(link)) {
      interface.lies_on.push_back(beneath->name);
    }
    for (const LinkAddress& one : addresses) {
      const bool spare = one.address.link_local() && !addresses.front().address.link_local();
      if (one.address.loopback() == addresses.front().address.loopback()) {
        (spare ? interface.link_local : interface.addresses).push_back(one.address);
      }
    }
    interface.guid = make_guid(interface);
    interfaces.push_back(std::move(interface));
  }
  std::ranges::sort(interfaces, {}, &NetInterface::ifindex);
  return interfaces;
}

Result<std::vector<NetInterface>> list_interfaces() {
  auto list = list_links();
  if (!list) {
    return list.error();
  }
  std::vector<NetInterface> interfaces = make_interfaces(*list);
  for (NetInterface& interface : interfaces) {
    read_sysfs(interface);
  }
  return interfaces;
}

Result<std::vector<NetInterface>> select_interfaces(const std::vector<NetInterface>& all,
                                                    std::string_view ifname_spec,
                                                    std::string_view family,
                                                    SelectionNotes* notes) {
  if (!family.empty() && family != "AF_INET" && family != "AF_INET6") {
    return fail(Errc::invalid_argument,
                fmt::format("HA_NCCL_SOCKET_FAMILY={}: use AF_INET or AF_INET6", family));
  }
  const Names names(ifname_spec);
  SelectionNotes unheard;
  SelectionNotes& said = notes == nullptr ? unheard : *notes;
  std::vector<NetInterface> chosen;
  const auto collect = [&](bool last_resort) {
    for (const NetInterface& interface : all) {
      NetInterface one = interface;
      const auto is_other = [&](const IpAddress& address) {
        return !family.empty() && address.family != (family == "AF_INET6" ? 6 : 4);
      };
      std::erase_if(one.addresses, is_other);
      std::erase_if(one.link_local, is_other);
      if (one.addresses.empty()) {
        one.addresses = std::exchange(one.link_local, {});
      }
      const std::string why = names.any() && !last_resort ? useless(interface) : "";
      if (names.exclude ? names.name_any_of(one) : !names.parts.empty() && !names.name(one)) {
        leave_out(said.left_out, std::move(one), fmt::format("'{}' leaves it out", ifname_spec));
      } else if (one.addresses.empty()) {
        leave_out(said.left_out, std::move(one), fmt::format("it has no {} address", family));
      } else if (!why.empty()) {
        leave_out(said.left_out, std::move(one), why);
      } else {
        chosen.push_back(std::move(one));
      }
    }
    return std::ranges::any_of(chosen, &NetInterface::up);
  };
  if (!collect(false) && names.any()) {
    said.left_out.clear();
    chosen.clear();
    collect(true);
    // Loopback comes after whatever might lead anywhere.
    if (std::ranges::any_of(chosen,
                            [](const auto& one) { return one.up && !only_loopback(one); })) {
      std::erase_if(chosen, only_loopback);
    }
  }
  warn_of_names(all, names, said.warnings);
  leave_twins_out(chosen, said.left_out);
  if (std::ranges::any_of(chosen, &NetInterface::up)) {
    choose_offered(chosen, !names.any());
    limit_standbys(chosen, said.left_out);
    return chosen;
  }
  std::string available;
  for (const NetInterface& interface : all) {
    available += fmt::format("{}{} ({}{})", available.empty() ? "" : ", ", interface.name,
                             interface.addresses.front().text(), interface.up ? "" : ", down");
  }
  return fail(
      Errc::system,
      fmt::format(
          "no usable network interface{}{}; this host has {}",
          ifname_spec.empty()
              ? std::string()
              : fmt::format(" matches HA_NCCL_IFNAME (or NCCL_SOCKET_IFNAME) '{}'", ifname_spec),
          family.empty() ? std::string() : fmt::format(" with addresses of {}", family),
          available.empty() ? "none with an address" : available));
}

Result<std::vector<NetInterface>> select_offered(const std::vector<NetInterface>& all,
                                                 std::string_view ifname_spec,
                                                 std::string_view family) {
  auto chosen = select_interfaces(all, ifname_spec, family);
  if (chosen) {
    std::erase_if(*chosen, [](const NetInterface& one) { return !one.offered; });
  }
  return chosen;
}

std::optional<size_t> find_interface(const std::vector<NetInterface>& interfaces,
                                     const sockaddr* address) {
  const auto wanted = IpAddress::from_sockaddr(address);
  std::optional<size_t> gone;
  for (size_t i = 0; wanted && i < interfaces.size(); ++i) {
    const NetInterface& one = interfaces[i];
    if (wanted->link_local() && wanted->scope_id != 0 &&
        wanted->scope_id == static_cast<uint32_t>(one.ifindex)) {
      return i;
    }
    if (std::ranges::any_of(one.addresses,
                            [&](const IpAddress& own) { return own.same_as(*wanted); })) {
      if (one.ifindex != 0) {
        return i;
      }
      gone = gone ? gone : i;  // its addresses may be another one's by now
    }
  }
  return gone;
}

IpAddress with_prefix(const std::vector<NetInterface>& interfaces, IpAddress address) {
  for (const NetInterface& own : interfaces) {
    for (const IpAddress& one : own.addresses) {
      if (one.same_as(address)) {
        address.prefix_len = one.prefix_len;
      }
    }
  }
  return address;
}

}  // namespace nccl_ha::fabric
