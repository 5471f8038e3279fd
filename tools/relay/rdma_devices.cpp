#include "tools/relay/rdma_devices.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace nccl_ha::tools {
namespace {

/// The kernel's "4: ACTIVE".
bool any_port_active(const std::filesystem::path& device) {
  std::error_code none;
  for (const auto& port : std::filesystem::directory_iterator(device / "ports", none)) {
    if (std::ifstream(port.path() / "state").get() == '4') {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<RdmaDevices::Device> RdmaDevices::list() const {
  std::vector<Device> devices;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, none)) {
    struct stat about {};
    if (lstat(entry.path().c_str(), &about) == 0) {
      devices.push_back({entry.path().filename(), about.st_ino, any_port_active(entry.path())});
    }
  }
  std::ranges::sort(devices, {}, &Device::name);
  return devices;
}

bool RdmaDevices::changed() {
  std::vector<Device> now = list();
  const bool same = now == std::exchange(last_, now);
  const auto find_in = [](const std::vector<Device>& all, const Device& wanted) {
    return std::ranges::find_if(all, [&](const Device& one) {
      return one.name == wanted.name && one.number == wanted.number;
    });
  };
  const bool gone = std::ranges::any_of(
      begun_, [&](const Device& one) { return find_in(now, one) == now.end(); });
  const bool up = std::ranges::any_of(now, [&](const Device& one) {
    const auto before = find_in(begun_, one);
    return one.active && (before == begun_.end() || !before->active);
  });
  return same && (gone || up);
}

}  // namespace nccl_ha::tools
