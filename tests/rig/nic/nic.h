// The emulated NICs of one process: devices, queue pairs and the thread that stands for hardware.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tests/rig/nic/control.h"
#include "tests/rig/nic/device.h"
#include "tests/rig/nic/pair.h"
#include "tests/rig/nic/settings.h"
#include "tests/rig/nic/wire.h"

namespace nccl_ha::emulated {

class Nic {
 public:
  static Nic& instance();

  const Settings& settings() const { return settings_; }
  std::mutex& mutex() { return mutex_; }
  std::vector<std::unique_ptr<Device>>& devices() { return devices_; }

  // --- with the mutex held
  uint32_t new_pair_number();
  void add(Pair* pair) { pairs_[pair->qp_num] = pair; }
  void remove(Pair* pair);
  Wire& wire() { return wire_; }
  /// Drops it where a fault does.
  void send(const Header& header, std::span<const iovec> payload);
  void complete(ibv_cq* cq, const Entry& entry);
  /// The pair wants on_time() at `when`, 0: no more.
  void set_timer(Pair& pair, uint64_t when);
  void owe(Pair& pair) { owing_.push_back(pair.qp_num); }
  /// A fault that the receiving side sees too: true where the packet gets lost.
  bool swallowed(const Header& header, bool arriving);
  uint64_t draw_number() { return draw(settings_.seed, ++drawn_); }

 private:
  Nic();
  void work();
  void work_once(std::vector<pollfd>& waited, uint64_t* next);
  void arrive(const Header& header, std::span<const char> payload);
  void deliver(const Header& header, std::span<const char> payload);
  void deliver_held(uint64_t now);
  void take_orders();
  void carry_out(const EventOrder& order);
  void settle_debts();
  void run_timers(uint64_t now);
  uint64_t next_due() const;

  struct Held {
    Header header;
    std::vector<char> payload;
  };

  Settings settings_;
  Control control_;
  std::mutex mutex_;
  Wire wire_;
  uint64_t drawn_ = 0;
  uint64_t sleeps_until_ = 0;  ///< the thread looks by itself then
  uint32_t next_pair_ = 0;
  uint32_t orders_taken_ = 0;
  std::vector<std::unique_ptr<Device>> devices_;
  std::map<uint32_t, Pair*> pairs_;
  uint32_t first_served_ = 0;  ///< the pair that was the first to use a wire with room
  std::set<std::pair<uint64_t, Pair*>> timers_;
  std::vector<uint32_t> owing_;
  std::multimap<uint64_t, Held> held_;   ///< in the network, by when they arrive
  std::map<size_t, uint64_t> last_due_;  ///< the latest of them, by device and port
};

}  // namespace nccl_ha::emulated
