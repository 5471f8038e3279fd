#include "runtime/fabric/verbs/options.h"

#include <algorithm>

#include "runtime/base/config.h"

namespace nccl_ha::fabric::verbs {
namespace {

constexpr Duration least_dead = std::chrono::seconds(1);
constexpr uint64_t megabits = 1'000'000 / 8;  // bytes

}  // namespace

Options Options::from(const Config& config) {
  Options options;
  options.timeout = static_cast<uint8_t>(config.force_ib_timeout != 0 ? config.force_ib_timeout
                                                                      : config.ib_timeout);
  options.retry_count = static_cast<uint8_t>(config.ib_retry_count);
  // A device may take up to four times the nominal timeout (IBTA 9.7.6.1.3).
  const auto nominal = std::chrono::nanoseconds(uint64_t{4096} << options.timeout);
  const Duration longest = 4 * nominal * (options.retry_count + 1);
  options.dead_after = config.ib_dead_ms != 0 ? std::chrono::milliseconds(config.ib_dead_ms)
                                              : std::max<Duration>(2 * longest, least_dead);
  options.pkey_index = static_cast<uint16_t>(config.ib_pkey);
  options.adaptive_routing = static_cast<int>(config.ib_adaptive_routing);
  options.adaptive_routing_threshold = static_cast<uint32_t>(config.ib_ar_threshold);
  options.ece = config.ib_ece;
  options.hung_after = std::chrono::milliseconds(config.ib_hung_ms);
  options.connect_timeout = std::chrono::milliseconds(config.connect_timeout_ms);
  return options;
}

PathTraits Options::traits(bool infiniband, bool gpu_memory, int64_t speed_mbps) const {
  PathTraits traits;
  traits.placed_by_nic = true;
  traits.acknowledged_by_nic = true;
  traits.keys_per_device = true;
  traits.visible_before_completion = true;
  traits.reaches_gpu_memory = gpu_memory;
  traits.may_reorder = adaptive_routing >= 0 ? adaptive_routing != 0 : infiniband;
  traits.end_apart_above = traits.may_reorder ? adaptive_routing_threshold : UINT32_MAX;
  traits.bandwidth = megabits * static_cast<uint64_t>(std::max<int64_t>(speed_mbps, 0));
  return traits;
}

}  // namespace nccl_ha::fabric::verbs
