#include "runtime/fabric/verbs/protection_domain.h"

#include <fmt/format.h>

#include <cerrno>

#include "runtime/base/log.h"
#include "runtime/fabric/verbs/device.h"

namespace nccl_ha::fabric::verbs {

Result<std::shared_ptr<ProtectionDomain>> ProtectionDomain::open(const Device& device) {
  std::shared_ptr<ProtectionDomain> made(new ProtectionDomain(device));
  made->domain_ = device.library().memory.alloc_domain(device.context());
  if (made->domain_ == nullptr) {
    return fail(Errc::system,
                fmt::format("RDMA device {}: cannot allocate a protection domain", device.name()),
                errno);
  }
  made->scratch_.emplace(device);
  if (auto opened = made->scratch_->open(made->domain_); !opened) {
    return opened.error();
  }
  return made;
}

ProtectionDomain::~ProtectionDomain() {
  scratch_.reset();
  if (domain_ != nullptr && device_.library().memory.free_domain(domain_) != 0) {
    NHA_LOG_DEBUG("RDMA device {}: cannot free a protection domain", device_.name());
  }
}

}  // namespace nccl_ha::fabric::verbs
