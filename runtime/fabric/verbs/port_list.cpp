#include "runtime/fabric/verbs/port_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/own_thread.h"
#include "runtime/fabric/verbs/conductor.h"

namespace nccl_ha::fabric::verbs {
namespace {

/// To those that may be used, or why it may not.
void sort_in(const Config& config, const std::shared_ptr<Device>& device, PortInfo info,
             PortList& list) {
  const std::string who = fmt::format("{}:{}", info.device, info.port);
  if (!hca_selected(config.ib_hca, info.device, info.port)) {
    list.notes.push_back(fmt::format("{} is left out by HA_NCCL_IB_HCA={}", who, config.ib_hca));
    return;
  }
  if (!info.known_link) {
    list.notes.push_back(
        fmt::format("{} is not usable: its link layer is neither InfiniBand nor Ethernet", who));
    return;
  }
  if (!info.active) {
    list.notes.push_back(fmt::format("{} is not usable: its port is {}", who, info.state));
    list.down.push_back(std::move(info));
    return;
  }
  const auto want = gid_preference(config, info);
  if (!select_gid(info.gids, *want) && info.needs_gid()) {
    list.notes.push_back(fmt::format(
        "{} is not usable: none of its {} GIDs fits the settings (does {} have an IP address?)",
        who, info.gids.size(), info.netdev.empty() ? "its interface" : info.netdev));
    list.without_gid.push_back(std::move(info));
    return;
  }
  list.ports.push_back({device, std::move(info)});
}

/// Given back when nobody opens one of them any more.
class DeviceList {
 public:
  explicit DeviceList(const Library& library) : library_(library) {
    int count = 0;
    errno = 0;
    devices_ = library.device.get_list(&count);
    error_ = errno;
    count_ = devices_ == nullptr ? 0 : static_cast<size_t>(count);
  }
  ~DeviceList() {
    if (devices_ != nullptr) {
      library_.device.free_list(devices_);
    }
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  std::span<ibv_device* const> all() const { return {devices_, count_}; }
  /// Of the call; 0: none.
  int error() const { return error_; }

 private:
  const Library& library_;
  ibv_device** devices_ = nullptr;
  size_t count_ = 0;
  int error_ = 0;
};

/// What opening a device has come to: its conductor's until it is over.
struct Opening {
  std::shared_ptr<Device> device;  ///< null: it could not be opened
  std::vector<PortInfo> ports;
  std::vector<std::string> notes;
  bool whole = false;  ///< false: memory ran out
  Answer over;
};

void open_ports(const Library& library, ibv_device* device, const Config& config, Opening& into) {
  auto opened = Device::open(library, device, config);
  if (!opened) {
    into.notes.push_back(opened.error().message());
    into.whole = true;
    return;
  }
  for (unsigned number = 1; number <= (*opened)->port_count(); ++number) {
    auto info = (*opened)->query(static_cast<uint8_t>(number));
    if (info) {
      into.ports.push_back(std::move(*info));
    } else {
      into.notes.push_back(info.error().message());
    }
  }
  into.device = std::move(*opened);
  into.whole = true;
}

struct Opener {
  Opener() = default;
  Opener(Opener&&) = default;
  /// One that hangs stays as it is.
  ~Opener() {
    if (conductor && !conductor->drain(Duration(0))) {
      static_cast<void>(keep_code_loaded());  // which its thread comes back to
      static_cast<void>(conductor.release());
    }
  }

