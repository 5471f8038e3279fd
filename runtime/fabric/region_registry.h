// Which memory is registered where, for those who must reach it through another device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/result.h"

namespace nccl_ha::fabric {

/// The keys of one region on one device, and the provider's handle for it.
struct RegionKeys {
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  uint64_t handle = 0;
};

/// What it takes to register a region once more.
struct RegionOrigin {
  void* base = nullptr;
  size_t length = 0;
  bool gpu = false;
  int dmabuf_fd = -1;   ///< -1: by address
  uint64_t offset = 0;  ///< into the buffer of dmabuf_fd
  int not_kept = 0;     ///< errno, why there is no descriptor; it cannot be registered once more
  std::optional<uint64_t> domain = std::nullopt;  ///< of PathOptions::own_domain; else all share
};

/// Any thread.
class RegionRegistry {
 public:
  /// A region was registered with a device, or got one more user there.  Takes over
  /// `origin.dmabuf_fd`.
  void add(size_t device, const RegionKeys& keys, const RegionOrigin& origin);
  /// Where a region is registered once more: a device, or a table of which each domain has its own
  /// part (0: all share).
  struct Elsewhere {
    size_t device = 0;
    uint64_t domain = 0;
    bool operator<(const Elsewhere& other) const {
      return std::pair(device, domain) < std::pair(other.device, other.domain);
    }
  };
  /// One user less.  The last one gives what was registered elsewhere meanwhile, to be taken back.
  std::vector<std::pair<Elsewhere, RegionKeys>> remove(size_t device, uint32_t local_key);
  /// `is(origin)` holds for one of the regions that `device` knows.
  template <class Is>
  bool any(size_t device, const Is& is) {
    std::lock_guard lock(mutex_);
    return std::any_of(
        by_local_key_.lower_bound({device, 0}), by_local_key_.end(),
        [&](const auto& one) { return one.first.first == device && is(one.second.origin); });
  }
  /// The keys at `other` of what `device` knows by a local or a remote key; `make` registers it the
  /// first time.
  using Make = std::function<Result<RegionKeys>(const RegionOrigin& origin)>;
  Result<RegionKeys> on_other(size_t device, uint32_t key, bool key_is_local,
                              const Elsewhere& other, const Make& make);

 private:
  struct Entry {
    RegionOrigin origin;
    uint32_t remote_key = 0;
    size_t users = 0;
    std::map<Elsewhere, RegionKeys> elsewhere;
  };
  using Key = std::pair<size_t, uint32_t>;  // device and key
  std::mutex mutex_;
  std::map<Key, Entry> by_local_key_;
  std::map<Key, uint32_t> local_key_of_remote_;
};

}  // namespace nccl_ha::fabric
