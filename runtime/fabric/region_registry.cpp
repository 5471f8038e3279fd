#include "runtime/fabric/region_registry.h"

#include <cerrno>
#include <new>

#include "runtime/base/own_fd.h"

namespace nccl_ha::fabric {

RegionRegistry::Entry::~Entry() {
  if (origin.dmabuf_fd >= 0) {
    close_fd(origin.dmabuf_fd);
  }
}

void RegionRegistry::add(const OpenedDevice& at, const RegionKeys& keys,
                         const RegionOrigin& origin) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Entry>& entry = by_local_key_[{at, keys.local_key}];
  if (!entry) {
    entry = std::make_shared<Entry>();
    entry->origin = origin;
    entry->remote_key = keys.remote_key;
    local_key_of_remote_[{at, keys.remote_key}] = keys.local_key;
  } else if (entry->origin.not_kept != 0) {
    entry->origin = origin;  // there may be a descriptor this time
  } else if (origin.dmabuf_fd >= 0) {
    close_fd(origin.dmabuf_fd);
  }
  ++entry->users;
}

std::vector<std::pair<RegionRegistry::Elsewhere, RegionKeys>> RegionRegistry::remove(
    const OpenedDevice& at, uint32_t local_key) {
  std::lock_guard lock(mutex_);
  const auto found = by_local_key_.find({at, local_key});
  if (found == by_local_key_.end() || --found->second->users != 0) {
    return {};
  }
  const std::shared_ptr<Entry> entry = found->second;
  std::vector<std::pair<Elsewhere, RegionKeys>> elsewhere;
  for (const auto& [place, made] : entry->elsewhere) {
    if (*made) {
      elsewhere.emplace_back(place, ***made);
    }
  }
  local_key_of_remote_.erase({at, entry->remote_key});
  by_local_key_.erase(found);
  return elsewhere;
}

std::shared_ptr<RegionRegistry::Entry> RegionRegistry::find(const OpenedDevice& at, uint32_t key,
                                                            bool key_is_local) const {
  const auto remote = local_key_of_remote_.find({at, key});
  const bool known = key_is_local || remote != local_key_of_remote_.end();
  const auto found =
      known ? by_local_key_.find({at, key_is_local ? key : remote->second}) : by_local_key_.end();
  return found == by_local_key_.end() ? find_elsewhere(at, key, key_is_local) : found->second;
}

/// By a key of a device that came later than its registration (Provider::adapt); seldom.
std::shared_ptr<RegionRegistry::Entry> RegionRegistry::find_elsewhere(const OpenedDevice& at,
                                                                      uint32_t key,
                                                                      bool key_is_local) const {
  for (const auto& [own, entry] : by_local_key_) {
    const auto there = entry->elsewhere.find({at, 0});
    if (there == entry->elsewhere.end() || !there->second->has_value()) {
      continue;
    }
    const Result<RegionKeys>& keys = **there->second;
    if (keys && (key_is_local ? keys->local_key : keys->remote_key) == key) {
      return entry;
    }
  }
  return nullptr;
}

Result<RegionKeys> RegionRegistry::on_other(const OpenedDevice& at, uint32_t key, bool key_is_local,
                                            const Elsewhere& other, Waits who, const Make& make,
                                            const TakeBack& take_back) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Entry> entry = find(at, key, key_is_local);
  if (!entry) {
    return fail(Errc::internal, "a memory key is not known to the device that it came from");
  }
  if (const auto known = entry->elsewhere.find(other); known != entry->elsewhere.end()) {
    return known->second->has_value() ? **known->second : await(Made(known->second), who, lock);
  }
  std::vector<std::pair<Elsewhere, RegionKeys>> over;
  for (auto& [before, known] : entry->elsewhere) {
    const bool earlier = before.at.device == other.at.device && before.domain == other.domain &&
                         before.at.incarnation < other.at.incarnation && known->has_value();
    if (earlier && (**known)->handle != 0) {
      over.emplace_back(before, ***known);
      (**known)->handle = 0;  // connections may know the memory by these keys
    }
  }
  const auto made = std::make_shared<std::optional<Result<RegionKeys>>>();
  const auto place = entry->elsewhere.emplace(other, made).first;
  const RegionOrigin origin = entry->origin;
  lock.unlock();
  for (const auto& [there, keys] : over) {
    take_back(there, keys);
  }
  Result<RegionKeys> keys = fail(Errc::no_memory, "out of memory");
  try {
    keys = make(origin);
  } catch (const std::bad_alloc&) {
    // Whoever waits for it hears of it too.
  }
  lock.lock();
  const bool used = entry->users != 0;
  *made = used || !keys
              ? keys
              : fail(Errc::closed, "memory was taken back while another device registered it");
  if (!**made) {
    entry->elsewhere.erase(place);
  }
  lock.unlock();
  made_.notify_all();
  if (keys && !used) {
    take_back(other, *keys);
  }
  return **made;
}

Result<RegionKeys> RegionRegistry::await(const Made& made, Waits who,
                                         std::unique_lock<std::mutex>& lock) {
  const auto over = [&] { return made->has_value(); };
  if (who == Waits::caller) {
    made_.wait(lock, over);
  } else if (!made_.wait_for(lock, worker_patience, over)) {
    return fail(Errc::timed_out, "another one waits for the same registration of memory", EBUSY);
  }
  return **made;
}

}  // namespace nccl_ha::fabric
