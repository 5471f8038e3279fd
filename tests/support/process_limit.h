// A limit of this process that is lower for a while.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

namespace nccl_ha::test {

/// Only the soft limit is lowered, so that it can be raised again.
class ProcessLimit {
 public:
  using Resource = decltype(RLIMIT_NOFILE);
  ProcessLimit(Resource resource, rlim_t limit) : resource_(resource) {
    EXPECT_EQ(getrlimit(resource_, &before_), 0);
    value_ = std::min(limit, before_.rlim_max);
    const rlimit lower{value_, before_.rlim_max};
    EXPECT_EQ(setrlimit(resource_, &lower), 0);
  }
  ~ProcessLimit() { EXPECT_EQ(setrlimit(resource_, &before_), 0); }
  ProcessLimit(const ProcessLimit&) = delete;
  ProcessLimit& operator=(const ProcessLimit&) = delete;

  rlim_t value() const { return value_; }

 private:
  Resource resource_;
  rlimit before_{};
  rlim_t value_ = 0;
};

}  // namespace nccl_ha::test
