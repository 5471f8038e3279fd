#include "runtime/fabric/verbs/device_watch.h"

#include <cerrno>
#include <utility>

#include "runtime/base/log.h"

namespace nccl_ha::fabric::verbs {
namespace {

// A storm of events must not keep the worker from its connections; the rest comes next turn.
constexpr unsigned events_per_turn = 32;

/// While somebody waits for what is found; and after so many of those.
constexpr Duration look_interval = std::chrono::milliseconds(20);
constexpr uint32_t looks_often = 3000;
constexpr Duration interval_later = std::chrono::seconds(1);
/// For a device that has not come back for long.
constexpr Duration interval_much_later = std::chrono::seconds(5);

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
    case IBV_EVENT_CQ_ERR:  // it overran: completions are lost for good
      return EventEffect::queue_lost;
    case IBV_EVENT_DEVICE_FATAL:
      return EventEffect::device_lost;
    default:
      return EventEffect::none;
  }
}

DeviceWatch::DeviceWatch(std::shared_ptr<Device> device, Tell tell, Return back)
    : device_(std::move(device)), tell_(std::move(tell)), return_(std::move(back)) {
  timer_.bind([](void* self) { static_cast<DeviceWatch*>(self)->look_again(); }, this);
}

DeviceWatch::~DeviceWatch() {
  if (!failed_) {
    device_->watched.store(false, std::memory_order_release);
  }
}

void DeviceWatch::start(Context& context) {
  context_ = &context;
  begin();
}

/// The device may have failed before somebody watched it.
void DeviceWatch::begin() {
  if (device_->health.level() == DeviceHealth::Level::gone) {
    await_return();
    return;
  }
  if (device_->taken_away()) {
    on_gone();
    return;
  }
  auto watch = context_->streams().watch_fd(device_->context()->async_fd, this);
  if (!watch) {
    NHA_LOG_WARN_LIMITED("RDMA device {}: its events cannot be watched: {}", device_->name(),
                         watch.error().message());
    failed_ = true;
    device_->watched.store(false, std::memory_order_release);  // the next one tries again
    return;
  }
  watch_ = std::move(*watch);
  look_whether_gone();
}

void DeviceWatch::look_again() {
  device_->health.level() == DeviceHealth::Level::gone ? await_return() : read_events();
}

void DeviceWatch::on(const Message& message) { (void)message; }

void DeviceWatch::stop() {
  watch_.reset();
  context_->timers().cancel(timer_);
}

void DeviceWatch::on_readable(int fd) {
  (void)fd;
  read_events();
}

void DeviceWatch::read_events() {
  const Library& library = device_->library();
  ibv_async_event event{};
  for (unsigned i = 0; i < events_per_turn; ++i) {
    if (library.event.get(device_->context(), &event) != 0) {
      // Linux before 5.7, ib_uverbs_event_read(): so once all that this process had on the device
      // is destroyed.
      if (errno == EIO) {
        on_gone();
        return;
      }
      break;
    }
    take(event);
    // Destroying a queue pair waits for this.
    library.event.ack(&event);
  }
  look_whether_gone();
}

/// The last event of a device that is removed comes when all else is gone.  Where somebody else has
/// found that it failed, that event is what begins the looks.
void DeviceWatch::look_whether_gone() {
  using Level = DeviceHealth::Level;
  const Level level = device_->health.level();
  if (level == Level::good || level == Level::gone) {
    return;
  }
  if (device_->taken_away()) {
    on_gone();
  } else {
    context_->timers().arm(
        timer_, context_->now() + (++looks_ <= looks_often ? look_interval : interval_later));
  }
}

void DeviceWatch::on_gone() {
  worsen(DeviceHealth::Level::gone, "the kernel has taken the device away");
  context_->timers().cancel(timer_);
  watch_.reset();  // nothing comes any more, and it may stay readable
  looks_ = 0;
  await_return();
}

/// Looks now and again; what a look has found is there a little later.
void DeviceWatch::await_return() {
  if (!return_.open) {
    return;
  }
  if (!search_) {
    search_ = std::make_unique<SuccessorSearch>(device_->library(), return_.open);
  }
  const std::vector<UsablePort> found = search_->look();
  if (!found.empty()) {
    follow(found);
    return;
  }
  ++looks_;
  const Duration wait = looks_ > looks_often   ? interval_much_later
                        : search_->under_way() ? look_interval
                                               : interval_later;
  context_->timers().arm(timer_, context_->now() + wait);
}

void DeviceWatch::follow(const std::vector<UsablePort>& found) {
  const std::shared_ptr<Device> next = found.front().device;
  NHA_LOG_WARN("RDMA device {} is back{}: connections may use it again", device_->name(),
               next->name() == device_->name() ? "" : " as " + next->name());
  device_->watched.store(false, std::memory_order_release);
  next->watched.store(true, std::memory_order_release);
  device_ = next;
  search_.reset();
  looks_ = 0;
  lost_told_ = false;
  return_.take(found);
  begin();
}

void DeviceWatch::take(const ibv_async_event& event) {
  const EventEffect effect = effect_of(event.event_type);
  const char* what = device_->library().event.type_text(event.event_type);
  context_->recorder().note(TraceEvent::device_event, id().index,
                            static_cast<uint64_t>(event.event_type), static_cast<uint64_t>(effect));
  if (tell_ && (effect == EventEffect::port_down || effect == EventEffect::port_up)) {
    tell_(effect, static_cast<unsigned>(event.element.port_num));
  }
  if (event.event_type == IBV_EVENT_PKEY_CHANGE) {
    device_->partition_changes.fetch_add(1, std::memory_order_release);
  }
  if (effect == EventEffect::addresses) {
    device_->address_changes.fetch_add(1, std::memory_order_release);
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
      NHA_LOG_WARN("RDMA device {}: {}; the path of that queue pair ends now", device_->name(),
                   what);
      device_->faults.add(event.element.qp);
      break;
    case EventEffect::queue_lost:
      if (event.element.cq->cq_context == nullptr) {  // of datagrams
        worsen(DeviceHealth::Level::failed, what);
        break;
      }
      NHA_LOG_WARN("RDMA device {}: {}; the paths of that completion queue end now",
                   device_->name(), what);
      device_->faults.add(event.element.cq);
      break;
    case EventEffect::device_lost:
      worsen(DeviceHealth::Level::lost, what);
      break;
    case EventEffect::none:
      NHA_LOG_DEBUG("RDMA device {}: {}", device_->name(), what);
      break;
  }
}

void DeviceWatch::worsen(DeviceHealth::Level to, const char* what) {
  const bool worse = device_->health.worsen(to);
  // Somebody else may have found out before, and tells nobody.
  const bool first = !std::exchange(lost_told_, true);
  if (worse || first) {
    NHA_LOG_WARN("RDMA device {}: {}; {}", device_->name(), what,
                 first ? "its paths end now" : "nothing that it was given reaches memory any more");
  }
  if (first && tell_) {
    tell_(EventEffect::device_lost, 0);
  }
}

}  // namespace nccl_ha::fabric::verbs
