#include "tools/check/interface_facts.h"

#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "runtime/base/egress.h"
#include "runtime/base/ip_address.h"
#include "tools/common/host_view.h"

namespace nccl_ha::tools {
namespace {

/// The other interface that packets from `own` to `to` leave by; empty: there is none, or the
/// plugin can choose the own one.
std::string leaves_by(const IpAddress& own, const IpAddress& to) {
  const Egress egress = find_egress(own, to);
  char name[IF_NAMESIZE] = "";
  return egress.kind == Egress::Kind::other &&
                 if_indextoname(static_cast<unsigned>(egress.interface), name) != nullptr
             ? name
             : "";
}

}  // namespace

std::string other_way_out(const fabric::NetInterface& interface) {
  for (const IpAddress& own : interface.addresses) {
    const size_t bits = own.family == 6 ? 128 : 32;
    if (own.link_local() || own.prefix_len == 0 || own.prefix_len >= bits) {
      continue;
    }
    IpAddress neighbour = own;  // it does not matter whether there is one
    neighbour.bytes[bits / 8 - 1] ^= 1U;
    if (const std::string other = leaves_by(own, neighbour); !other.empty()) {
      return other;
    }
  }
  return "";
}

std::vector<StrayRoute> stray_routes(const std::vector<fabric::NetInterface>& interfaces,
                                     const std::vector<HostSheet>& sheets, size_t own) {
  std::vector<StrayRoute> found;
  for (const HostSheet& sheet : sheets) {
    if (sheet.machine == sheets[own].machine) {
      continue;
    }
    for (const RailSheet& rail : sheet.rails) {
      for (const std::string& text : rail.addresses) {
        const auto to = parse_address(text);
        for (const fabric::NetInterface& interface : interfaces) {
          for (const IpAddress& from : interface.addresses) {
            if (!to || from.self_assigned() || !from.same_subnet(*to)) {
              continue;
            }
            if (const std::string other = leaves_by(from, *to); !other.empty()) {
              found.push_back({interface.name, other, text, sheet.name});
            }
          }
        }
      }
    }
  }
  return found;
}

uint64_t datagrams_without_room() {
  uint64_t sum = 0;
  // A line of names, then one of values.
  std::ifstream in("/proc/net/snmp");
  std::string names;
  for (std::string values; std::getline(in, names) && std::getline(in, values);) {
    std::istringstream name_of(names);
    std::istringstream value_of(values);
    std::string value;
    for (std::string name; name_of >> name && value_of >> value;) {
      sum += names.starts_with("Udp:") && name == "RcvbufErrors"
                 ? std::strtoull(value.c_str(), nullptr, 10)
                 : 0;
    }
  }
  std::ifstream in6("/proc/net/snmp6");
  uint64_t value = 0;
  while (in6 >> names >> value) {
    sum += names == "Udp6RcvbufErrors" ? value : 0;
  }
  return sum;
}

Ipv4Rules ipv4_rules(const std::string& interface) {
  // Of the general value and the interface's own, the larger counts (kernel: ip-sysctl).
  const auto effective = [&](const char* name) {
    const auto value = [&](const std::string& where) {
      return read_number(fmt::format("/proc/sys/net/ipv4/conf/{}/{}", where, name));
    };
    return std::max(value("all"), value(interface));
  };
  return {effective("rp_filter"), effective("arp_ignore"), effective("arp_announce")};
}

}  // namespace nccl_ha::tools
