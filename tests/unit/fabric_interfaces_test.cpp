// Situations of network interfaces: what NCCL is offered, what stands by, and what is left out.
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "ha/shadow.h"
#include "runtime/fabric/datagram/udp_factory.h"
#include "runtime/fabric/interfaces.h"
#include "runtime/fabric/provider.h"

namespace nccl_ha::fabric {
namespace {

/// A link and its addresses in a line:
///   KIND NAME [on LOWER] [of MASTER] [in NAMESPACE LOWER_INDEX] [alt NAME] [mbps N] [down]
///   ADDRESS...
/// KIND "nic" is a driver's own; % in an address is the number of the host, ! after one that does
/// not stay.
struct Situation {
  const char* what;
  std::vector<const char*> links;
  const char* offered;
  const char* stands_by;
  /// For a connection at the first device, where both hosts are alike; empty: nothing replaces it.
  const char* shadow;
  const char* ifname = "";
  const char* warning = "";
};

class Host {
 public:
  Host(const Situation& situation, size_t number) {
    for (const char* line : situation.links) {
      read(line, std::to_string(number));
    }
    std::vector<NetInterface> all = make_interfaces(list_);
    for (NetInterface& one : all) {
      one.speed_mbps = speeds_.contains(one.name) ? speeds_[one.name] : one.speed_mbps;
    }
    auto chosen = select_interfaces(all, situation.ifname, "", &notes);
    if (!chosen) {
      error = chosen.error().message();
      return;
    }
    Config config;
    config.fabric = "datagram";
    Provider::Sources sources;
    sources.standard.packets = [](const SocketAddress&) -> Result<std::unique_ptr<PacketIo>> {
      return fail(Errc::internal, "nothing is sent here");
    };
    auto made = Provider::make(config, *chosen, 1, sources);
    if (made) {
      provider = std::move(*made);
    }
  }

  std::string names(bool offered) const {
    std::string text;
    for (const NetInterface& one : *provider->interfaces()) {
      if (one.offered == offered) {
        text += (text.empty() ? "" : " ") + one.name;
      }
    }
    return text;
  }
  std::vector<Place> places() const { return provider->places({0, datagram_kind}); }
  std::vector<ha::Rail> rails() const {
    std::vector<ha::Rail> rails;
    for (const Place& place : places()) {
      ha::Rail rail;
      rail.kind = static_cast<uint8_t>(place.at.kind);
      rail.number = place.number;
      rail.primary = place.number == 0;
      rail.family = place.address.family;
      rail.prefix_len = place.address.prefix_len;
      rail.address = place.address.bytes;
      rails.push_back(rail);
    }
    return rails;
  }
  std::string name_of(const Place& place) const {
    sockaddr_storage address{};
    static_cast<void>(place.address.to_sockaddr(0, &address));
    return provider->nic_of(place.at, reinterpret_cast<const sockaddr*>(&address));
  }

  SelectionNotes notes;
  std::string error;
  std::unique_ptr<Provider> provider;

 private:
  int index_of(const std::string& name) const {
    for (const Link& link : list_.links) {
      if (link.name == name) {
        return link.index;
      }
    }
    ADD_FAILURE() << "no link " << name << " before this line";
    return 0;
  }

  void read(const char* line, const std::string& host) {
    std::istringstream words(line);
    Link link;
    link.index = static_cast<int>(list_.links.size()) + 1;
    link.up = true;
    link.mac = {2, 0, 0, static_cast<uint8_t>(host[0]), 0, static_cast<uint8_t>(link.index)};
    std::string word;
    words >> link.kind >> link.name;
    if (link.kind == "nic" || link.kind == "lo") {
      link.loopback = link.kind == "lo";
      link.kind.clear();
    }
    while (words >> word) {
      std::string value;
      if (word == "down") {
        link.up = false;
      } else if (word.find('/') != std::string::npos) {
        add_address(word, host, link.index);
      } else if (words >> value; word == "on") {
        link.lower = index_of(value);
        if (link.kind == "veth") {  // the other end of a cable
          list_.links[static_cast<size_t>(link.lower) - 1].lower = link.index;
        }
      } else if (word == "of") {
        link.master = index_of(value);
      } else if (word == "in") {
        link.lower_namespace = std::stoi(value);
        words >> link.lower;
      } else if (word == "alt") {
        link.other_names.push_back(value);
      } else if (word == "mbps") {
        speeds_[link.name] = std::stoi(value);
      } else if (word == "member") {
        list_.links[static_cast<size_t>(index_of(value)) - 1].master = link.index;
      } else {
        ADD_FAILURE() << "what is " << word << "?";
      }
    }
    list_.links.push_back(link);
  }

