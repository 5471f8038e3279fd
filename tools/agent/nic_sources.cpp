#include "tools/agent/nic_sources.h"

#include <fmt/format.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#include "tools/agent/ethtool_netlink.h"
#include "tools/common/process.h"

namespace nccl_ha::tools {
namespace {

constexpr size_t statistics_max = 16384;  // drivers with hundreds of queues have thousands

std::optional<uint64_t> read_count(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

/// What the kernel counts for every interface.
class KernelStatistics final : public NicSource {
 public:
  explicit KernelStatistics(std::string folder) : folder_(std::move(folder)) {}
  std::string name() const override { return "sysfs"; }
  bool add(ha::NicReading& reading) override {
    const auto out = read_count(folder_ + "/tx_bytes");
    const auto in = read_count(folder_ + "/rx_bytes");
    if (!out || !in) {
      return false;
    }
    reading.bytes_out += *out;
    reading.bytes_in += *in;
    for (const char* drop : {"/tx_dropped", "/rx_missed_errors", "/rx_fifo_errors"}) {
      reading.discards += read_count(folder_ + drop).value_or(0);
    }
    return true;
  }

 private:
  const std::string folder_;
};

/// What only the driver counts.
class DriverSource final : public NicSource {
 public:
  explicit DriverSource(std::string interface) : interface_(std::move(interface)) {}
  std::string name() const override { return "ethtool"; }
  bool add(ha::NicReading& reading) override {
    const auto statistics = driver_statistics(interface_);
    if (!statistics) {
      return false;
    }
    add_driver_statistics(*statistics, reading);
    return true;
  }

 private:
  const std::string interface_;
};

/// What drivers tell under names that all of them share.
class StandardSource final : public NicSource {
 public:
  StandardSource(std::unique_ptr<EthtoolNetlink> netlink, std::string interface)
      : netlink_(std::move(netlink)), interface_(std::move(interface)) {}
  std::string name() const override { return "ethtool netlink"; }
  bool add(ha::NicReading& reading) override {
    const auto statistics = netlink_->statistics(interface_);
    if (!statistics) {
      return false;
    }
    statistics->add_to(reading);
    return true;
  }

 private:
  const std::unique_ptr<EthtoolNetlink> netlink_;
  const std::string interface_;
};

/// Queue pairs pass the kernel by: their bytes and drops are counted at the device's port only.
class RdmaSource final : public NicSource {
 public:
  RdmaSource(std::string device, std::string folder)
      : device_(std::move(device)), folder_(std::move(folder)) {}
  std::string name() const override { return "rdma " + device_; }
  bool add(ha::NicReading& reading) override {
    constexpr uint64_t word = 4;  // these two count 32-bit words (IBTA 16.1.3.5)
    const auto out = read_count(folder_ + "/counters/port_xmit_data");
    const auto in = read_count(folder_ + "/counters/port_rcv_data");
    reading.bytes_out += out.value_or(0) * word;
    reading.bytes_in += in.value_or(0) * word;
    for (const char* drop : {"/counters/port_xmit_discards", "/hw_counters/out_of_buffer",
                             "/hw_counters/rx_icrc_encapsulated"}) {
      reading.discards += read_count(folder_ + drop).value_or(0);
    }
    return out.has_value() || in.has_value();
  }

 private:
  const std::string device_;
  const std::string folder_;
};

/// Of a folder that may go while it is read.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> entries;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    entries.push_back(at->path());
  }
  return entries;
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

void add_driver_statistics(const DriverStatistics& statistics, ha::NicReading& reading) {
  for (const auto& [name, value] : statistics) {
    const bool out = name.starts_with("tx") || has(name, "_tx_");
    const bool in = name.starts_with("rx") || has(name, "_rx_");
    // Durations and transitions of pauses are no frames.
    if (has(name, "pause") && !has(name, "duration") && !has(name, "transition") &&
        !has(name, "global") && !has(name, "storm")) {
      reading.pauses_out += out ? value : 0;
      reading.pauses_in += in && !out ? value : 0;
    } else if (has(name, "discard") || has(name, "out_of_buffer") || has(name, "no_buffer")) {
      reading.discards += value;
    } else if (has(name, "queue_depth") || has(name, "queue_bytes_used")) {
      auto& queue = out ? reading.queue_out : reading.queue_in;
      queue = queue.value_or(0) + value;
    }
  }
}

Result<DriverStatistics> driver_statistics(const std::string& interface) {
  const Fd socket_fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto refuse = [&](const char* what) {
    return fail(Errc::system, fmt::format("{}: {}", interface, what), errno);
  };
  if (!socket_fd || interface.size() >= IFNAMSIZ) {
    return refuse("cannot ask its driver");
  }
  ifreq request{};
  std::memcpy(request.ifr_name, interface.data(), interface.size());
  const auto ask = [&](void* data) {
    request.ifr_data = static_cast<char*>(data);
    return ioctl(socket_fd.get(), SIOCETHTOOL, &request) == 0;
  };
  // A header with an array behind it, in memory aligned for both.
  std::vector<uint64_t> info_bytes(4);
  auto* info = reinterpret_cast<ethtool_sset_info*>(info_bytes.data());
  info->cmd = ETHTOOL_GSSET_INFO;
  info->sset_mask = uint64_t{1} << ETH_SS_STATS;
  if (!ask(info) || info->sset_mask == 0) {
    return refuse("its driver has no statistics");
  }
  uint32_t count = 0;
  std::memcpy(&count, reinterpret_cast<const char*>(info) + sizeof *info, sizeof count);
  if (count == 0 || count > statistics_max) {
    return refuse("its driver has no statistics");
  }
  std::vector<uint64_t> names_bytes(
      (sizeof(ethtool_gstrings) + size_t{count} * ETH_GSTRING_LEN) / 8 + 1);
  auto* names = reinterpret_cast<ethtool_gstrings*>(names_bytes.data());
  names->cmd = ETHTOOL_GSTRINGS;
  names->string_set = ETH_SS_STATS;
  names->len = count;
  std::vector<uint64_t> values_bytes(sizeof(ethtool_stats) / 8 + count + 1);
  auto* values = reinterpret_cast<ethtool_stats*>(values_bytes.data());
  values->cmd = ETHTOOL_GSTATS;
  values->n_stats = count;
  if (!ask(names) || !ask(values)) {
    return refuse("its driver does not tell its statistics");
  }
  const auto* name = reinterpret_cast<const char*>(names) + sizeof *names;
  const auto* value = reinterpret_cast<const char*>(values) + sizeof *values;
  DriverStatistics out;
  const uint32_t known = std::min({count, names->len, values->n_stats});
  for (uint32_t i = 0; i < known; ++i) {
    uint64_t number = 0;
    std::memcpy(&number, value + size_t{i} * sizeof number, sizeof number);
    const char* text = name + size_t{i} * ETH_GSTRING_LEN;
    out.emplace_back(std::string(text, strnlen(text, ETH_GSTRING_LEN)), number);
  }
  return out;
}

std::vector<std::unique_ptr<NicSource>> nic_sources(const std::string& interface,
                                                    const std::string& root) {
  std::vector<std::unique_ptr<NicSource>> sources;
  const std::string net = root + "/class/net/" + interface;
  sources.push_back(std::make_unique<KernelStatistics>(net + "/statistics"));
  if (driver_statistics(interface)) {
    sources.push_back(std::make_unique<DriverSource>(interface));
  }
  if (auto netlink = EthtoolNetlink::open()) {
    const auto statistics = (*netlink)->statistics(interface);
    if (statistics && !statistics->empty()) {
      sources.push_back(std::make_unique<StandardSource>(std::move(*netlink), interface));
    }
  }
  for (const auto& device : entries_of(net + "/device/infiniband")) {
    for (const auto& port : entries_of(device / "ports")) {
      sources.push_back(std::make_unique<RdmaSource>(device.filename(), port));
    }
  }
  return sources;
}

}  // namespace nccl_ha::tools
