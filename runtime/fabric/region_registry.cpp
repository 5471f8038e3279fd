#include "runtime/fabric/region_registry.h"

#include <unistd.h>

#include "runtime/base/own_fd.h"

namespace nccl_ha::fabric {

void RegionRegistry::add(size_t device, const RegionKeys& keys, const RegionOrigin& origin) {
  std::lock_guard lock(mutex_);
  Entry& entry = by_local_key_[{device, keys.local_key}];
  if (entry.users++ == 0) {
    entry.origin = origin;
    entry.remote_key = keys.remote_key;
    local_key_of_remote_[{device, keys.remote_key}] = keys.local_key;
  } else if (entry.origin.not_kept != 0) {
    entry.origin = origin;  // there may be a descriptor this time
  } else if (origin.dmabuf_fd >= 0) {
    close_fd(origin.dmabuf_fd);
  }
}

std::vector<std::pair<RegionRegistry::Elsewhere, RegionKeys>> RegionRegistry::remove(
    size_t device, uint32_t local_key) {
  std::lock_guard lock(mutex_);
  const auto found = by_local_key_.find({device, local_key});
  if (found == by_local_key_.end() || --found->second.users != 0) {
    return {};
  }
  const Entry& entry = found->second;
  std::vector<std::pair<Elsewhere, RegionKeys>> elsewhere(entry.elsewhere.begin(),
                                                          entry.elsewhere.end());
  if (entry.origin.dmabuf_fd >= 0) {
    close_fd(entry.origin.dmabuf_fd);
  }
  local_key_of_remote_.erase({device, entry.remote_key});
  by_local_key_.erase(found);
  return elsewhere;
}

Result<RegionKeys> RegionRegistry::on_other(size_t device, uint32_t key, bool key_is_local,
                                            const Elsewhere& other, const Make& make) {
  // Held while it registers: two who need the same region must not register it twice, and nobody
  // may take it back meanwhile.  It happens once per region.
  std::lock_guard lock(mutex_);
  if (!key_is_local) {
    const auto local = local_key_of_remote_.find({device, key});
    if (local == local_key_of_remote_.end()) {
      return fail(Errc::internal, "a memory key is not known to the device that it came from");
    }
    key = local->second;
  }
  const auto found = by_local_key_.find({device, key});
  if (found == by_local_key_.end()) {
    return fail(Errc::internal, "a memory key is not known to the device that it came from");
  }
  Entry& entry = found->second;
  if (const auto known = entry.elsewhere.find(other); known != entry.elsewhere.end()) {
    return known->second;
  }
  auto made = make(entry.origin);
  if (made) {
    entry.elsewhere.emplace(other, *made);
  }
  return made;
}

}  // namespace nccl_ha::fabric
