// Which memory is registered where, for those who must reach it through another device.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/fabric/device.h"

namespace nccl_ha::fabric {

/// The keys of one region on one device, and the provider's handle for it.
struct RegionKeys {
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  uint64_t handle = 0;
};

/// Who waits while a device registers memory.
enum class Waits : uint8_t {
  caller,  ///< a thread of the program's
  worker,  ///< which other connections need
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

/// Any thread.  Nobody waits for a device but who needs the region that it registers: firmware that
/// hangs holds up none of the others.
class RegionRegistry {
 public:
  /// A region was registered with a device, or got one more user there.  Takes over
  /// `origin.dmabuf_fd`.
  void add(const OpenedDevice& at, const RegionKeys& keys, const RegionOrigin& origin);
  /// Where a region is registered once more: a device, or a table of which each domain has its own
  /// part (0: all share).
  struct Elsewhere {
    OpenedDevice at;
    uint64_t domain = 0;
    auto operator<=>(const Elsewhere&) const = default;  // NOLINT(modernize-use-nullptr)
  };
  /// One user less.  The last one gives what was registered elsewhere meanwhile, to be taken back;
  /// what is just being registered whoever does that takes back.
  std::vector<std::pair<Elsewhere, RegionKeys>> remove(const OpenedDevice& at, uint32_t local_key);
  /// `is(origin)` holds for one of the regions that are known there.
  template <class Is>
  bool any(const OpenedDevice& at, const Is& is) {
    std::lock_guard lock(mutex_);
    return std::any_of(
        by_local_key_.lower_bound({at, 0}), by_local_key_.end(),
        [&](const auto& one) { return one.first.first == at && is(one.second->origin); });
  }
  /// The keys at `other` of what `at` knows by a local or a remote key; `make` registers it the
  /// first time, and who asks meanwhile waits for that and hears the same; a worker, which others
  /// need, for worker_patience at most (timed_out, EBUSY).  `take_back`: of nobody's any more.
  /// Those of earlier incarnations of `other` are names only from then on.
  using Make = std::function<Result<RegionKeys>(const RegionOrigin& origin)>;
  using TakeBack = std::function<void(const Elsewhere& there, const RegionKeys& keys)>;
  Result<RegionKeys> on_other(const OpenedDevice& at, uint32_t key, bool key_is_local,
                              const Elsewhere& other, Waits who, const Make& make,
                              const TakeBack& take_back);
  static constexpr Duration worker_patience = std::chrono::milliseconds(100);

 private:
  /// Shared by who registers a region elsewhere and who waits for that.
  using Made = std::shared_ptr<std::optional<Result<RegionKeys>>>;
  struct Entry {
    Entry() = default;
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    RegionOrigin origin;
    uint32_t remote_key = 0;
    size_t users = 0;  ///< 0: it is known no more
    std::map<Elsewhere, Made> elsewhere;
  };
  using Key = std::pair<OpenedDevice, uint32_t>;
  // With the mutex.
  std::shared_ptr<Entry> find(const OpenedDevice& at, uint32_t key, bool key_is_local) const;
  std::shared_ptr<Entry> find_elsewhere(const OpenedDevice& at, uint32_t key,
                                        bool key_is_local) const;
  Result<RegionKeys> await(const Made& made, Waits who, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable made_;
  std::map<Key, std::shared_ptr<Entry>> by_local_key_;
  std::map<Key, uint32_t> local_key_of_remote_;
};

}  // namespace nccl_ha::fabric
