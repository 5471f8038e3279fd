#include "runtime/fabric/datagram/port_opener.h"

#include <utility>

#include "runtime/base/log.h"
#include "runtime/fabric/datagram/port.h"

namespace nccl_ha::fabric {

Result<PortOpener> PortOpener::from(const Config& config, Memory& memory) {
  auto faults = parse_fault_plan(config.dgram_faults);
  if (!faults) {
    return faults.error();
  }
  if (faults->active()) {
    NHA_LOG_WARN("fault injection is on (HA_NCCL_DGRAM_FAULTS={}): packets will be lost on purpose",
                 config.dgram_faults);
  }
  PortOpener opener;
  opener.options_ = DatagramOptions::from(config);
  opener.faults_ = *faults;
  opener.memory_ = &memory;
  return opener;
}

Result<OwnedPath> PortOpener::create_path(Context& context, std::weak_ptr<DatagramPort>& slot,
                                          uint32_t mtu, const Open& open,
                                          const PathOptions& options, PathOwner* owner) {
  auto opened = port(context, slot, mtu, open);
  if (!opened) {
    return opened.error();
  }
  auto path = (*opened)->create_path(options, owner);
  if (!path) {
    return path.error();
  }
  return OwnedPath{std::move(*opened), std::move(*path)};
}

Result<std::shared_ptr<DatagramPort>> PortOpener::port(Context& context,
                                                       std::weak_ptr<DatagramPort>& slot,
                                                       uint32_t mtu, const Open& open) {
  // Paths on a broken one may hold it for long, each until it is made anew itself.
  if (auto known = slot.lock(); known && !known->io().broken()) {
    return known;
  }
  auto opened = open();
  if (!opened) {
    return opened.error();
  }
  std::unique_ptr<PacketIo> io = std::move(*opened);
  if (faults_.active()) {
    FaultPlan plan = faults_;
    plan.seed += context.random().below(1U << 20);  // peers must not lose in step
    io = std::make_unique<FaultIo>(std::move(io), plan, &context.recorder());
  }
  DatagramPort::Environment environment;
  environment.memory = memory_;
  environment.clock = &context.clock();
  environment.timers = &context.timers();
  environment.lost = &context.lost_time();
  environment.secrets = &context.secrets();
  environment.recorder = &context.recorder();
  environment.counters = context.counters().place();
  auto* raw = new DatagramPort(std::move(io), options_, environment, mtu);
  context.add_poller(raw);
  std::shared_ptr<DatagramPort> made(raw, [&context](DatagramPort* port) {
    context.remove_poller(port);
    delete port;
  });
  slot = made;
  return made;
}

}  // namespace nccl_ha::fabric