  std::string name;
  std::shared_ptr<Opening> opening = std::make_shared<Opening>();
  std::unique_ptr<Conductor> conductor;
};

Opener begin_to_open(const Library& library, const std::shared_ptr<DeviceList>& list,
                     ibv_device* device, const std::shared_ptr<const Config>& config) {
  Opener opener;
  opener.name = library.device.get_name(device);
  opener.conductor = std::make_unique<Conductor>(library, nullptr);
  const auto opening = opener.opening;
  opener.conductor->add(
      Conductor::Rank::make,
      [&library, list, device, config, opening] { open_ports(library, device, *config, *opening); },
      [opening] { opening->over.result.store(0, std::memory_order_release); });
  return opener;
}

/// False: the device hangs.
bool await_opening(const Opener& opener, Duration patience) {
  Conductor& conductor = *opener.conductor;
  return conductor.await(opener.opening->over, [&] { return !conductor.hangs(patience); }) &&
         conductor.drain(patience);
}

bool any_port_selected(const Config& config, std::string_view device) {
  for (unsigned port = 1; port <= UINT8_MAX; ++port) {
    if (hca_selected(config.ib_hca, device, port)) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<UsablePort> open_successor(const Library& library, const NicIdentity& before,
                                       const Config& config) {
  const DeviceList devices(library);
  std::vector<NicIdentity> now;
  for (ibv_device* device : devices.all()) {
    const std::string name = library.device.get_name(device);
    now.push_back({name, node_guid_of(name), device_path_of(name)});
  }
  const auto found = successor_of(before, now);
  Opening opening;
  if (found) {
    open_ports(library, devices.all()[*found], config, opening);
  }
  PortList list;
  Config any = config;
  any.ib_hca.clear();  // it had been selected, and may have another name now
  for (PortInfo& info : opening.ports) {
    sort_in(any, opening.device, std::move(info), list);
  }
  for (const auto* notes : {&opening.notes, &list.notes}) {
    for (const std::string& note : *notes) {
      NHA_LOG_WARN_LIMITED("RDMA device {} is not used again yet: {}", before.name, note);
    }
  }
  // Those that follow are heard of by the device's events.
  for (std::vector<PortInfo>* later : {&list.down, &list.without_gid}) {
    for (PortInfo& info : *later) {
      if (!list.ports.empty()) {
        list.ports.push_back({opening.device, std::move(info)});
      }
    }
  }
  return std::move(list.ports);
}

Result<PortList> list_ports(const Config& config, Duration patience) {
  PortList list;
  // Settings are checked even where there is no device: a typing error should not wait for one.
  if (auto checked = gid_preference(config, PortInfo{}); !checked) {
    return checked.error();
  }
  auto library = Library::load();
  if (!library) {
    list.notes.push_back(library.error().message());
    return list;
  }
  const auto devices = std::make_shared<DeviceList>(**library);
  if (devices->all().empty()) {
    const int error = devices->error();
    list.notes.push_back(
        error == 0 || error == ENOSYS || error == ENOENT
            ? std::string("this host has no RDMA device")
            : fmt::format("no RDMA device can be listed: {}", std::strerror(error)));
  }
  const auto settings = std::make_shared<const Config>(config);
  std::vector<Opener> openers;
  for (ibv_device* device : devices->all()) {
    const char* name = (*library)->device.get_name(device);
    if (!any_port_selected(config, name)) {
      list.notes.push_back(fmt::format("{} is left out by HA_NCCL_IB_HCA={}", name, config.ib_hca));
    } else if (device->transport_type != IBV_TRANSPORT_IB) {  // which RoCE has, too
      list.notes.push_back(
          fmt::format("{} is not usable: its transport is not InfiniBand's (iWARP, EFA)", name));
    } else {
      openers.push_back(begin_to_open(**library, devices, device, settings));
    }
  }
  for (const Opener& opener : openers) {
    if (!await_opening(opener, patience)) {
      list.notes.push_back(fmt::format(
          "RDMA device {} is left out: its firmware has not answered for {} s while it "
          "was opened; see the kernel's log",
          opener.name, std::chrono::duration_cast<std::chrono::seconds>(patience).count()));
      NHA_LOG_WARN("{}", list.notes.back());
      continue;
    }
    Opening& opening = *opener.opening;
    if (!opening.whole) {
      return fail(Errc::no_memory,
                  fmt::format("RDMA device {}: out of memory while it was opened", opener.name));
    }
    list.notes.insert(list.notes.end(), opening.notes.begin(), opening.notes.end());
    for (PortInfo& info : opening.ports) {
      sort_in(config, opening.device, std::move(info), list);
    }
  }
  std::sort(list.ports.begin(), list.ports.end(), [](const UsablePort& a, const UsablePort& b) {
    return std::pair(a.info.device, a.info.port) < std::pair(b.info.device, b.info.port);
  });
  return list;
}

}  // namespace nccl_ha::fabric::verbs
