#include "runtime/fabric/verbs/device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <net/if.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"
#include "runtime/base/own_thread.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha::fabric::verbs {
namespace {

/// Of an attribute in sysfs, which is one line.  `error`: why there is none, an errno.
std::string read_line(const std::string& path, int* error = nullptr) {
  std::array<char, 256> text{};
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t got = fd < 0 ? -1 : read(fd, text.data(), text.size());
  if (error != nullptr) {
    *error = got < 0 ? errno : 0;
  }
  if (fd >= 0) {
    close(fd);
  }
  const std::string_view line(text.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return std::string(line.substr(0, line.find('\n')));
}

std::string sysfs(const std::string& device) { return "/sys/class/infiniband/" + device; }

/// A directory entry of /sys/class/infiniband/DEVICE/ports/PORT.
std::string port_file(const PortInfo& info, const std::string& rest) {
  return fmt::format("{}/ports/{}/{}", sysfs(info.device), info.port, rest);
}

constexpr uint8_t fastest_code = 128;  // NDR

/// Firmware that takes so long for one command hangs.
constexpr Duration silent_after = std::chrono::seconds(1);

uint64_t to_host(__be64 value) { return be64toh(value); }

void read_place(PortInfo& info) {
  info.pci_path = device_path_of(info.device);
  const std::string numa = read_line(sysfs(info.device) + "/device/numa_node");
  int node = -1;
  static_cast<void>(std::from_chars(numa.data(), numa.data() + numa.size(), node));
  info.numa_node = node;
}

/// NCCL leaves out what it cannot read the type of: in containers the kernel answers EINVAL.
void read_scope(const PortInfo& info, bool interface_known, GidEntry& entry) {
  int error = 0;
  const std::string type =
      read_line(port_file(info, fmt::format("gid_attrs/types/{}", entry.index)), &error);
  entry.roce_v2 = entry.roce_v2 || type == "RoCE v2";
  entry.scope = error == EINVAL    ? GidScope::hidden
                : !interface_known ? GidScope::elsewhere
                                   : GidScope::here;
}

std::string_view next_part(std::string_view* list) {
  const size_t comma = list->find(',');
  const std::string_view part = list->substr(0, comma);
  *list = comma == std::string_view::npos ? std::string_view{} : list->substr(comma + 1);
  return part;
}

}  // namespace

std::string memlock_hint(int error) {
  rlimit limit{};
  if (error != ENOMEM || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return {};
  }
  return fmt::format("; only {} KiB may be locked: raise it with ulimit -l unlimited",
                     limit.rlim_cur / 1024);
}

const char* to_text(LinkLayer layer) {
  switch (layer) {
    case LinkLayer::ethernet:
      return "RoCE";
    case LinkLayer::infiniband:
      return "InfiniBand";
  }
  return "unknown";
}

uint64_t node_guid_of(const std::string& device) {
  std::string digits = read_line(sysfs(device) + "/node_guid");  // four groups between colons
  std::erase(digits, ':');
  uint64_t guid = 0;
  static_cast<void>(std::from_chars(digits.data(), digits.data() + digits.size(), guid, 16));
  return guid;
}

std::string device_path_of(const std::string& device) {
  return pci_path_of(sysfs(device) + "/device");
}

int width_lanes(uint8_t code) {
  switch (code) {
    case 1:
      return 1;
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 1;
  }
}

int64_t lane_mbps(uint8_t code) {
  switch (code) {
    case 1:
      return 2500;  // SDR
    case 2:
      return 5000;  // DDR
    case 4:
    case 8:
      return 10000;  // QDR, FDR10
    case 16:
      return 14000;  // FDR
    case 32:
      return 25000;  // EDR
    case 64:
      return 50000;  // HDR
    case fastest_code:
      return 100000;  // NDR
    default:
      return 0;
  }
}

int64_t rate_mbps(std::string_view text) {
  const size_t unit = text.find(" Gb/sec");
  if (unit == std::string_view::npos) {
    return 0;
  }
  double gigabits = 0;  // a quarter of QDR's lane is 2.5
  const auto [end, error] = std::from_chars(text.data(), text.data() + unit, gigabits);
  return error == std::errc{} && end == text.data() + unit ? static_cast<int64_t>(gigabits * 1000)
                                                           : 0;
}

bool hca_selected(std::string_view spec, std::string_view device, unsigned port) {
  const bool exclude = spec.starts_with('^');
  spec = exclude ? spec.substr(1) : spec;
  const bool exact = spec.starts_with('=');
  spec = exact ? spec.substr(1) : spec;
  if (spec.empty()) {
    return true;
  }
  bool listed = false;
  while (!spec.empty()) {
    const std::string_view part = next_part(&spec);
    const size_t colon = part.find(':');
    const std::string_view name = part.substr(0, colon);
    unsigned wanted_port = 0;
    if (colon != std::string_view::npos) {
      const std::string_view digits = part.substr(colon + 1);
      static_cast<void>(std::from_chars(digits.data(), digits.data() + digits.size(), wanted_port));
    }
    const bool named = exact ? name == device : device.starts_with(name);
    listed |= !name.empty() && named && (wanted_port == 0 || wanted_port == port);
  }
  return listed != exclude;
}

Result<std::shared_ptr<Device>> Device::open(const Library& library, ibv_device* device,
                                             const Config& config) {
  std::shared_ptr<Device> opened(new Device(library), let_go);
  opened->name_ = library.device.get_name(device);
  auto refuse = [&](const char* what) {
    return fail(Errc::system, fmt::format("RDMA device {}: cannot {}", opened->name_, what), errno);
  };
  {
    OwnFds own;
    opened->context_ = library.device.open(device);
    if (opened->context_ == nullptr) {
      return refuse("open it");
    }
    own.add(opened->context_->cmd_fd);
    own.add(opened->context_->async_fd);
  }
  auto sentinel = opened->open_channel();  // before anything else is made
  if (!sentinel) {
    return sentinel.error();
  }
  opened->sentinel_ = *sentinel;
  if (library.waited == nullptr) {
    const std::string attribute = sysfs(opened->name_) + "/node_type";
    opened->attribute_ = make_fd([&] { return ::open(attribute.c_str(), O_RDONLY | O_CLOEXEC); });
  }
  if (library.device.query(opened->context_, &opened->attributes_) != 0) {
    return refuse("query it");
  }
  opened->pd_ = library.memory.alloc_domain(opened->context_);
  if (opened->pd_ == nullptr) {
    return refuse("allocate a protection domain");
  }
  opened->resolver_ = std::make_unique<Resolver>(library, opened->pd_);
  opened->conductor_ = std::make_unique<Conductor>(library, opened->context_);
  opened->registrar_ = std::make_unique<Conductor>(library, opened->context_);
  const int flags = fcntl(opened->context_->async_fd, F_GETFL);
  if (flags < 0 || fcntl(opened->context_->async_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return refuse("make its event descriptor non-blocking");
  }
  opened->relaxed_ordering_ =
      config.ib_relaxed_ordering != 0 && library.memory.reg_iova2 != nullptr;
  opened->detect_gpu_support();
  return opened;
}

bool Device::answers() {
  ibv_port_attr attributes{};
  int error = library_.device.query_port(context_, 1, &attributes);
  if (error == 0) {
    error = conductor().question();  // perhaps the driver answered by itself
  }
  if (error == 0 || is_shortage(error)) {
    return true;
  }
  if (health.worsen(DeviceHealth::Level::failed)) {
    NHA_LOG_WARN("RDMA device {}: it answers nothing any more: see the kernel's log", name_);
  }
  return false;
}

void Device::let_go(Device* device) {
  const auto through = [](const auto& own) { return !own || own->drain(silent_after); };
  const bool over =
      through(device->registrar_) && through(device->conductor_) && through(device->resolver_);
  if (over) {
    delete device;
  } else {
    static_cast<void>(keep_code_loaded());  // which its threads come back to
    NHA_LOG_WARN("RDMA device {}: its firmware does not answer, and the device stays open",
                 device->name_);
  }
}

Device::~Device() {
  resolver_.reset();   // it uses the protection domain
  conductor_.reset();  // so do queue pairs
  registrar_.reset();
  if (!regions_.empty()) {
    NHA_LOG_DEBUG("RDMA device {}: {} registrations left at close", name_, regions_.size());
  }
  for (const Entry& entry : regions_) {
    static_cast<void>(library_.memory.dereg(entry.mr));
  }
  regions_.clear();  // protection domains go before the device's context
  if (pd_ != nullptr) {
    static_cast<void>(library_.memory.free_domain(pd_));
  }
  close_channel(sentinel_);
  close_fd(attribute_);
  if (context_ != nullptr) {
    OwnFds own;
    own.remove(context_->cmd_fd);
    own.remove(context_->async_fd);
    static_cast<void>(library_.device.close(context_));
  }
}

Result<ibv_comp_channel*> Device::open_channel() const {
  ibv_comp_channel* channel = nullptr;
  {
    OwnFds own;
    channel = library_.completion.create_channel(context_);
    if (channel == nullptr) {
      return fail(Errc::system,
                  fmt::format("RDMA device {}: cannot create a completion channel", name_), errno);
    }
    own.add(channel->fd);
  }
  const int flags = fcntl(channel->fd, F_GETFL);
  if (flags < 0 || fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    const int error = errno;
    close_channel(channel);
    return fail(Errc::system,
                fmt::format("RDMA device {}: cannot make a completion channel non-blocking", name_),
                error);
  }
  return channel;
}

void Device::close_channel(ibv_comp_channel* channel) const {
  if (channel != nullptr) {
    OwnFds own;
    own.remove(channel->fd);
    static_cast<void>(library_.completion.destroy_channel(channel));
  }
}

bool Device::taken_away() const { return sentinel_gone() && unregistered(); }

bool Device::unregistered() const {
  char byte = 0;
  // Whatever bears the name by now: this is the device that was opened.
  return attribute_ < 0 || (pread(attribute_, &byte, sizeof byte, 0) < 0 && errno == ENODEV);
}

bool Device::sentinel_gone() const {
  // Without a completion queue nothing ever comes there.
  pollfd asked{sentinel_->fd, POLLIN, 0};
  if (poll(&asked, 1, 0) == 1 && (asked.revents & (POLLERR | POLLHUP)) != 0) {
    return true;
  }
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  errno = 0;
  return library_.completion.get_event(sentinel_, &cq, &context) != 0 && errno == EIO;
}

void Device::detect_gpu_support() {
  // The peer-memory modules of the NVIDIA driver and of its predecessors show themselves here.
  for (const char* file :
       {"/sys/kernel/mm/memory_peers/nv_mem/version",
        "/sys/kernel/mm/memory_peers/nv_mem_nc/version", "/sys/module/nvidia_peermem/version"}) {
    peer_memory_ |= library_.waited == nullptr && access(file, F_OK) == 0;
  }
  if (library_.memory.reg_dmabuf != nullptr) {
    // With an impossible descriptor, a kernel and driver that know DMA-BUF complain about the
    // descriptor, others about the call.
    errno = 0;
    ibv_mr* mr = library_.memory.reg_dmabuf(pd_, 0, 4096, 0, -1, 0);
    dmabuf_ = mr == nullptr && errno == EBADF;
    if (mr != nullptr) {
      static_cast<void>(library_.memory.dereg(mr));
    }
  }
}

/// One call for the whole table, where rdma-core and the kernel know it.
bool Device::read_gid_table(PortInfo& info, int table_length) const {
  if (library_.device.query_gid_table == nullptr || table_length <= 0) {
    return false;
  }
  std::vector<ibv_gid_entry> entries(static_cast<size_t>(table_length) * port_count());
  const ssize_t count = library_.device.query_gid_table(context_, entries.data(), entries.size(), 0,
                                                        sizeof(ibv_gid_entry));
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& found = entries[static_cast<size_t>(i)];
    if (found.port_num != info.port) {
      continue;
    }
    GidEntry entry;
    entry.index = found.gid_index;
    std::copy(std::begin(found.gid.raw), std::end(found.gid.raw), entry.bytes.begin());
    entry.roce_v2 = found.gid_type == IBV_GID_TYPE_ROCE_V2;
    std::array<char, IF_NAMESIZE> name{};
    const bool named = found.ndev_ifindex != 0;
    if (named && if_indextoname(found.ndev_ifindex, name.data()) != nullptr) {
      entry.netdev = name.data();
    }
    if (info.link == LinkLayer::ethernet) {
      read_scope(info, !named || !entry.netdev.empty(), entry);
    }
    info.gids.push_back(std::move(entry));
  }
  return count >= 0;
}

void Device::read_gids(PortInfo& info, int table_length) const {
  if (read_gid_table(info, table_length)) {
    return;
  }
  for (int index = 0; index < table_length; ++index) {
    ibv_gid gid{};
    if (library_.device.query_gid(context_, info.port, index, &gid) != 0) {
      continue;
    }
    GidEntry entry;
    entry.index = static_cast<uint32_t>(index);
    std::copy(std::begin(gid.raw), std::end(gid.raw), entry.bytes.begin());
    if (std::all_of(entry.bytes.begin(), entry.bytes.end(), [](uint8_t b) { return b == 0; })) {
      continue;
    }
    entry.netdev = read_line(port_file(info, fmt::format("gid_attrs/ndevs/{}", index)));
    if (info.link == LinkLayer::ethernet) {
      read_scope(info, entry.netdev.empty() || if_nametoindex(entry.netdev.c_str()) != 0, entry);
    }
    info.gids.push_back(std::move(entry));
  }
}

/// The code has 8 bits, in which the kernel tells of faster lanes as of NDR.
int64_t Device::speed_of(const PortInfo& info, const ibv_port_attr& attributes) const {
  const int64_t told = lane_mbps(attributes.active_speed);
  int64_t rate = 0;
  if (told == 0 || attributes.active_speed == fastest_code) {
    rate = rate_mbps(read_line(port_file(info, "rate")));
  }
  return rate != 0 ? rate : width_lanes(attributes.active_width) * std::max<int64_t>(told, 2500);
}

Result<PortInfo> Device::query(uint8_t port) const {
  ibv_port_attr attributes{};
  if (library_.device.query_port(context_, port, &attributes) != 0) {
    return fail(Errc::system, fmt::format("RDMA device {}: cannot query port {}", name_, port),
                errno);
  }
  PortInfo info;
  info.device = name_;
  info.port = port;
  info.port_count = attributes_.phys_port_cnt;
  info.link = attributes.link_layer == IBV_LINK_LAYER_INFINIBAND ? LinkLayer::infiniband
                                                                 : LinkLayer::ethernet;
  info.known_link = attributes.link_layer == IBV_LINK_LAYER_INFINIBAND ||
                    attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  info.active = attributes.state == IBV_PORT_ACTIVE;
  static constexpr const char* states[] = {"no change", "down",   "initialising",
                                           "armed",     "active", "active (deferred)"};
  info.state = attributes.state <= IBV_PORT_ACTIVE_DEFER ? states[attributes.state] : "unknown";
  info.lid = attributes.lid;
  info.global_only =
      info.link == LinkLayer::infiniband && (attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
  info.mtu = 128U << static_cast<unsigned>(attributes.active_mtu);
  info.message_max = attributes.max_msg_sz;
  info.speed_mbps = speed_of(info, attributes);
  const uint64_t card = to_host(attributes_.sys_image_guid);
  info.guid = card != 0 ? card : to_host(attributes_.node_guid);
  read_place(info);
  read_gids(info, attributes.gid_tbl_len);
  for (const GidEntry& entry : info.gids) {
    if (info.netdev.empty() && entry.scope == GidScope::here) {
      info.netdev = entry.netdev;
    }
  }
  if (info.netdev.empty()) {
    info.netdev = read_line(sysfs(name_) + "/parent");  // software devices
  }
  return info;
}

Result<GidPreference> gid_preference(const Config& config, const PortInfo& port) {
  GidPreference want;
  want.infiniband = port.link == LinkLayer::infiniband;
  want.index = config.ib_gid_index;
  want.roce_version = config.ib_roce_version;
  if (config.ib_addr_family != "AF_INET" && config.ib_addr_family != "AF_INET6") {
    return fail(
        Errc::invalid_argument,
        fmt::format("HA_NCCL_IB_ADDR_FAMILY={}: use AF_INET or AF_INET6", config.ib_addr_family));
  }
  want.family = config.ib_addr_family == "AF_INET6" ? 6 : 4;
  if (!config.ib_addr_range.empty()) {
    auto range = parse_address_range(config.ib_addr_range);
    if (!range) {
      return fail(Errc::invalid_argument, "HA_NCCL_IB_ADDR_RANGE: " + range.error().what);
    }
    if (range->prefix_len != 0) {
      want.range = *range;
    }
  }
  return want;
}

}  // namespace nccl_ha::fabric::verbs
