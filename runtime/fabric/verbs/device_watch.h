// Asynchronous events of an RDMA device: ports that go and come, queues and devices that fail.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/successor.h"
#include "runtime/streams/stream.h"

namespace nccl_ha::fabric::verbs {

/// What an event means to whoever uses the device.
enum class EventEffect : uint8_t {
  none,         ///< worth a debug line
  port_down,    ///< its paths will fail unless it comes back within their retry budget
  port_up,      ///< new paths can be made
  addresses,    ///< LID, GID or partition table changed: new paths read them anew
  queue_fault,  ///< one queue pair failed, perhaps without a completion: its path ends
  queue_lost,   ///< a completion queue: what it would have said is lost, and its paths end
  device_lost,  ///< nothing on this device can be trusted any more
};
/// Any thread.  Pure.
EventEffect effect_of(ibv_event_type type);

/// Reads the events of one device, tells people, and marks a device that is lost so that its ports
/// fail their paths.  When that is gone, looks for what comes in its place, and goes on with it.
/// One per NIC and process: a descriptor has one reader.  Lives until the engine stops.
class DeviceWatch final : public Actor, private FdWatchOwner {
 public:
  /// A port went or came, or the device is lost, which is all of its ports (0).
  using Tell = std::function<void(EventEffect effect, unsigned port)>;
  /// How a device that is gone comes back; empty: not here.
  struct Return {
    SuccessorSearch::Open open;
    std::function<void(const std::vector<UsablePort>& found)> take;  ///< on the actor's thread
  };
  /// The caller has set Device::watched.  `tell` is called on the actor's thread.
  explicit DeviceWatch(std::shared_ptr<Device> device, Tell tell = {}, Return back = {});
  ~DeviceWatch() override;
  const char* name() const override { return "device watch"; }
  void start(Context& context) override;
  void on(const Message& message) override;
  void stop() override;

 private:
  void on_readable(int fd) override;
  void begin();
  void look_again();
  void read_events();
  void look_whether_gone();
  void on_gone();
  void await_return();
  void follow(const std::vector<UsablePort>& found);
  void take(const ibv_async_event& event);
  void worsen(DeviceHealth::Level to, const char* what);

  std::shared_ptr<Device> device_;
  Tell tell_;
  Return return_;
  Context* context_ = nullptr;
  std::unique_ptr<FdWatch> watch_;
  bool lost_told_ = false;  ///< to tell_
  /// Of a device that failed: its descriptor of events does not say that the device is gone
  /// (fence_proof.h), and kernels of before 2020 wake nobody who polls one that they have closed
  /// (Linux, ib_uverbs_event_poll()).
  Timer timer_;
  uint32_t looks_ = 0;
  std::unique_ptr<SuccessorSearch> search_;  ///< while the device is gone
  bool failed_ = false;                      ///< another one may watch meanwhile
};

}  // namespace nccl_ha::fabric::verbs
