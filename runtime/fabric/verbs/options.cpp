#include "runtime/fabric/verbs/options.h"

#include <algorithm>

#include "runtime/config.h"

namespace nccl_ha::fabric::verbs {
namespace {

constexpr Duration least_dead = std::chrono::seconds(1);

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
  options.ece = config.ib_ece;
  options.connect_timeout = std::chrono::milliseconds(config.connect_timeout_ms);
  return options;
}

}  // namespace nccl_ha::fabric::verbs
