// One emulated device as this process sees it.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/rig/nic/control.h"
#include "tests/rig/nic/firmware.h"
#include "tests/rig/nic/memory.h"
#include "tests/rig/nic/objects.h"
#include "tests/rig/nic/settings.h"
#include "tests/rig/nic/wire.h"

namespace nccl_ha::emulated {

/// Places in the table of partition keys.
constexpr uint16_t pkeys = 128;

/// What a ConnectX of that generation can negotiate (0: none of it).
uint32_t ece_of(uint64_t generation);

/// Whose port a GID or a LID is, however packets get there.
std::optional<Place> place_of(const ibv_ah_attr& route);

/// With the NIC's mutex held, unless stated otherwise.
class Device : public ibv_device {
 public:
  Device(const Settings& settings, Control& control, unsigned host, unsigned index);

  // --- any thread
  Place place(unsigned port) const;
  DeviceState& state() { return state_; }
  Firmware& firmware() { return firmware_; }
  const Settings& settings() const { return settings_; }
  Mode mode() const { return static_cast<Mode>(state_.mode.load()); }
  /// It is there to be opened.
  /// 0, or the errno value of a route by which nothing would get to its end.
  int refuse(const ibv_ah_attr& route) const;
  bool present() const { return mode() != Mode::reset && mode() != Mode::removing; }
  void describe(ibv_device_attr* attributes) const;
  void describe(unsigned port, ibv_port_attr* attributes) const;
  /// False when there is none.
  bool gid(unsigned port, uint32_t index, ibv_gid_entry* entry) const;
  uint32_t gid_count() const;
  /// Packets come and go for queue pairs of whoever opened it so.
  bool moves_data(uint32_t generation) const;
  /// The kernel has it as an RDMA device; its users' objects have all ended before it has not.
  bool registered(uint32_t generation) const;
  /// Completions are seen.
  bool completes(uint32_t generation) const {
    return (mode() == Mode::running || mode() == Mode::removing) &&
           state_.generation.load() == generation;
  }
  /// Its owner was told that memory is free which it may still write.
  bool writes_behind() const { return mode() == Mode::internal; }

  Memory& memory() { return memory_; }
  std::vector<Context*>& contexts() { return contexts_; }
  std::vector<Queue*>& queues() { return queues_; }
  std::vector<Channel*>& channels() { return channels_; }
  /// The driver resets a device with an internal error, and the kernel takes down what this process
  /// had on one that was reset or is removed, when it is time for that.
  void let_go(uint64_t now);
  /// When there is something to let go next; UINT64_MAX: nothing that cannot wait.
  uint64_t next_due(uint64_t now) const;
  /// Of a port or the device: whoever has it open hears it.  Of a queue pair or a queue only who
  /// made that does.
  void raise(const ibv_async_event& event, uint32_t generation);
  uint32_t pair_count = 0;

 private:
  uint64_t guid() const;
  /// It was let go of so long ago.
  bool reset_for(Duration time) const;
  void take_memory(uint64_t now);
  void take_away(Context& context);

  const Settings& settings_;
  DeviceState& state_;
  unsigned host_;
  unsigned index_;
  Firmware firmware_;
  Memory memory_;
  std::vector<Context*> contexts_;
  std::vector<Queue*> queues_;
  std::vector<Channel*> channels_;
  size_t doomed_ = 0;  ///< registrations that there were when its removal began
};

}  // namespace nccl_ha::emulated
