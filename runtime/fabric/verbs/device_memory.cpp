// Memory that a device knows: shared by who registers the same range, and ended by its conductor.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "runtime/base/data_turn.h"
#include "runtime/base/log.h"
#include "runtime/fabric/verbs/device.h"

namespace nccl_ha::fabric::verbs {
namespace {

constexpr unsigned region_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

}  // namespace

bool Device::may_answer() {
  const bool hangs = conductor().hangs(hung_after) || registrar().hangs(hung_after);
  if (hangs && health.usable() && health.worsen(DeviceHealth::Level::failed)) {
    NHA_LOG_WARN("RDMA device {}: its firmware hangs: see the kernel's log", name_);
  }
  return health.usable();
}

bool Device::unused() const {
  std::lock_guard lock(mutex_);
  return regions_.empty() && own_memories.load(std::memory_order_acquire) == 0;
}

// What the device is asked for while mutex_ is held would make whoever lets go of other memory wait
// for its firmware.

Result<std::shared_ptr<ProtectionDomain>> Device::domain(uint64_t number) {
  const auto known = [&](std::shared_ptr<ProtectionDomain> made) {
    std::lock_guard lock(mutex_);
    std::erase_if(domains_, [](const auto& one) { return one.second.expired(); });
    auto& there = domains_[number];
    if (auto shared = there.lock()) {
      return shared;
    }
    there = made;
    return made;
  };
  if (auto shared = known(nullptr)) {
    return shared;
  }
  auto made = ProtectionDomain::open(*this);
  return made ? Result(known(std::move(*made))) : made;
}

Error Device::refuse_memory(size_t length, const char* what) const {
  const int error = errno;
  return fail(Errc::system,
              fmt::format("RDMA device {}: cannot register {} bytes of {} memory{}", name_, length,
                          what, memlock_hint(error)),
              error);
}

Result<ibv_mr*> Device::make_region(ibv_pd* domain, void* base, size_t length,
                                    MemoryKind kind) const {
  errno = 0;
  ibv_mr* mr =
      relaxed_ordering_
          ? library_.memory.reg_iova2(domain, base, length, reinterpret_cast<uint64_t>(base),
                                      region_access | IBV_ACCESS_RELAXED_ORDERING)
          : library_.memory.reg(domain, base, length, static_cast<int>(region_access));
  return mr != nullptr
             ? Result<ibv_mr*>(mr)
             : Result<ibv_mr*>(refuse_memory(length, kind == MemoryKind::gpu ? "GPU" : "host"));
}

Result<Region> Device::share(void* base, size_t length, std::shared_ptr<ProtectionDomain> domain,
                             const std::function<Result<ibv_mr*>(uint64_t start)>& make) {
  const auto start = reinterpret_cast<uint64_t>(base);
  if (base == nullptr || length == 0 || start + length < start) {
    return fail(Errc::invalid_argument,
                "memory registration: null, empty or wrapping address range");
  }
  {
    std::lock_guard lock(mutex_);
    for (Entry& entry : regions_) {
      if (entry.begin == start && entry.length == length && entry.domain == domain) {
        ++entry.users;
        return Region{entry.mr};
      }
    }
  }
  const auto mr = make(start);  // twice where two come at once
  if (!mr) {
    return mr.error();
  }
  std::lock_guard lock(mutex_);
  regions_.push_back({start, length, *mr, 1, std::move(domain)});
  return Region{*mr};
}

Result<Region> Device::add(void* base, size_t length, MemoryKind kind,
                           std::shared_ptr<ProtectionDomain> domain) {
  ibv_pd* in = domain ? domain->get() : pd_;
  return share(base, length, std::move(domain),
               [&](uint64_t) { return make_region(in, base, length, kind); });
}

Result<Region> Device::add_dmabuf(void* base, size_t length, uint64_t offset, int fd,
                                  std::shared_ptr<ProtectionDomain> domain) {
  if (library_.memory.reg_dmabuf == nullptr) {
    return fail(Errc::invalid_usage, "memory registration: this rdma-core has no DMA-BUF support");
  }
  ibv_pd* in = domain ? domain->get() : pd_;
  return share(base, length, std::move(domain), [&](uint64_t start) -> Result<ibv_mr*> {
    const unsigned relaxed = relaxed_ordering_ ? unsigned{IBV_ACCESS_RELAXED_ORDERING} : 0U;
    errno = 0;
    ibv_mr* mr = library_.memory.reg_dmabuf(in, offset, length, start, fd,
                                            static_cast<int>(region_access | relaxed));
    return mr != nullptr ? Result<ibv_mr*>(mr)
                         : Result<ibv_mr*>(refuse_memory(length, "GPU (DMA-BUF)"));
  });
}

int Device::end_region(ibv_mr* mr) const {
  const int error = library_.memory.dereg(mr);
  if (error != 0 && health.usable()) {
    NHA_LOG_WARN("RDMA device {}: cannot deregister memory: {}", name_, std::strerror(error));
  }
  return error;
}

/// A driver whose firmware has failed takes that for done (fence_proof.h).
void Device::end_own_region(ibv_mr* mr, Kept& keep) {
  using Level = DeviceHealth::Level;
  const bool ended = end_region(mr) == 0 && health.level() < Level::lost;
  const int answer = ended ? conductor().question() : EIO;
  Kept proven;  // ends after the lock
  std::lock_guard lock(mutex_);
  if (answer == 0 || health.level() == Level::gone) {
    proven.swap(unasked_);
  } else {
    Kept& to = is_shortage(answer) ? unasked_ : kept_;
    to.splice(to.end(), keep);
  }
}

void Device::remove(const Region& region, std::shared_ptr<void> keep) {
  Entry last;
  {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(regions_.begin(), regions_.end(),
                                    [&](const Entry& entry) { return entry.mr == region.mr; });
    if (found == regions_.end() || --found->users != 0) {
      return;
    }
    last = std::move(*found);
    regions_.erase(found);
  }
  if (library_.waited != nullptr) {
    const DataTurn exception(false);
    static_cast<void>(end_region(last.mr));  // a simulated one takes no time
    return;
  }
  std::shared_ptr<Kept> own;  // also while it is ended here
  try {
    auto done = std::make_shared<Answer>();
    const auto tell = [done] { done->result.store(0, std::memory_order_release); };
    const Duration allowed = hung_after + time_to_pin(last.length);
    if (keep != nullptr) {
      own = std::make_shared<Kept>();
      own->push_back(std::move(keep));
      conductor().add(
          Conductor::Rank::end,
          [this, mr = last.mr, domain = last.domain, own] { end_own_region(mr, *own); }, tell,
          allowed);
      return;
    }
    conductor().add(
        Conductor::Rank::make,
        [this, mr = last.mr, domain = last.domain] { static_cast<void>(end_region(mr)); }, tell,
        allowed);
    if (!conductor().await(*done, hung_after + std::chrono::seconds(last.length >> 30U))) {
      NHA_LOG_WARN_LIMITED("RDMA device {}: its firmware does not end a registration of memory",
                           name_);
    }
  } catch (const std::bad_alloc&) {
    static_cast<void>(end_region(last.mr));
  }
}

}  // namespace nccl_ha::fabric::verbs
