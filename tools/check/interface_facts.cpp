#include "tools/check/interface_facts.h"

#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>

#include "runtime/base/egress.h"
#include "tools/common/host_view.h"

namespace nccl_ha::tools {

std::string other_way_out(const fabric::NetInterface& interface) {
  for (const IpAddress& own : interface.addresses) {
    const size_t bits = own.family == 6 ? 128 : 32;
    if (own.link_local() || own.prefix_len == 0 || own.prefix_len >= bits) {
      continue;
    }
    IpAddress neighbour = own;  // it does not matter whether there is one
    neighbour.bytes[bits / 8 - 1] ^= 1U;
    const Egress egress = find_egress(own, neighbour);
    char name[IF_NAMESIZE] = "";
    if (egress.kind == Egress::Kind::other &&
        if_indextoname(static_cast<unsigned>(egress.interface), name) != nullptr) {
      return name;
    }
  }
  return "";
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