  void add_address(std::string word, const std::string& host, int index) {
    LinkAddress one;
    one.index = index;
    one.temporary = word.ends_with('!');
    word.resize(word.size() - (one.temporary ? 1 : 0));
    if (const size_t at = word.find('%'); at != std::string::npos) {
      word.replace(at, 1, host);
    }
    const size_t slash = word.find('/');
    const auto address = parse_address(word.substr(0, slash));
    ASSERT_TRUE(address) << word;
    one.address = *address;
    one.address.prefix_len = static_cast<uint8_t>(std::stoi(word.substr(slash + 1)));
    one.address.scope_id = one.address.link_local() ? static_cast<uint32_t>(index) : 0;
    list_.addresses.push_back(one);
  }

  LinkList list_;
  std::map<std::string, int> speeds_;
};

std::string shadow_between(const Host& here, const Host& there) {
  const auto mine = here.rails();
  const auto theirs = there.rails();
  const auto ranked = ha::rank_shadows(mine, theirs);
  if (ranked.empty() || mine[ranked[0].local].primary || theirs[ranked[0].remote].primary) {
    return "";
  }
  return here.name_of(here.places()[ranked[0].local]) + "-" +
         there.name_of(there.places()[ranked[0].remote]);
}

const std::vector<Situation> situations = {
    {"one NIC", {"lo lo 127.0.0.1/8 ::1/128", "nic eth0 10.0.0.%/24"}, "eth0", "", ""},
    {"two NICs, two subnets",
     {"nic eth0 10.0.0.%/24", "nic eth1 10.0.1.%/24"},
     "eth0 eth1",
     "",
     "eth1-eth1"},
    {"two NICs, one subnet",
     {"nic eth0 10.0.0.%/24", "nic eth1 10.0.0.10%/24"},
     "eth0 eth1",
     "",
     "eth1-eth1"},
    {"four NICs",
     {"nic e0 10.0.0.%/24", "nic e1 10.0.1.%/24", "nic e2 10.0.2.%/24", "nic e3 10.0.3.%/24"},
     "e0 e1 e2 e3",
     "",
     "e1-e1"},
    {"the bridge of Docker, with an address that each host has",
     {"nic eth0 10.0.0.%/24", "bridge docker0 172.17.0.1/16"},
     "eth0",
     "",
     ""},
    {"the same with a container",
     {"nic eth0 10.0.0.%/24", "bridge docker0 172.17.0.1/16",
      "veth v1 in 3 2 of docker0 fe80::%/64"},
     "eth0",
     "",
     ""},
    {"the bridge of Docker comes first",
     {"bridge docker0 172.17.0.1/16", "nic eth0 10.0.0.%/24", "nic eth1 10.0.1.%/24"},
     "eth0 eth1",
     "",
     "eth1-eth1"},
    {"the bridge of a CNI, another subnet on each host",
     {"nic eth0 10.0.0.%/24", "bridge cni0 10.244.%.1/24"},
     "eth0",
     "",
     ""},
    {"a bridge of virtual machines with a NIC has the host's address",
     {"nic eth0", "bridge br0 member eth0 10.0.0.%/24", "tun tap0 of br0", "nic eth1 10.0.1.%/24"},
     "br0 eth1",
     "",
     "eth1-eth1"},
    {"a bridge with the NICs of both rails",
     {"nic eth0", "nic eth1", "bridge br0 member eth0 member eth1 10.0.0.%/24"},
     "br0",
     "",
     ""},
    {"Open vSwitch has the host's address",
     {"openvswitch ovs-system", "nic eth0 of ovs-system", "openvswitch br-ex 10.0.0.%/24",
      "openvswitch ovn-k8s-mp0 10.128.%.2/23"},
     "br-ex",
     "ovn-k8s-mp0",
     ""},
    {"a bond",
     {"nic eth0", "nic eth1", "bond bond0 member eth0 member eth1 10.0.0.%/24"},
     "bond0",
     "",
     ""},
    {"a port of a bond that kept its address",
     {"nic eth0 10.0.5.%/24", "nic eth1", "bond bond0 member eth0 member eth1 10.0.0.%/24"},
     "bond0",
     "",
     ""},
    {"two bonds",
     {"nic e0", "nic e1", "bond bond0 member e0 member e1 10.0.0.%/24", "nic e2", "nic e3",
      "bond bond1 member e2 member e3 10.0.1.%/24"},
     "bond0 bond1",
     "",
     "bond1-bond1"},
    {"a team",
     {"nic e0", "team team0 member e0 10.0.0.%/24", "nic e1 10.0.1.%/24"},
     "team0 e1",
     "",
     "e1-e1"},
    {"the port of a paravirtual NIC (Azure)",
     {"nic eth0 10.0.0.%/24", "nic enP1 of eth0 fe80::%/64"},
     "eth0",
     "",
     ""},
    {"a VLAN beside its NIC's own network",
     {"nic eth0 10.0.0.%/24", "vlan eth0.5 on eth0 10.5.0.%/24"},
     "eth0",
     "eth0.5",
     ""},
    {"a VLAN on a NIC without an address",
     {"nic eth0", "vlan eth0.5 on eth0 10.5.0.%/24"},
     "eth0.5",
     "",
     ""},
    {"two VLANs on one NIC",
     {"nic eth0", "vlan eth0.5 on eth0 10.5.0.%/24", "vlan eth0.6 on eth0 10.6.0.%/24"},
     "eth0.5",
     "eth0.6",
     ""},
    {"VLANs on two NICs",
     {"nic eth0", "nic eth1", "vlan eth0.5 on eth0 10.5.0.%/24", "vlan eth1.6 on eth1 10.6.0.%/24"},
     "eth0.5 eth1.6",
     "",
     "eth1.6-eth1.6"},
    {"a VLAN on a bond",
     {"nic e0", "bond bond0 member e0 10.0.0.%/24", "vlan bond0.7 on bond0 10.7.0.%/24"},
     "bond0",
     "bond0.7",
     ""},
    {"a NIC whose VLAN is on another one's cable",
     {"nic e0 10.0.0.%/24", "nic e1 10.0.1.%/24", "vlan e0.5 on e0 10.5.0.%/24"},
     "e0 e1",
     "e0.5",
     "e1-e1"},
    {"a macvlan beside its NIC",
     {"nic eth0 10.0.0.%/24", "macvlan mv0 on eth0 10.0.0.10%/24"},
     "eth0",
     "mv0",
     ""},
    {"an ipvlan beside its NIC",
     {"nic eth0 10.0.0.%/24", "ipvlan iv0 on eth0 10.0.0.10%/24"},
     "eth0",
     "iv0",
     ""},
    {"a container with macvlans of two NICs",
     {"macvlan eth0 in 0 2 10.0.0.%/24", "macvlan eth1 in 0 3 10.0.1.%/24"},
     "eth0 eth1",
     "",
     "eth1-eth1"},
    {"a container with two macvlans of one NIC",
     {"macvlan eth0 in 0 2 10.0.0.%/24", "macvlan eth1 in 0 2 10.0.1.%/24"},
     "eth0",
     "eth1",
     ""},
    {"a container with a veth", {"veth eth0 in 0 7 10.244.%.2/24"}, "eth0", "", ""},
    {"a pod with a NIC of its own",
     {"veth eth0 in 0 7 10.244.%.2/24", "nic net1 10.0.0.%/24"},
     "net1",
     "eth0",
     "eth0-eth0"},
    {"a host with pods",
     {"nic eth0 10.0.0.%/24", "veth cali1 in 1 2 fe80::ecee:%/64",
      "veth cali2 in 2 2 fe80::ecee:1%/64"},
     "eth0",
     "",
     ""},
    {"a host with pods that have its gateway's address",
     {"nic eth0 10.0.0.%/24", "veth p1 in 1 2 10.1.0.1/32", "veth p2 in 2 2 10.1.0.1/32"},
     "eth0",
     "p1",
     ""},
    {"a cable within the host",
     {"nic eth0 10.0.0.%/24", "veth a 10.9.0.1/24", "veth b on a 10.9.0.2/24"},
     "eth0",
     "",
     ""},
    {"labels are addresses",
     {"nic eth0 10.0.0.%/24 10.5.0.%/24", "nic eth1 10.0.1.%/24"},
     "eth0 eth1",
     "",
     "eth1-eth1"},
    {"only the second address is in a common subnet",
     {"nic eth0 10.0.0.%/24", "nic eth1 10.%.9.9/24 10.0.1.%/24"},
     "eth0 eth1",
     "",
     "eth1-eth1"},
    {"IPv6 beside IPv4",
     {"nic eth0 fe80::%/64 2001:db8::%/64 10.0.0.%/24", "nic eth1 10.0.1.%/24"},
     "eth0 eth1",
     "",
     "eth1-eth1"},
    {"IPv6 only",
     {"nic eth0 2001:db8::%/64", "nic eth1 2001:db8:1::%/64 2001:db8:1::9%/64!"},
     "eth0 eth1",
     "",
     "eth1-eth1"},
    {"cables with link-local addresses",
     {"nic eth0 fe80::%/64", "nic eth1 fe80::1%/64"},
     "eth0 eth1",
     "",
     "eth1-eth1"},
    {"a fast cable with link-local addresses",
     {"nic eth0 mbps 1000 10.0.0.%/24", "nic eth1 mbps 200000 fe80::%/64"},
     "eth0 eth1",
     "",
     "eth1-eth1"},
    {"a slow port with link-local addresses",
     {"nic eth0 mbps 100000 10.0.0.%/24", "nic usb0 mbps 100 fe80::%/64"},
     "eth0",
     "usb0",
     "usb0-usb0"},
    {"DHCP has failed on one",
     {"nic eth0 mbps 1000 10.0.0.%/24", "nic eth1 mbps 100 169.254.7.%/16"},
     "eth0",
     "eth1",
     "eth1-eth1"},
    {"no numbers on the cables, the host's address on lo",
     {"lo lo 127.0.0.1/8 10.9.0.%/32", "nic eth0 fe80::%/64", "nic eth1 fe80::1%/64"},
     "lo",
     "eth0 eth1",
     "eth0-eth0"},
    {"the same on a dummy",
     {"nic eth0 fe80::%/64", "dummy dummy0 10.9.0.%/32"},
     "dummy0",
     "eth0",
     "eth0-eth0"},
    {"both NICs have the host's address",
     {"nic eth0 10.9.0.%/32", "nic eth1 10.9.0.%/32"},
     "eth0",
     "",
     ""},
    {"addresses of services, the same on each host",
     {"nic eth0 10.0.0.%/24", "dummy kube-ipvs0 10.96.0.1/32 10.96.0.10/32"},
     "eth0",
     "kube-ipvs0",
     ""},
    {"down at the start",
     {"nic eth0 10.0.0.%/24", "nic eth1 down 10.0.1.%/24"},
     "eth0",
     "eth1",
     "eth1-eth1"},
    {"the first one is down",
     {"nic eth0 down 10.0.0.%/24", "nic eth1 10.0.1.%/24"},
     "eth1",
     "eth0",
     "eth0-eth0"},
    {"a tunnel", {"nic eth0 10.0.0.%/24", "wireguard wg0 10.8.0.%/24"}, "eth0", "wg0", "wg0-wg0"},
    {"nothing but a tunnel", {"lo lo 127.0.0.1/8", "tun tun0 10.8.0.%/24"}, "tun0", "", ""},
    {"an overlay of containers",
     {"nic eth0 10.0.0.%/24", "vxlan flannel.1 on eth0 10.244.%.0/32"},
     "eth0",
     "flannel.1",
     ""},
    {"InfiniBand and a partition of it",
     {"ipoib ib0 10.0.0.%/24", "ipoib ib0.8001 on ib0 10.1.0.%/24"},
     "ib0",
     "ib0.8001",
     ""},
    {"MACsec",
     {"nic eth0", "macsec ms0 on eth0 10.0.0.%/24", "nic eth1 10.0.1.%/24"},
     "ms0 eth1",
     "",
     "eth1-eth1"},
    {"a VRF's NIC",
     {"vrf red", "nic eth0 of red 10.0.0.%/24", "nic eth1 10.0.1.%/24"},
     "eth0 eth1",
     "",
     "eth1-eth1"},
    {"nothing but loopback", {"lo lo 127.0.0.1/8"}, "lo", "", ""},
    {"nothing but loopback is up",
     {"lo lo 127.0.0.1/8", "nic eth0 down 10.0.0.%/24"},
     "lo",
     "eth0",
     "eth0-eth0"},
    {"nothing but a bridge of containers",
     {"lo lo 127.0.0.1/8", "bridge docker0 172.17.0.%/16"},
     "docker0",
     "",
     ""},
    {"^=eth0 leaves out what lies on it",
     {"nic eth0 10.0.0.%/24", "vlan eth0.5 on eth0 10.5.0.%/24",
      "macvlan mv0 on eth0 10.0.0.10%/24", "nic eth01 10.0.1.%/24"},
     "eth01",
     "",
     "",
     "^=eth0"},
    {"^eth leaves out a bond of theirs",
     {"nic eth0", "bond bond0 member eth0 10.0.0.%/24", "nic ib0 10.0.1.%/24"},
     "ib0",
     "",
     "",
     "^eth"},
    {"^ leaves out no bridge in particular",
     {"nic eth0 10.0.0.%/24", "bridge docker0 172.17.0.%/16", "nic eth1 10.0.1.%/24"},
     "eth0",
     "",
     "",
     "^eth1"},
    {"=eth0 is no prefix",
     {"nic eth0 10.0.0.%/24", "nic eth01 10.0.1.%/24"},
     "eth0",
     "",
     "",
     "=eth0"},
    {"a prefix takes a VLAN along, which shares the cable",
     {"nic eth0 10.0.0.%/24", "vlan eth0.5 on eth0 10.5.0.%/24"},
     "eth0",
     "eth0.5",
     "",
     "eth0"},
    {"named though it leads nowhere",
     {"nic eth0 10.0.0.%/24", "bridge docker0 172.17.0.%/16"},
     "docker0",
     "",
     "",
     "docker0"},
    {"named by another name of its",
     {"nic eth0 alt enp1s0 10.0.0.%/24", "nic eth1 10.0.1.%/24"},
     "eth0",
     "",
     "",
     "enp1s0"},
    {"a name that no interface has",
     {"nic eth0 10.0.0.%/24"},
     "eth0",
     "",
     "",
     "eth0,ib0",
     "names ib0, and this host has no such interface with an address"},
    {"a name of one that is down",
     {"nic eth0 10.0.0.%/24", "nic ib0 down 10.0.1.%/24"},
     "eth0",
     "ib0",
     "ib0-ib0",
     "eth0,ib0",
     "names ib0, which is down"},
};

TEST(Interfaces, EachSituationHasItsDevicesAndItsShadow) {
  EXPECT_GE(situations.size(), 40U);
  for (const Situation& situation : situations) {
    SCOPED_TRACE(situation.what);
    const Host here(situation, 1);
    const Host there(situation, 2);
    if (here.provider == nullptr || there.provider == nullptr) {
      ADD_FAILURE() << here.error << there.error;
      continue;
    }
    EXPECT_EQ(here.names(true), situation.offered);
    EXPECT_EQ(here.names(false), situation.stands_by);
    EXPECT_EQ(here.provider->devices().size(),
              static_cast<size_t>(
                  std::ranges::count_if(*here.provider->interfaces(), &NetInterface::offered)));
    EXPECT_EQ(shadow_between(here, there), situation.shadow);
    std::string warnings;
    for (const std::string& warning : here.notes.warnings) {
      warnings += warning;
    }
    EXPECT_EQ(warnings.empty(), *situation.warning == '\0') << warnings;
    EXPECT_NE(warnings.find(situation.warning), std::string::npos) << warnings;
    for (const NetInterface& one : *here.provider->interfaces()) {
      EXPECT_EQ(one.offered, one.why_not.empty()) << one.name << ": " << one.why_not;
    }
    for (const NetInterface& one : here.notes.left_out) {
      EXPECT_FALSE(one.why_not.empty()) << one.name;
    }
  }
}

NetInterface nic(const char* name, int index, uint8_t mac, const char* address,
                 const char* pci_path = "") {
  NetInterface one;
  one.name = name;
  one.ifindex = index;
  one.mac = {2, 0, 0, 0, 0, mac};
  one.up = true;
  one.pci_path = pci_path;
  one.addresses.push_back(*parse_address(address));
  return one;
}

TEST(Interfaces, KeepTheirPlaceWhateverTheirNumberNameOrAddress) {
  std::vector<NetInterface> before = {
      nic("eth0", 2, 1, "10.0.0.1", "/pci/a"), nic("eth1", 3, 2, "10.0.1.1", "/pci/b"),
      nic("veth0", 4, 3, "10.0.2.1"), nic("veth1", 5, 4, "10.0.3.1")};
  before[0].guid = 7;
  const std::vector<NetInterface> now = {
      nic("eth0", 12, 2, "10.0.1.9", "/pci/b"),  // the names were swapped
      nic("eth1", 13, 1, "10.0.0.1", "/pci/a"), nic("veth0", 14, 9, "10.0.2.1"),
      nic("blue", 15, 4, "10.0.3.1"), nic("eth9", 16, 8, "10.0.9.1")};
  const auto list = renewed(before, now);
  ASSERT_EQ(list.size(), 5U);
  EXPECT_EQ(list[0].name, "eth1");
  EXPECT_EQ(list[0].ifindex, 13);
  EXPECT_EQ(list[0].guid, 7U) << "NCCL knows it by that";
  EXPECT_EQ(list[1].name, "eth0");
  EXPECT_EQ(list[1].addresses.front().text(), "10.0.1.9");
  EXPECT_EQ(list[2].ifindex, 14) << "another device of that name";
  EXPECT_EQ(list[3].name, "blue") << "by its MAC address";
  EXPECT_EQ(list[4].name, "eth9");
  EXPECT_FALSE(list[4].offered);
  EXPECT_FALSE(list[4].why_not.empty());
  const auto gone = renewed(before, {});
  ASSERT_EQ(gone.size(), 4U);
  EXPECT_FALSE(gone[0].up);
  EXPECT_EQ(gone[0].addresses, before[0].addresses) << "it may come back";
  EXPECT_EQ(gone[0].ifindex, 0);
  // As where containers come and go.
  auto lasting = before;
  for (int i = 0; i < 100; ++i) {
    auto today = before;
    today.push_back(nic(("pod" + std::to_string(i)).c_str(), 100 + i, static_cast<uint8_t>(100 + i),
                        "10.0.50.1"));
    lasting = renewed(lasting, today);
  }
  ASSERT_EQ(lasting.size(), 5U);
  EXPECT_EQ(lasting[4].name, "pod99");
}

TEST(Interfaces, OnlyWhatPathsDependOnIsAChange) {
  InterfaceTable table;
  const std::vector<NetInterface> first = {nic("eth0", 2, 1, "10.0.0.1")};
  table.set(first);
  const auto held = table.now();
  EXPECT_FALSE(table.renew(first));
  std::vector<NetInterface> next = first;
  next[0].up = false;  // links are told of by themselves
  EXPECT_FALSE(table.renew(next));
  next[0].addresses.front().bytes[3] = 9;
  EXPECT_TRUE(table.renew(next));
  EXPECT_EQ(table.now()->front().addresses.front().text(), "10.0.0.9");
  EXPECT_EQ(held->front().addresses.front().text(), "10.0.0.1") << "what is held stays";
}

TEST(Interfaces, AreListedAsTheKernelHasThem) {
  const auto all = list_interfaces();
  ASSERT_TRUE(all) << all.error().message();
  const auto loopback = std::ranges::find_if(*all, &NetInterface::loopback);
  ASSERT_NE(loopback, all->end());
  EXPECT_EQ(loopback->name, "lo");
  EXPECT_EQ(loopback->ifindex, 1);
  EXPECT_EQ(loopback->mtu, 65536U);
  EXPECT_TRUE(loopback->addresses.front().loopback());
}

}  // namespace
}  // namespace nccl_ha::fabric
