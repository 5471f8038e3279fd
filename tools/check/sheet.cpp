#include "tools/check/sheet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "actors/control.h"
#include "runtime/base/version.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

void add_addresses(RailSheet& rail, const fabric::NetInterface& interface) {
  if (interface.mac != decltype(interface.mac){}) {
    rail.mac = fmt::format("{:02x}", fmt::join(interface.mac, ":"));
  }
  for (const IpAddress& address : interface.addresses) {
    if (!address.self_assigned() && !address.loopback()) {
      rail.addresses.push_back(address.text());
      rail.networks.push_back(network_of(address));
    }
  }
}

std::string machine_key() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network {};
  const bool known = stat("/proc/self/ns/net", &network) == 0;
  return fmt::format("{}:{}", boot, known ? network.st_ino : 0);
}

/// The file's name has it: libibverbs.so.1.14.44.0 is of rdma-core 44.0.
std::string rdma_core_version() {
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                             "/usr/lib64", "/lib64", "/usr/lib"}) {
    std::error_code error;
    const fs::path file = fs::canonical(fs::path(folder) / "libibverbs.so.1", error);
    const std::string name = file.filename().string();
    const std::string_view begin = "libibverbs.so.1.";
    const size_t dot = name.find('.', begin.size());
    if (!error && name.starts_with(begin) && dot != std::string::npos) {
      return name.substr(dot + 1);
    }
  }
  return {};
}

}  // namespace

std::string network_of(IpAddress address) {
  const size_t bytes = address.family == 6 ? 16 : 4;
  for (size_t bit = address.prefix_len; bit < bytes * 8; ++bit) {
    address.bytes[bit / 8] = static_cast<uint8_t>(address.bytes[bit / 8] & ~(0x80U >> (bit % 8)));
  }
  return fmt::format("{}/{}", address.text(), address.prefix_len);
}

json to_json(const HostSheet& sheet) {
  json rails = json::array();
  for (const RailSheet& rail : sheet.rails) {
    rails.push_back({{"name", rail.name},
                     {"addresses", rail.addresses},
                     {"networks", rail.networks},
                     {"mtu_bytes", rail.mtu},
                     {"speed_mbps", rail.speed_mbps},
                     {"mac", rail.mac},
                     {"interface", rail.interface}});
  }
  return {{"name", sheet.name},
          {"machine", sheet.machine},
          {"version", sheet.version},
          {"commit", sheet.commit},
          {"protocol", sheet.protocol},
          {"protocol_oldest", sheet.protocol_oldest},
          {"kernel", sheet.kernel},
          {"rdma_core", sheet.rdma_core},
          {"clock_s", sheet.clock_s},
          {"settings", sheet.settings},
          {"rails", std::move(rails)},
          {"bare", sheet.bare},
          {"plugin_asked", sheet.plugin_asked},
          {"asks_for_plugin", sheet.asks_for_plugin}};
}

Result<HostSheet> sheet_from_json(const json& from) {
  try {
    HostSheet sheet;
    // Another version may tell less or more of itself, and that they differ is to be said.
    sheet.name = from.at("name");
    sheet.version = from.at("version");
    sheet.commit = from.at("commit");
    sheet.protocol = from.at("protocol");
    sheet.protocol_oldest = from.value("protocol_oldest", sheet.protocol);
    sheet.machine = from.value("machine", sheet.name);
    sheet.kernel = from.value("kernel", "");
    sheet.rdma_core = from.value("rdma_core", "");
    sheet.clock_s = from.value("clock_s", 0.0);
    sheet.settings = from.value("settings", decltype(sheet.settings){});
    sheet.bare = from.value("bare", sheet.bare);
    sheet.plugin_asked = from.value("plugin_asked", "");
    sheet.asks_for_plugin = from.value("asks_for_plugin", false);
    for (const json& one : from.value("rails", json::array())) {
      RailSheet rail;
      rail.name = one.value("name", "");
      rail.addresses = one.value("addresses", rail.addresses);
      rail.networks = one.value("networks", rail.networks);
      rail.mtu = one.value("mtu_bytes", rail.mtu);
      rail.speed_mbps = one.value("speed_mbps", rail.speed_mbps);
      rail.mac = one.value("mac", rail.mac);
      rail.interface = one.value("interface", rail.name);
      sheet.rails.push_back(std::move(rail));
    }
    return sheet;
  } catch (const json::exception& error) {
    return fail(Errc::internal,
                fmt::format("what a host tells of itself cannot be read: {}", error.what()));
  }
}

HostSheet make_sheet(const HostFacts& facts) {
  HostSheet sheet;
  sheet.name = facts.name;
  sheet.machine = machine_key();
  sheet.version = version_number();
  sheet.commit = version_commit();
  sheet.protocol = own_versions.newest;
  sheet.protocol_oldest = own_versions.oldest;
  utsname kernel{};
  if (uname(&kernel) == 0) {
    sheet.kernel = kernel.release;
  }
  sheet.rdma_core = rdma_core_version();
  for (const SettingView& view : describe(facts.config)) {
    sheet.settings[view.name] = view.value;
  }
  sheet.plugin_asked = facts.plugin.asked;
  sheet.asks_for_plugin = !facts.plugin.asks_for_none();
  for (const fabric::NetInterface& one : facts.all_interfaces) {
    const bool offered =
        std::any_of(facts.interfaces.begin(), facts.interfaces.end(),
                    [&](const fabric::NetInterface& other) { return other.name == one.name; });
    if (one.up && !one.loopback && one.leads_to <= fabric::LinkClass::pair &&
        one.only_self_assigned() && !offered) {
      sheet.bare.push_back(one.name);
    }
  }
  const auto beneath = [&](const std::string& name) {
    return std::find_if(facts.interfaces.begin(), facts.interfaces.end(),
                        [&](const auto& one) { return one.name == name; });
  };
  for (const ChosenPort& port : facts.rdma.ports) {
    RailSheet rail;
    rail.name = port.info.device;
    rail.mtu = port.info.mtu;
    rail.speed_mbps = port.info.speed_mbps;
    rail.interface = port.info.netdev;
    if (const auto found = beneath(port.info.netdev); found != facts.interfaces.end()) {
      add_addresses(rail, *found);
    }
    sheet.rails.push_back(std::move(rail));
  }
  if (facts.rdma.ports.empty() || facts.config.fabric == "datagram") {
    for (const fabric::NetInterface& interface : facts.interfaces) {
      RailSheet rail{interface.name, {}, {}, interface.mtu, interface.speed_mbps, {},
                     interface.name};
      add_addresses(rail, interface);
      sheet.rails.push_back(std::move(rail));
    }
  }
  return sheet;
}

double wall_clock_s() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::string versions_text(const HostSheet& sheet) {
  return fmt::format("nccl-ha {} ({}), kernel {}, {}", sheet.version, sheet.commit, sheet.kernel,
                     sheet.rdma_core.empty() ? "no rdma-core" : "rdma-core " + sheet.rdma_core);
}

}  // namespace nccl_ha::tools
