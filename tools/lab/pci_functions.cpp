#include "tools/lab/pci_functions.h"

#include <fmt/format.h>
#include <sys/mount.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

// A macro of <linux/fs.h>; others have constants of that name.
#undef BLOCK_SIZE

namespace nccl_ha::tools::lab {
namespace {

constexpr const char* class_folder = "/sys/class/net";
constexpr const char* device_folder = "/sys/bus/pci/devices";
constexpr const char* virtual_folder = "/sys/devices/virtual/net";

/// What an interface's folder has of the kernel's own; it is looked up when it is read, as the
/// interface comes later.
constexpr const char* shown_attributes[] = {
    "address", "addr_len", "broadcast",  "carrier", "carrier_changes",  "carrier_down_count",
    "flags",   "ifindex",  "iflink",     "mtu",     "carrier_up_count", "operstate",
    "queues",  "speed",    "statistics", "type",    "duplex",           "dev_port"};

struct PciFunction {
  std::string interface;
  std::string address;    ///< 0000:01:00.0
  std::string port_name;  ///< of the NIC's port that it is one of the ways to: p0
};

void write_line(const std::filesystem::path& file, const std::string& line) {
  std::ofstream out(file);
  out.exceptions(std::ios::badbit | std::ios::failbit);
  out << line << '\n';
}

void show_functions(const std::string& nic, const std::vector<PciFunction>& functions,
                    const std::vector<std::string>& others) {
  const std::filesystem::path net = class_folder;
  for (const std::string& other : others) {
    std::filesystem::create_symlink(std::filesystem::path(virtual_folder) / other, net / other);
  }
  for (const PciFunction& function : functions) {
    const auto device = std::filesystem::path(device_folder) / function.address;
    const auto interface = net / function.interface;
    std::filesystem::create_directories(device / "net");
    std::filesystem::create_directory(interface);
    std::filesystem::create_symlink("/sys/bus/pci", device / "subsystem");
    std::filesystem::create_symlink(interface, device / "net" / function.interface);
    write_line(device / "numa_node", "-1");
    for (const char* attribute : shown_attributes) {
      std::filesystem::create_symlink(
          std::filesystem::path(virtual_folder) / function.interface / attribute,
          interface / attribute);
    }
    std::filesystem::create_symlink(device, interface / "device");
    write_line(interface / "phys_switch_id", nic);
    write_line(interface / "phys_port_name", function.port_name);
  }
}

}  // namespace

Result<void> show_hardware(const Topology& topology, size_t host) {
  std::vector<PciFunction> functions;
  std::vector<std::string> others{"lo"};
  for (const Port& port : topology.ports) {
    if (port.host == host && !port.pci_address.empty()) {
      functions.push_back({port.interface, port.pci_address, port.nic_port});
    } else if (port.host == host) {
      others.push_back(port.interface);
    }
  }
  if (functions.empty()) {
    return {};
  }
  for (const char* folder : {class_folder, device_folder}) {
    if (mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755") != 0) {
      return fail(Errc::system, fmt::format("cannot mount over {}", folder), errno);
    }
  }
  try {
    // The NIC has any number that other hosts' ones do not have.
    show_functions(fmt::format("{:012x}", host + 1), functions, others);
  } catch (const std::exception& error) {  // std::filesystem_error, std::ios_base::failure
    return fail(Errc::system, fmt::format("cannot make up PCI functions: {}", error.what()));
  }
  return {};
}

}  // namespace nccl_ha::tools::lab
