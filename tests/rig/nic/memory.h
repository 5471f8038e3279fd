// Registered memory of one device in this process, and how what arrives gets into it.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "tests/rig/nic/control.h"
#include "tests/rig/nic/settings.h"

namespace nccl_ha::emulated {

struct Region : ibv_mr {
  bool on_device = false;
  uint32_t access = 0;  ///< ibv_access_flags
};

/// With the NIC's mutex held.
class Memory {
 public:
  Memory(const Settings& settings, DeviceCounters& counters, uint64_t seed)
      : settings_(settings), counters_(counters), seed_(seed) {}
  Region* add(std::unique_ptr<Region> region);
  void remove(Region* region);
  /// Ends the newest ones until so many are left; their owners have the objects still.
  void revoke(size_t left);
  size_t count() const { return regions_.size(); }
  /// nullptr: the key is not valid for the whole range in that domain, or not for that access.
  Region* find(uint32_t key, uint64_t address, uint64_t length, const ibv_pd* domain,
               uint32_t access);

  /// What came over the wire.  `careful`: the memory may be gone, as its owner was told that the
  /// device is done with it.
  void write(const Region& region, uint64_t address, const char* bytes, size_t length,
             bool careful);
  /// All that host memory does not show yet: before a completion.
  void land();
  /// What a GPU does not see yet: a read through this device pushes it.
  void push_to_gpus(uint64_t due);
  /// Nanoseconds until something lands by itself; UINT64_MAX: nothing waits.
  uint64_t next_due() const;
  void land_what_is_due(uint64_t now);

 private:
  struct Waiting {
    uint64_t due = 0;
    uint64_t address = 0;
    std::vector<char> bytes;
    bool careful = false;
  };

  const Settings& settings_;
  DeviceCounters& counters_;
  uint64_t seed_;
  uint64_t drawn_ = 0;
  uint32_t next_key_ = 0x10;
  std::map<uint32_t, std::unique_ptr<Region>> regions_;  ///< by key, which is by age
  std::map<uint32_t, std::unique_ptr<Region>> revoked_;
  std::vector<Waiting> blocks_;  ///< in any order
  std::deque<Waiting> for_gpus_;
};

}  // namespace nccl_ha::emulated
