#include "runtime/fabric/verbs/device_watch.h"

#include "runtime/base/log.h"

namespace nccl_ha::fabric::verbs {
namespace {

// A storm of events must not keep the worker from its connections; the rest comes next turn.
constexpr unsigned events_per_turn = 32;

}  // namespace

EventEffect effect_of(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_PORT_ERR:
      return EventEffect::port_down;
    case IBV_EVENT_PORT_ACTIVE:
      return EventEffect::port_up;
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      return EventEffect::addresses;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return EventEffect::queue_fault;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:  // a completion queue overran: completions are lost for good
      return EventEffect::device_lost;
    default:
      return EventEffect::none;
  }
}

DeviceWatch::~DeviceWatch() {
  if (!failed_) {
    device_->watched.store(false, std::memory_order_release);
  }
}

void DeviceWatch::start(Context& context) {
  context_ = &context;
  auto watch = context.streams().watch_fd(device_->context()->async_fd, this);
  if (!watch) {
    NHA_LOG_WARN_LIMITED("RDMA device {}: its events cannot be watched: {}", device_->name(),
                         watch.error().message());
    failed_ = true;
    device_->watched.store(false, std::memory_order_release);  // the next one tries again
    return;
  }
  watch_ = std::move(*watch);
}

void DeviceWatch::on(const Message& message) { (void)message; }

void DeviceWatch::stop() { watch_.reset(); }

void DeviceWatch::on_readable(int fd) {
  (void)fd;
  const Library& library = device_->library();
  ibv_async_event event{};
  for (unsigned i = 0; i < events_per_turn && library.event.get(device_->context(), &event) == 0;
       ++i) {
    take(event);
    // Destroying a queue pair waits for this.
    library.event.ack(&event);
  }
}

void DeviceWatch::take(const ibv_async_event& event) {
  const EventEffect effect = effect_of(event.event_type);
  const char* what = device_->library().event.type_text(event.event_type);
  context_->recorder().note(TraceEvent::device_event, id().index,
                            static_cast<uint64_t>(event.event_type), static_cast<uint64_t>(effect));
  if (tell_ && (effect == EventEffect::port_down || effect == EventEffect::port_up ||
                effect == EventEffect::device_lost)) {
    tell_(effect,
          effect == EventEffect::device_lost ? 0U : static_cast<unsigned>(event.element.port_num));
  }
  switch (effect) {
    case EventEffect::port_down:
      NHA_LOG_WARN("RDMA device {} port {}: {}; check cable and switch", device_->name(),
                   event.element.port_num, what);
      break;
    case EventEffect::port_up:
    case EventEffect::addresses:
      NHA_LOG_INFO("RDMA device {} port {}: {}", device_->name(), event.element.port_num, what);
      break;
    case EventEffect::queue_fault:
      NHA_LOG_WARN("RDMA device {}: {}", device_->name(), what);
      break;
    case EventEffect::device_lost:
      device_->fatal.store(true, std::memory_order_release);
      NHA_LOG_WARN(
          "RDMA device {}: {}; its connections end now, and it is not used again by this "
          "process",
          device_->name(), what);
      break;
    case EventEffect::none:
      NHA_LOG_DEBUG("RDMA device {}: {}", device_->name(), what);
      break;
  }
}

}  // namespace nccl_ha::fabric::verbs
