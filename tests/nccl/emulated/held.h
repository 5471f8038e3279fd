// What this process holds of the system, so that cycles can be seen to leave nothing behind.
#pragma once

#include <cstddef>
#include <string>

namespace nccl_ha::emulated {

struct Held {
  size_t descriptors = 0;
  size_t mappings = 0;
  size_t threads = 0;

  bool more_than(const Held& earlier) const;
  /// Of each the lesser.
  Held least(const Held& other) const;
  std::string text() const;
};

Held held_by_process();

}  // namespace nccl_ha::emulated
